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
def test_steps_teach_what_prompts_and_the_rest_take(prefill: float, rest: float) -> None:
    cost = CorrectedCost(COST)
    loads = [StepLoad(0, 4, 1000), StepLoad(60, 4, 1000)]
    for _ in range(400):
        for load in loads:
            cost.learn(load, _took(load, step=rest, prefill=prefill, sequence=rest, cached=rest))
    for load in loads:
        took = prefill * COST.prefill_ns(load) + rest * COST.decode_ns(load)
        assert cost.predict_ns(load) == pytest.approx(took, rel=0.02)


def test_narrow_steps_tell_what_wide_ones_take() -> None:
    """Each sequence takes three times its profile: a factor on the whole step would not do."""
    cost = CorrectedCost(COST)
    loads = [StepLoad(chunk, n, 50 * n) for n in (1, 2, 4, 8, 12) for chunk in (0, 20)]
    for _ in range(100):
        for load in loads:
            cost.learn(load, _took(load, sequence=3.0))
    wide = StepLoad(0, 24, 24 * 50)
    assert cost.predict_ns(wide) == pytest.approx(_took(wide, sequence=3.0), rel=0.1)
    assert cost.predict_ns(StepLoad(0, 1, 50)) == pytest.approx(1250e3, rel=0.05)
    assert cost.corrections.sequence > 1.6 > 1.2 > cost.corrections.step


def test_a_machine_that_becomes_slower_is_followed_within_some_steps() -> None:
    cost = CorrectedCost(COST)
    load = StepLoad(30, 4, 500)
    for _ in range(50):
        cost.learn(load, _took(load))
    for _ in range(40):
        cost.learn(load, int(1.6 * _took(load)))
    assert cost.predict_ns(load) == pytest.approx(1.6 * _took(load), rel=0.05)


def test_one_stalled_step_moves_little_and_nothing_runs_away() -> None:
    cost = CorrectedCost(COST)
    load = StepLoad(0, 1, 0)
    nominal = cost.predict_ns(load)
    cost.learn(load, 10**12)
    assert nominal < cost.predict_ns(load) < 1.2 * nominal
    for _ in range(1000):
        cost.learn(load, 10**12)
    assert cost.predict_ns(load) <= 8.0 * nominal * 1.001
    assert cost.token_ns > 0.0
    for _ in range(1000):
        cost.learn(load, 1)
    assert cost.predict_ns(load) >= 0.125 * nominal * 0.999
    before = cost.corrections
    cost.learn(load, 0)
    assert cost.corrections == before


def _took(
    load: StepLoad,
    *,
    step: float = 1.0,
    prefill: float = 1.0,
    sequence: float = 1.0,
    cached: float = 1.0,
) -> int:
    """What a step takes when the terms of the profile are off by these factors."""
    return int(
        1e3
        * (
            step * COST.step_us
            + prefill * COST.prefill_us_per_token * load.chunk_tokens
            + sequence * COST.sequence_us * load.decoding
            + cached * COST.cached_us_per_token * load.cached
        )
    )


def test_costs_without_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="sequence_us is -1"):
        StepCost(1.0, 1.0, -1.0, 1.0)
    with pytest.raises(ValueError, match="must cost something"):
        StepCost(1.0, 0.0, 1.0, 1.0)
