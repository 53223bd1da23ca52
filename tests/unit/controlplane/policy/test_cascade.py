"""Confidences, the worth of an option to escalate, and which cascades are worth having."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.cascade import (
    MOST_PAIRS,
    Calibration,
    Cascades,
    Escalation,
    Evidence,
    Pair,
    answered,
    chance_of,
    confidence_of,
    early_ns,
    faults,
    first_by_ns,
    pair_of,
    worthwhile,
)
from controlplane.policy.profiles import VariantTable
from controlplane.policy.records import Request, RequestClass, Shape
from tests.unit.controlplane.policy.world import TOKENIZER, candidate

STEPS = Escalation(
    first="fast",
    to="best",
    confidences=(0.0, 0.6, 0.8, 0.95),
    gains=(0.3, 0.1, 0.02, -0.01),
    counts=(100, 200, 300, 400),
    shares_right=(0.5, 0.7, 0.85, 0.98),
)
CALIBRATIONS = {"fast": Calibration(), "best": Calibration()}
EVIDENCE = Evidence("reviews", CALIBRATIONS, (STEPS,))


def pair(escalation: Escalation = STEPS) -> Pair:
    found = pair_of(escalation, 1, 0)
    assert found is not None
    return found


def test_confidence_is_the_largest_probability_at_the_temperature() -> None:
    logits = [1.0, 3.0, -2.0]
    powers = [math.exp(z / 2.0) for z in logits]
    assert confidence_of(logits, Calibration(2.0)) == pytest.approx(max(powers) / sum(powers))
    assert confidence_of([5.0], Calibration()) == 1.0
    assert confidence_of([0.0, 0.0], Calibration()) == 0.5


def test_a_kept_answer_leaves_early_by_a_part_of_the_time_there_was() -> None:
    assert early_ns(0) == 2_000_000
    assert early_ns(90_000_000) == 6_500_000
    assert early_ns(200_000_000) == early_ns(10**12) == 12_000_000
    request = Request(
        id=1,
        model="m",
        klass=RequestClass(),
        shapes={},
        payload=None,
        arrived_ns=5_000_000,
        deadline_ns=95_000_000,
    )
    assert request.budget_ns == 90_000_000
    assert first_by_ns(request) == 95_000_000 - 6_500_000


def test_a_beta_map_bends_the_confidence() -> None:
    plain = confidence_of([0.0, 2.0], Calibration())
    assert confidence_of([0.0, 2.0], Calibration(1.0, (1.0, 1.0, 0.0))) == pytest.approx(plain)
    a, b, c = 0.6, 1.4, -0.3
    odds = a * math.log(plain) - b * math.log(1.0 - plain) + c
    bent = confidence_of([0.0, 2.0], Calibration(1.0, (a, b, c)))
    assert bent == pytest.approx(1.0 / (1.0 + math.exp(-odds)))
    assert confidence_of([0.0, 1e6], Calibration(1.0, (a, b, c))) == 1.0
    assert confidence_of([0.0, 1e6], Calibration(1.0, (a, 0.0, 0.0))) == pytest.approx(0.5)


@pytest.mark.parametrize("logits", [[], [math.nan, 1.0], [1.0, math.nan], [math.inf, math.inf]])
def test_what_is_no_number_is_not_sure(logits: list[float]) -> None:
    assert confidence_of(logits, Calibration()) == 0.0


@given(
    st.lists(st.floats(-30, 30), min_size=2, max_size=6),
    st.floats(0.2, 5.0),
    st.floats(0.5, 2.0),
)
def test_chances_of_all_classes_add_up_to_one(
    logits: list[float], temperature: float, bend: float
) -> None:
    calibration = Calibration(temperature, (bend, 1.0, 0.0))
    chances = [chance_of(logits, calibration, place) for place in range(len(logits))]
    assert chances[answered(logits)] == confidence_of(logits, calibration)
    assert math.fsum(chances) == pytest.approx(1.0, abs=1e-6)


def test_steps_are_looked_up_by_confidence() -> None:
    made = pair()
    assert [made.gain(c) for c in (0.0, 0.59, 0.6, 0.9, 0.95, 1.0)] == [
        0.3, 0.3, 0.1, 0.02, -0.01, -0.01,
    ]  # fmt: skip
    assert made.right(0.7) == 0.7
    assert made.escalated(0.05) == pytest.approx(0.3)


@given(st.floats(-0.1, 0.5))
def test_an_option_is_worth_what_it_gains_above_the_price(price: float) -> None:
    made = pair()
    mean = sum(w * g for w, g in zip(made.weights, made.gains, strict=True))
    worth = sum(
        w * max(0.0, g - max(price, 0.0)) for w, g in zip(made.weights, made.gains, strict=True)
    )
    # Near price 0 it is not believed to gain more than asking always does.
    assert made.option(price) == pytest.approx(min(worth, mean), abs=4e-3)
    assert made.option(price) >= made.option(price + 0.01) >= 0.0


def test_a_variant_that_gains_nothing_on_the_mean_makes_no_pair() -> None:
    assert pair_of(STEPS._replace(gains=(0.01, 0.0, 0.0, -0.1)), 1, 0) is None


def test_only_pairs_that_beat_the_best_mix_are_kept_and_few_of_them() -> None:
    costs = [30.0, 4.0]
    direct = [(30.0, 0.889), (4.0, 0.837)]
    assert worthwhile([pair()], direct, costs, 0.002) == (pair(),)
    # At almost the price of the better variant there is nothing to gain.
    assert worthwhile([pair()], [(4.2, 0.889), (4.0, 0.837)], [4.2, 4.0], 0.002) == ()
    many = [pair()] * (MOST_PAIRS + 2)
    assert len(worthwhile(many, direct, costs, 0.002)) == 1


def table(evidence: Evidence | None = EVIDENCE) -> VariantTable:
    return VariantTable.build(
        [candidate("best", 0.889, 30.0), candidate("fast", 0.837, 4.0)],
        evidence=None if evidence is None else {"": evidence, "reviews": evidence},
    )


def test_a_table_knows_the_cascades_of_a_set_of_variants_and_a_population() -> None:
    made = table()
    assert made.cascades is not None
    assert made.cascades.populations == ("reviews",)
    cascade = made.cascades.of("", (0, 1))
    assert cascade is not None
    assert [(p.first, p.to) for p in cascade.pairs] == [(1, 0)]
    assert cascade.after == {1: cascade.pairs}
    assert made.cascades.of("", (0, 1)) is cascade
    assert made.cascades.of("", (0,)) is None
    assert made.cascades.of("tweets", (0, 1)) is None
    assert table(None).cascades is None


def test_new_evidence_makes_another_table() -> None:
    other = Evidence("reviews", CALIBRATIONS, (STEPS._replace(gains=(0.2, 0.1, 0.02, 0.0)),))
    assert table() == table()
    assert table() != table(other)


def test_who_allows_no_approximation_gets_the_most_accurate_variant_or_nobody() -> None:
    shapes = {TOKENIZER: Shape.of_lengths([10])}
    assert table().eligible(RequestClass(), shapes) == (0, 1)
    assert table().eligible(RequestClass(approximation=False), shapes) == (0,)


@pytest.mark.parametrize(
    ("evidence", "fault"),
    [
        (Evidence("p", {"fast": Calibration(0.0)}, ()), "temperature"),
        (Evidence("p", {"fast": Calibration(1.0, (1.0, 1.0))}, ()), "beta"),
        (Evidence("p", {}, (STEPS,)), "no calibration"),
        (Evidence("p", CALIBRATIONS, (STEPS._replace(gains=(0.1,)),)), "equally long"),
        (Evidence("p", CALIBRATIONS, (STEPS._replace(gains=(0.1, 0.2, 0.0, 0.0)),)), "in order"),
    ],
)
def test_evidence_that_makes_no_sense_is_told(evidence: Evidence, fault: str) -> None:
    assert any(fault in line for line in faults(evidence))
    assert faults(EVIDENCE) == []


def test_what_is_remembered_is_bounded() -> None:
    costs, qualities = [30.0, 4.0] + [50.0] * 600, [0.889, 0.837] + [0.1] * 600
    cascades = Cascades({"": EVIDENCE}, {"fast": 1, "best": 0}, costs, qualities, 0.002)
    first = cascades.of("", (0, 1))
    for extra in range(2, 602):
        assert cascades.of("", (0, 1, extra)) is not None
    assert cascades.of("", (0, 1)) is not first
