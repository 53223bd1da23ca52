"""What penalties and biases make of a row of logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.errors import InvalidInput
from worker.generation.penalties import MOST_BIASES, Penalties, PenaltyParameters

_SIZE = 6
rows = st.lists(st.floats(-30, 30, width=32), min_size=_SIZE, max_size=_SIZE)
tokens = st.lists(st.integers(0, _SIZE - 1), max_size=12)
amounts = st.floats(-2, 2, width=32)
biases = st.dictionaries(st.integers(0, _SIZE - 1), st.floats(-100, 100, width=32))


@settings(deadline=None)
@given(
    row=rows,
    prompt=tokens,
    answer=tokens,
    presence=amounts,
    frequency=amounts,
    repetition=st.floats(0.25, 4, width=32),
    bias=biases,
)
def test_a_row_is_biased_then_penalised_by_what_occurred(
    row: list[float],
    prompt: list[int],
    answer: list[int],
    presence: float,
    frequency: float,
    repetition: float,
    bias: dict[int, float],
) -> None:
    parameters = PenaltyParameters(repetition, presence, frequency, tuple(bias.items()))
    parameters.check()
    penalties = Penalties(parameters, vocabulary=_SIZE, occurred=prompt)
    for token in answer:
        penalties.chose(token)
    logits = np.array(row, np.float32)
    made = penalties.applied(logits)
    np.testing.assert_array_equal(logits, np.array(row, np.float32))
    for token, logit in enumerate(row):
        expected = logit + bias.get(token, 0.0)
        if token in (*prompt, *answer):
            expected = expected / repetition if expected > 0 else expected * repetition
        count = answer.count(token)
        expected -= frequency * count + (presence if count else 0.0)
        assert math.isclose(float(made[token]), expected, rel_tol=1e-5, abs_tol=1e-3)


def test_the_prompt_counts_for_repetition_only() -> None:
    penalties = Penalties(PenaltyParameters(presence=2.0), vocabulary=2, occurred=[0])
    row = np.zeros(2, np.float32)
    assert penalties.applied(row).tolist() == [0.0, 0.0]
    penalties.chose(1)
    assert penalties.applied(row).tolist() == [0.0, -2.0]


def test_what_asks_for_nothing_is_idle() -> None:
    assert PenaltyParameters().idle and PenaltyParameters(repetition=1.0).idle
    asked = [
        PenaltyParameters(repetition=1.1),
        PenaltyParameters(presence=-0.1),
        PenaltyParameters(frequency=0.1),
        PenaltyParameters(bias=((0, 1.0),)),
    ]
    assert not any(each.idle for each in asked)


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        (PenaltyParameters(repetition=1e-300), "repetition_penalty is 1e-300"),
        (PenaltyParameters(presence=2.5), "presence_penalty is 2.5; accepted is -2 to 2"),
        (PenaltyParameters(frequency=math.nan), "frequency_penalty is nan"),
        (PenaltyParameters(bias=((7, -101.0),)), "logit_bias of token 7 is -101"),
        (PenaltyParameters(bias=((0, 0.0),) * (MOST_BIASES + 1)), "logit_bias has 1025"),
    ],
)
def test_parameters_out_of_range_are_named(parameters: PenaltyParameters, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        parameters.check()
