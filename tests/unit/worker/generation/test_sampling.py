"""The choice of a token against plain definitions of each filter."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.errors import EngineFault, InvalidInput
from worker.generation.penalties import PenaltyParameters
from worker.generation.sampling import (
    Choice,
    Row,
    Sampler,
    SamplingParameters,
    draw,
    exponentials,
    generator_of,
    kept,
    most_likely,
    score,
)

rows = st.lists(st.integers(-40, 40), min_size=2, max_size=60).map(
    lambda values: np.array(values, np.float32) / 4
)


def softmax(row: Row, temperature: float = 1.0) -> np.ndarray:
    weights = np.exp((row.astype(np.float64) - row.max()) / temperature)
    return np.asarray(weights / weights.sum())


def plainly_kept(row: Row, parameters: SamplingParameters) -> list[int]:
    """The filters one after the other, over sorted lists of the same exponentials."""
    chances = [float(each) for each in exponentials(row, parameters.temperature)]
    order = sorted(range(len(row)), key=lambda i: (-float(row[i]), i))
    order = order[: parameters.top_k or len(order)]
    if 0 < parameters.top_p < 1:
        wanted = parameters.top_p * sum(chances[i] for i in order)
        total, count = 0.0, 0
        while total < wanted * (1 - 1e-12) and count < len(order):
            total += chances[order[count]]
            count += 1
        order = order[:count]
    return [i for i in order if chances[i] >= np.float32(parameters.min_p)]


def test_without_parameters_the_most_likely_is_chosen() -> None:
    row = np.array([0.5, 3.0, -1.0, 3.0], np.float32)
    assert Sampler(SamplingParameters(), None, vocabulary=4).choose(row) == Choice(1)
    cold = SamplingParameters(temperature=1e-50)
    assert Sampler(cold, None, vocabulary=4).choose(row) == Choice(1)


@settings(deadline=None)
@given(
    row=rows,
    temperature=st.sampled_from([0.2, 1.0, 3.0]),
    top_k=st.integers(0, 20),
    top_p=st.sampled_from([0.0, 0.123, 0.517, 0.911, 1.0]),
    min_p=st.sampled_from([0.0, 0.0513, 0.417]),
)
def test_filters_keep_what_their_definitions_keep(
    row: Row, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    parameters = SamplingParameters(temperature, top_k, top_p, min_p)
    some, weights = kept(row, parameters)
    ids = np.arange(len(row)) if some is None else some
    assert sorted(ids.tolist()) == sorted(plainly_kept(row, parameters))
    chances = softmax(row, temperature)[ids]
    np.testing.assert_allclose(
        weights / weights.sum(), chances / chances.sum(), rtol=1e-5, atol=1e-9
    )


def test_a_nucleus_may_need_most_of_a_large_vocabulary() -> None:
    row = np.zeros(5000, np.float32)
    ids, _ = kept(row, SamplingParameters(temperature=1.0, top_p=0.5))
    assert ids is not None
    assert ids.tolist() == list(range(2500))
    row[[7, 4000]] = 1.0
    ids, weights = kept(row, SamplingParameters(temperature=1.0, top_p=0.5))
    assert ids is not None
    assert {7, 4000} <= set(ids.tolist())
    # The two are e times as likely as each of the others.
    wanted = 0.5 * (2 + 4998 / np.e)
    assert weights.sum() - 1 < wanted <= weights.sum() + 1e-3


@settings(deadline=None)
@given(
    seed=st.integers(0, 10_000),
    size=st.integers(257, 1500),
    spread=st.sampled_from([0.0, 0.01, 0.5, 3.0]),
    steps=st.sampled_from([1, 7, 1000]),
    top_p=st.sampled_from([0.123, 0.517, 0.911, 0.9987]),
)
def test_a_large_nucleus_is_what_its_definition_keeps(
    seed: int, size: int, spread: float, steps: int, top_p: float
) -> None:
    logits = np.random.default_rng(seed).normal(0, spread, size)
    row = (np.round(logits * steps) / steps).astype(np.float32)
    parameters = SamplingParameters(temperature=1.0, top_p=top_p)
    ids, _ = kept(row, parameters)
    assert ids is not None
    assert sorted(ids.tolist()) == sorted(plainly_kept(row, parameters))


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=900).map(np.array),
    st.integers(1, 900),
)
def test_the_most_likely_are_the_first_of_all_in_order(values: np.ndarray, count: int) -> None:
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
    assert most_likely(values.astype(np.float32), min(count, len(values))).tolist() == expected


@settings(deadline=None)
@given(
    weights=st.lists(st.integers(0, 9), min_size=1, max_size=300).filter(any).map(np.array),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_a_draw_follows_the_running_sum(weights: np.ndarray, chance: float) -> None:
    place = draw(None, weights.astype(np.float32), chance)
    wanted = chance * weights.sum()
    assert weights[:place].sum() <= wanted <= weights[: place + 1].sum()
    assert draw(np.arange(len(weights)) + 5, weights.astype(np.float32), chance) == place + 5


def test_draws_come_as_often_as_they_are_likely() -> None:
    row = np.log(np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    sampler = Sampler(SamplingParameters(temperature=1.0), generator_of(7, 0), vocabulary=4)
    counts = np.bincount([sampler.choose(row).token for _ in range(20_000)], minlength=4)
    np.testing.assert_allclose(counts / 20_000, [0.1, 0.2, 0.3, 0.4], atol=0.015)


def test_a_seed_gives_the_same_tokens_and_each_answer_its_own() -> None:
    row = np.zeros(1000, np.float32)
    parameters = SamplingParameters(temperature=1.0, seed=5)

    def tokens(answer: int) -> list[int]:
        sampler = Sampler(parameters, generator_of(5, answer), vocabulary=1000)
        return [sampler.choose(row).token for _ in range(20)]

    assert tokens(0) == tokens(0)
    assert tokens(0) != tokens(1)


def test_penalties_come_before_the_choice_and_not_before_its_log_probability() -> None:
    row = np.array([4.0, 3.0, -1.0, -1.5], np.float32)
    penalties = PenaltyParameters(repetition=2.0)
    parameters = SamplingParameters(penalties=penalties)
    sampler = Sampler(parameters, None, vocabulary=4, occurred=[0], logprobs=0)
    # The prompt's token first, then what was chosen itself.
    choices = [sampler.choose(row) for _ in range(2)]
    assert [choice.token for choice in choices] == [1, 0]
    assert choices[0].scored == score(row, 1, 0)[0]
    assert row[0] == 4.0


@settings(deadline=None)
@given(row=rows, alternatives=st.integers(0, 20))
def test_log_probabilities_are_those_of_the_logits(row: Row, alternatives: int) -> None:
    expected = np.log(softmax(row))
    chosen, others = score(row, 1, alternatives)
    assert math.isclose(chosen.logprob, expected[1], rel_tol=1e-5, abs_tol=1e-5)
    order = sorted(range(len(row)), key=lambda i: (-float(row[i]), i))[:alternatives]
    assert [other.token for other in others] == order
    for other in others:
        assert math.isclose(other.logprob, expected[other.token], rel_tol=1e-5, abs_tol=1e-5)


def test_logits_that_are_no_numbers_are_a_fault() -> None:
    sampler = Sampler(SamplingParameters(), None, vocabulary=3)
    for bad in (math.nan, math.inf):
        with pytest.raises(EngineFault):
            sampler.choose(np.array([0.0, bad, 1.0], np.float32))


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        (SamplingParameters(temperature=-0.1), "temperature is -0.1; accepted is 0 to 10"),
        (SamplingParameters(temperature=math.nan), "temperature is nan"),
        (SamplingParameters(top_p=1.5), "top_p is 1.5; accepted is 0 to 1"),
        (SamplingParameters(min_p=-1), "min_p"),
        (SamplingParameters(penalties=PenaltyParameters(repetition=-2)), "repetition_penalty"),
    ],
)
def test_parameters_out_of_range_are_named(parameters: SamplingParameters, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        parameters.check()
