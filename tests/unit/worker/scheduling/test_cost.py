"""The cost of a step and its correction."""

from __future__ import annotations

import pytest

from worker.scheduling.cost import CorrectedCost, StepCost, StepLoad, load_of
from worker.scheduling.records import StepPart

COST = StepCost(
    step_us=1000.0, prefill_us_per_token=100.0, sequence_us=50.0, cached_us_per_token=1.0
)


def test_a_step_costs_its_parts() -> None:
    cost = CorrectedCost(COST)
    assert cost.predict_ns(StepLoad(10, 2, 300)) == 1e3 * (1000 + 1000 + 100 + 300)
    assert cost.rest_ns(2, 300) == 1e3 * (1000 + 100 + 300)
    assert cost.join_ns(40) == 1e3 * (50 + 40)


def test_parts_are_prompts_or_decode() -> None:
    parts = [
        StepPart(1, (5, 6, 7), 0, (0,), False),
        StepPart(2, (9,), 30, (1, 2), True),
        StepPart(3, (9,), 0, (3,), True),
    ]
    assert load_of(parts) == StepLoad(chunk_tokens=4, decoding=1, cached=30)


@pytest.mark.parametrize(("prefill", "rest"), [(2.0, 1.0), (0.5, 1.5), (1.0, 3.0)])
def test_both_corrections_find_what_is_true(prefill: float, rest: float) -> None:
    cost = CorrectedCost(COST)
    loads = [StepLoad(0, 4, 1000), StepLoad(60, 4, 1000)]
    for _ in range(200):
        for load in loads:
            took = prefill * COST.prefill_ns(load) + rest * COST.decode_ns(load)
            cost.learn(load, int(took))
    assert cost.corrections == pytest.approx((prefill, rest), rel=0.02)


def test_one_stalled_step_moves_little_and_nothing_runs_away() -> None:
    cost = CorrectedCost(COST)
    cost.learn(StepLoad(0, 1, 0), 10**12)
    assert cost.corrections[1] < 1.1
    for _ in range(1000):
        cost.learn(StepLoad(0, 1, 0), 10**12)
    assert cost.corrections == (1.0, 4.0)
    before = cost.corrections
    cost.learn(StepLoad(0, 1, 0), 0)
    assert cost.corrections == before


def test_costs_without_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="sequence_us is -1"):
        StepCost(1.0, 1.0, -1.0, 1.0)
    with pytest.raises(ValueError, match="must cost something"):
        StepCost(1.0, 0.0, 1.0, 1.0)
