"""Shared runs and comparison policies on virtual time."""

import asyncio
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.errors import (
    Cancelled,
    Refused,
    TooLate,
)
from tests.unit.controlplane.fake_fleet import MS, House, model
from tests.unit.controlplane.virtual_loop import run, virtual


@pytest.mark.parametrize("policy", ["accurate", "cheap"])
def test_comparison_policies_run_on_the_same_dispatcher(policy: str) -> None:
    async def compare() -> None:
        house = House(policy=policy)
        house.join()
        futures = [house.submit(1000) for _ in range(5)]
        answers = await asyncio.gather(*futures)
        expected = "best" if policy == "accurate" else "fast"
        assert {answer.provenance.variant for answer in answers} == {expected}
        assert house.at_rest()
        house.close()

    run(compare())


@settings(max_examples=40, deadline=None)
@given(
    bursts=st.lists(
        st.lists(st.tuples(st.integers(1, 30), st.integers(20, 400)), min_size=1, max_size=12),
        min_size=1,
        max_size=8,
    ),
    cancelled=st.sets(st.integers(0, 95)),
    lost_after=st.integers(0, 12),
)
def test_everybody_gets_his_own_answer_or_an_error(
    bursts: list[list[tuple[int, int]]], cancelled: set[int], lost_after: int
) -> None:
    """Case 14: shared runs, results in any order, cancels and a lost worker in between."""

    async def storm() -> None:
        house = House(max_batch=8, prefetch=2)
        shared = model(fixed_share=0.7)
        for _ in range(2):
            house.join(models=(shared,), change=lambda worker: setattr(worker, "mixed", True))
        futures = {}
        requests = []
        for turn, burst in enumerate(bursts):
            for tokens, deadline_ms in burst:
                request = house.ask(deadline_ms, tokens=tokens)
                requests.append(request)
                with contextlib.suppress(Refused, TooLate):
                    futures[request.id] = house.dispatcher.submit(request)
            if turn == lost_after:
                house.leave(house.workers[0])
            await house.pass_ms(4)
            for place in cancelled:
                if place < len(requests):
                    house.dispatcher.cancel(requests[place])
        for request_id, future in futures.items():
            try:
                answer = await future
            except (Refused, TooLate, Cancelled):
                continue
            assert answer.outputs[0].data == request_id.to_bytes(8, "little")
        await house.pass_ms(500)
        assert house.at_rest()
        executed = [request for worker in house.workers for request in worker.executed]
        assert len(executed) <= sum(r.dispatches for r in requests)
        assert house.dispatcher.counters.expired_work_executed == 0
        house.close()

    run(storm())


@virtual
async def test_a_burst_shares_runs_where_that_pays() -> None:
    """Cases 12 and 13: lengths differ, the runs are shared, and all together are faster."""
    house = House(max_batch=8)
    house.join(models=(model(fixed_share=0.8),))
    lengths = [2, 9, 30, 5, 14, 7, 3, 22]
    futures = [house.dispatcher.submit(house.ask(400, tokens=n)) for n in lengths]
    answers = await asyncio.gather(*futures)
    assert max(answer.outcome.batch_size for answer in answers) > 1
    alone = 8 * 8 * MS + 92 * MS // 5
    assert sum(answer.outcome.charged_cpu_ns for answer in answers) < 0.6 * alone
    assert house.loop.now_ns() < 0.6 * alone
    house.close()
