"""Prediction, the frontier, and who may answer what."""

import pytest

from controlplane.errors import NotFound, Unsatisfiable
from controlplane.policy.profiles import Candidate, VariantProfile, VariantTable, dominated
from controlplane.policy.records import RequestClass, Shape
from tests.unit.controlplane.policy.world import candidate

WORDS = {"words": Shape.of_lengths([10])}


def names(table: VariantTable, klass: RequestClass, shapes: dict[str, Shape]) -> list[str]:
    return [table.candidates[k].name for k in table.eligible(klass, shapes)]


def test_a_run_costs_its_tokens_and_their_squares() -> None:
    profile = VariantProfile(s0_ns=100.0, s1_ns=10.0, s2_ns=1.0)
    shape = Shape.of_lengths([3, 4])
    assert shape == Shape(items=2, tokens=7, squared_tokens=25, longest_tokens=4)
    assert profile.predict(shape) == 100 + 70 + 25
    assert profile.predict(shape, [Shape.of_lengths([2])]) == 100 + 90 + 29


def test_a_prediction_is_never_nothing() -> None:
    assert VariantProfile(s0_ns=0.0, s1_ns=0.0).predict(Shape(1, 0, 0)) == 1


def test_dominated_variants_are_named_with_what_beats_them() -> None:
    candidates = [
        candidate("slow-and-good", 0.9, 10.0),
        candidate("slow-and-worse", 0.85, 11.0),
        candidate("fast", 0.8, 4.0),
        candidate("same-as-fast", 0.8, 4.0),
        candidate("fastest", 0.7, 2.0),
    ]
    assert dominated(candidates, WORDS) == {
        "slow-and-worse": "slow-and-good",
        "same-as-fast": "fast",
    }


def test_a_gain_below_the_resolution_does_not_pay_for_a_slower_variant() -> None:
    candidates = [
        candidate("twice-the-cost", 0.9009, 20.0),
        candidate("good", 0.9, 10.0),
        candidate("better", 0.95, 30.0),
    ]
    assert dominated(candidates, WORDS, 0.002) == {"twice-the-cost": "good"}
    assert dominated(candidates, WORDS) == {}


def test_a_floor_still_reaches_a_variant_below_the_resolution() -> None:
    table = VariantTable.build(
        [candidate("slow", 0.9009, 20.0), candidate("good", 0.9, 10.0)], resolution=0.002
    )
    assert names(table, RequestClass(), WORDS) == ["good"]
    assert names(table, RequestClass(minimum_quality=0.9005), WORDS) == ["slow"]


def test_the_table_is_ordered_by_quality_and_leaves_the_dominated_out() -> None:
    table = VariantTable.build(
        [candidate("fast", 0.8, 4.0), candidate("best", 0.9, 10.0), candidate("bad", 0.7, 5.0)]
    )
    assert [c.name for c in table.candidates] == ["best", "fast", "bad"]
    assert table.dominated == {"bad": "fast"}
    assert names(table, RequestClass(), WORDS) == ["best", "fast"]


def test_a_pin_reaches_even_a_dominated_variant() -> None:
    table = VariantTable.build([candidate("best", 0.9, 4.0), candidate("bad", 0.7, 5.0)])
    assert names(table, RequestClass(variant="bad"), WORDS) == ["bad"]
    with pytest.raises(NotFound, match=r"'other'.*best, bad"):
        table.eligible(RequestClass(variant="other"), WORDS)


def test_prohibiting_the_dominating_variant_brings_back_the_dominated() -> None:
    table = VariantTable.build([candidate("best", 0.9, 4.0), candidate("next", 0.8, 5.0)])
    assert names(table, RequestClass(prohibited=frozenset({"best"})), WORDS) == ["next"]


def test_floors_hold_and_an_unreachable_floor_says_what_there_is() -> None:
    table = VariantTable.build([candidate("best", 0.9, 10.0), candidate("fast", 0.8, 4.0)])
    assert names(table, RequestClass(minimum_quality=0.85), WORDS) == ["best"]
    with pytest.raises(Unsatisfiable, match=r"best: quality 0\.9000 is below the floor 0\.9500"):
        table.eligible(RequestClass(minimum_quality=0.95), WORDS)


def test_a_pinned_variant_without_evidence_says_so_and_nothing_of_the_others() -> None:
    table = VariantTable.build([candidate("best", 0.9, 10.0), candidate("unmeasured", 0.0, 12.0)])
    expected = (
        r"answer: unmeasured: no measured quality, so it meets no floor \(0\.5000 is asked\)$"
    )
    with pytest.raises(Unsatisfiable, match=expected):
        table.eligible(RequestClass(variant="unmeasured", minimum_quality=0.5), WORDS)


def test_tokens_of_one_tokenizer_reach_its_variants_only() -> None:
    table = VariantTable.build(
        [candidate("best", 0.9, 4.0), candidate("own", 0.8, 5.0, tokenizer="other")]
    )
    assert names(table, RequestClass(), {"other": Shape.of_lengths([10])}) == ["own"]
    with pytest.raises(Unsatisfiable, match="takes tokens of"):
        table.eligible(RequestClass(), {"third": Shape.of_lengths([10])})


def test_a_long_text_goes_to_variants_that_take_it_whole() -> None:
    table = VariantTable.build(
        [candidate("short", 0.9, 4.0, max_tokens=8), candidate("long", 0.8, 5.0, max_tokens=64)]
    )
    assert names(table, RequestClass(), WORDS) == ["long"]
    assert names(table, RequestClass(), {"words": Shape.of_lengths([8])}) == ["short"]
    with pytest.raises(Unsatisfiable, match="takes 64 tokens, the request has 65"):
        table.eligible(RequestClass(), {"words": Shape.of_lengths([65])})


def test_answers_about_eligibility_are_remembered_within_bounds() -> None:
    table = VariantTable.build([candidate("best", 0.9, 4.0)])
    for step in range(3000):
        table.eligible(RequestClass(minimum_quality=step / 10_000), WORDS)
    assert len(table._remembered) <= 1024


def test_tensor_variants_have_no_lengths() -> None:
    adder = Candidate("adder", "", 0.0, VariantProfile(s0_ns=1000.0, s1_ns=0.0))
    table = VariantTable.build([adder])
    assert names(table, RequestClass(), {"": Shape(1, 0, 0)}) == ["adder"]
