"""Running sums against plain sums over everything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.ledgers import OVERDUE_SHARE, BusyWork, FreeTimes, QueuedWork, remaining_ns

SLOT = 1 << 21
REQUESTS = st.lists(
    st.tuples(st.integers(0, 8000), st.integers(0, 2), st.integers(1, 10**8)), max_size=60
)


@given(REQUESTS, st.integers(0, 8000))
def test_work_due_by_a_deadline_is_the_plain_sum(
    requests: list[tuple[int, int, int]], until: int
) -> None:
    start = 12345
    work = QueuedWork(3)
    for slot, variant, nominal in requests:
        work.add((start + slot) * SLOT, variant, nominal)
    due = sum(nominal for slot, _, nominal in requests if slot <= until)
    assert work.due_by((start + until) * SLOT, start * SLOT) == due
    assert work.total == sum(nominal for _, _, nominal in requests)
    factors = [1.0, 2.0, 0.5]
    plain = sum(nominal * factors[variant] for _, variant, nominal in requests)
    assert work.corrected(factors) == pytest.approx(plain)


@given(REQUESTS)
def test_what_goes_in_comes_out_to_exactly_zero(requests: list[tuple[int, int, int]]) -> None:
    work = QueuedWork(3)
    for slot, variant, nominal in requests:
        work.add(slot * SLOT, variant, nominal)
    for slot, variant, nominal in requests:
        work.remove(slot * SLOT, variant, nominal)
    assert work.total == 0
    assert work.per_variant == [0, 0, 0]
    assert work.due_by(8000 * SLOT, 0) == 0


def test_deadlines_beyond_the_ring_count_as_its_last_slot() -> None:
    work = QueuedWork(1)
    work.add(5 * SLOT, 0, 100)
    assert work.due_by(10**9 * SLOT, 0) == 100
    assert work.due_by(4 * SLOT, 0) == 0


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**6)), max_size=30),
    st.lists(st.integers(0, 10**5), min_size=1, max_size=8),
    st.data(),
)
def test_busy_work_is_the_sum_of_residuals(
    runs: list[tuple[int, int]], steps: list[int], data: st.DataObject
) -> None:
    busy = BusyWork()
    alive = dict(enumerate(runs))
    for number, (predicted, started) in alive.items():
        busy.start(number, predicted, started)
    now = 10**6
    for step in steps:
        now += step
        plain = sum(remaining_ns(predicted, started, now) for predicted, started in alive.values())
        assert busy.residual_ns(now) == plain
        if alive:
            gone = data.draw(st.sampled_from(sorted(alive)))
            busy.stop(gone)
            del alive[gone]
    for number in alive:
        busy.stop(number)
    assert busy.residual_ns(now) == 0
    assert len(busy) == 0


def test_runs_that_wait_on_a_worker_count_in_full() -> None:
    busy = BusyWork()
    busy.wait(700)
    assert busy.residual_ns(10**9) == 700
    busy.unwait(700)
    assert busy.residual_ns(10**9) == 0


def test_an_overdue_run_keeps_a_share_of_its_prediction() -> None:
    assert remaining_ns(1000, 0, 400) == 600
    assert remaining_ns(1000, 0, 10_000) == int(1000 * OVERDUE_SHARE)


@given(
    st.lists(st.integers(0, 1000), max_size=12),
    st.integers(0, 5),
    st.integers(0, 20_000),
)
def test_the_wait_is_the_level_to_which_queued_work_fills_the_workers(
    residuals: list[int], idle: int, queued: int
) -> None:
    workers = len(residuals) + idle
    if not workers:
        return
    now = 5000
    free = FreeTimes()
    for residual in residuals:
        free.add(now + residual)
    level = free.wait_ns(queued, workers, now)
    everyone = [*residuals, *([0] * idle)]
    if queued:
        filled = sum(max(0.0, level - residual) for residual in everyone)
        assert filled == pytest.approx(queued, abs=1e-6)
    else:
        assert level == min(everyone)
    for residual in residuals:
        free.remove(now + residual)
    assert len(free) == 0
    assert free.wait_ns(30, 3, now) == 10.0


def test_overdue_workers_count_as_free() -> None:
    free = FreeTimes()
    free.add(100)
    free.add(900)
    assert free.wait_ns(0, 2, 500) == 0.0
    assert free.wait_ns(200, 2, 500) == 200.0
