"""The cost of a step, from steps of known cost."""

from __future__ import annotations

import pytest

from worker.generation.profile import StepSample, fit_steps, predict_us, step_shapes
from worker.scheduling.cost import StepCost


@pytest.mark.parametrize("context", [16, 17, 40, 64, 512, 8192])
def test_shapes_fit_into_the_context_and_tell_the_costs_apart(context: int) -> None:
    shapes = step_shapes(context)
    assert len(set(shapes)) == len(shapes)
    for shape in shapes:
        assert shape.chunk + shape.decoding > 0
        assert shape.chunk <= context
        assert shape.past % 16 == 0
        assert shape.past + 1 <= context
    if context >= 64:
        true = StepCost(5000.0, 1500.0, 900.0, 2.0)
        found = fit_steps([StepSample(shape, predict_us(true, shape)) for shape in shapes])
        assert found.step_us == pytest.approx(true.step_us, rel=1e-3)
        assert found.prefill_us_per_token == pytest.approx(true.prefill_us_per_token, rel=1e-3)
        assert found.sequence_us == pytest.approx(true.sequence_us, rel=1e-3)
        assert found.sigma < 1e-3


def test_what_costs_nothing_is_not_free() -> None:
    shapes = step_shapes(512)
    found = fit_steps([StepSample(shape, 10.0) for shape in shapes])
    assert min(found.step_us, found.prefill_us_per_token) > 0
    with pytest.raises(ValueError, match="at least one"):
        fit_steps([])
