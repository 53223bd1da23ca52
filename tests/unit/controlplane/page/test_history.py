"""The history: differences of counters, bounded, and the rates made of them."""

import pytest

from controlplane.page.history import (
    Counts,
    History,
    ModelCounts,
    first_tokens,
    quantile,
    rates,
    tokens_per_s,
)


def counts(choices: int = 0, **models: ModelCounts) -> Counts:
    return Counts(choices=choices, offered=choices, models=models)


def test_a_sample_is_what_counters_gained() -> None:
    history = History()
    history.add(counts(5, m=ModelCounts({"answered": 5}, {(0, "best"): 5})), 1.0)
    assert history.samples() == () and history.last() == ()
    after = ModelCounts({"answered": 9, "refused": 1}, {(0, "best"): 6, (0, "fast"): 3}, queued=2)
    history.add(counts(11, m=after), 2.5)
    (sample,) = history.samples()
    assert (sample.at_s, sample.seconds, sample.choices) == (2.5, 1.5, 6)
    gained = sample.models["m"]
    assert gained.outcomes == {"answered": 4, "refused": 1}
    assert gained.variants == {"best": 1, "fast": 3}
    assert gained.queued == 2


def test_the_ring_is_bounded_and_knows_what_is_recent() -> None:
    history = History(most=5)
    for second in range(20):
        history.add(counts(second), float(second))
    assert [sample.at_s for sample in history.samples()] == [15.0, 16.0, 17.0, 18.0, 19.0]
    assert [sample.at_s for sample in history.recent(2.0)] == [19.0, 18.0]
    assert history.last() == history.samples()[-1:]


def test_a_model_that_comes_back_did_not_do_everything_again() -> None:
    history = History()
    history.add(counts(), 0.0)
    history.add(counts(m=ModelCounts({"answered": 100}, {(1, "q4"): 100})), 1.0)
    history.add(counts(), 2.0)
    history.add(counts(m=ModelCounts({"answered": 101}, {(2, "q4"): 1})), 3.0)
    gained = history.samples()[-1].models["m"]
    assert gained.outcomes == {"answered": 1} and gained.variants == {"q4": 1}


def test_tokens_of_a_worker_that_was_there_before_do_not_count_as_new() -> None:
    history = History()
    history.add(counts(m=ModelCounts(tokens={(1, "q4"): 1000})), 0.0)
    history.add(counts(m=ModelCounts(tokens={(1, "q4"): 1040, (2, "q4"): 5000})), 1.0)
    # The first worker was started again: what it counts is smaller now.
    history.add(counts(m=ModelCounts(tokens={(1, "q4"): 3, (2, "q4"): 5010})), 2.0)
    assert [sample.models["m"].tokens for sample in history.samples()] == [40, 10]
    assert tokens_per_s(history.samples(), "m") == 25.0
    assert tokens_per_s(history.samples(), "other") == 0.0


def test_rates_leave_out_what_callers_did_themselves() -> None:
    history = History()
    history.add(counts(), 0.0)
    ended = {"answered": 6, "too-late": 2, "refused": 2, "cancelled": 5, "invalid": 5}
    history.add(counts(m=ModelCounts(ended), other=ModelCounts({"answered": 10})), 2.0)
    of_model = rates(history.samples(), "m")
    assert (of_model.ended_per_s, of_model.answered_per_s) == (10.0, 3.0)
    assert (of_model.refused_per_s, of_model.on_time_share) == (1.0, 0.6)
    assert rates(history.samples()).on_time_share == 0.8
    nothing = rates((), "m")
    assert (nothing.seconds, nothing.answered_per_s, nothing.on_time_share) == (0.0, 0.0, None)


def test_first_tokens_are_those_of_the_samples() -> None:
    bounds = [1_000_000, 2_000_000]
    history = History()
    history.add(counts(m=ModelCounts(first_tokens=(4, 0, 0))), 0.0)
    history.add(counts(m=ModelCounts(first_tokens=(4, 10, 0))), 1.0)
    history.add(counts(m=ModelCounts(first_tokens=(4, 10, 0))), 2.0)
    assert history.samples()[-1].models["m"].first_tokens == ()
    found = first_tokens(history.samples(), "m", bounds)
    assert found is not None
    assert (found.count, found.p50_ms) == (10, 1.5)
    assert found.p95_ms == pytest.approx(1.95)
    assert first_tokens(history.samples(), "other", bounds) is None


def test_a_quantile_is_inside_its_bucket() -> None:
    assert quantile([2, 2, 0], [10, 20], 0.5) == 10.0
    assert quantile([0, 4, 0], [10, 20], 0.25) == 12.5
    assert quantile([0, 0, 3], [10, 20], 0.5) == 20.0
