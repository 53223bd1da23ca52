"""The planner's chain: closed forms where there are any, and its refusals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from controlplane.policy.profiles import Candidate, VariantProfile, VariantTable
from controlplane.policy.provision import Traffic, outlook, plan
from controlplane.policy.queueing import erlang_c

MS = 1_000_000


def table(*services_ms: float) -> VariantTable:
    """Variants of these services for one token, slower ones better, without any spread."""
    return VariantTable.build(
        [
            Candidate(
                name=f"v{n}",
                tokenizer="words",
                quality=0.9 - 0.1 * n,
                profile=VariantProfile(s0_ns=ms * MS, s1_ns=0.0, reference_tokens=1),
                batchable=False,
            )
            for n, ms in enumerate(services_ms)
        ]
    )


def every(variants: VariantTable) -> Sequence[int]:
    return range(len(variants))


def test_one_variant_without_deadline_is_erlangs_queue() -> None:
    one = table(10.0)
    # Constant services and scv 2 of arrivals: V = 1, the chain is M/M/c.
    asked = Traffic(250.0, 3_600_000 * MS, (1,), arrival_scv=2.0, trip_ns=0.0)
    found = outlook(one, every(one), asked, 3)
    assert found.utilisation == pytest.approx(250.0 * 0.01 / 3, rel=1e-3)
    assert found.waiting == pytest.approx(erlang_c(3, 2.5), rel=1e-2)
    assert found.on_time == pytest.approx(1.0, abs=1e-6)
    assert found.mix == {"v0": pytest.approx(1.0)}


def test_a_short_deadline_refuses_about_what_erlang_b_loses_and_more() -> None:
    one = table(10.0)
    asked = Traffic(300.0, 11 * MS, (1,), trip_ns=0.0)
    found = outlook(one, every(one), asked, 3)
    # Whoever does not find a worker free or about to be is refused.
    assert 0.2 < found.refused < 0.4
    assert found.on_time + found.refused + found.late == pytest.approx(1.0)


def test_more_workers_mean_better_answers() -> None:
    three = table(30.0, 10.0, 4.0)
    asked = Traffic(300.0, 90 * MS, (1,))
    found = [outlook(three, every(three), asked, c) for c in range(2, 15)]
    assert [o.workers for o in found] == list(range(2, 15))
    assert found[-1].mix["v0"] > 0.95 > 0.2 > found[0].mix.get("v0", 0.0)
    assert found[-1].quality > found[3].quality > found[0].quality
    for one in found:
        assert sum(one.mix.values()) == pytest.approx(1.0, abs=0.01)


def test_the_fewest_workers_stand_second_after_one_fewer() -> None:
    three = table(30.0, 10.0, 4.0)
    asked = Traffic(700.0, 60 * MS, (1,))
    fewer, enough, *more = plan(three, every(three), asked, 0.95)
    assert fewer.workers + 1 == enough.workers
    assert fewer.on_time < 0.95 <= enough.on_time
    assert [o.workers for o in more] == sorted({o.workers for o in more})
    assert enough.workers >= math.ceil(700.0 * 0.004 * 0.95)


def test_bursts_need_more_workers() -> None:
    two = table(12.0, 5.0)

    def workers(burst: float) -> int:
        asked = Traffic(600.0, 40 * MS, (1,), arrival_scv=burst)
        return next(o.workers for o in plan(two, every(two), asked, 0.99) if o.on_time >= 0.99)

    assert workers(1.0) <= workers(6.0) < workers(30.0)


def test_what_no_number_of_workers_can_do_is_said() -> None:
    one = table(10.0)
    with pytest.raises(ValueError, match="give a longer deadline"):
        plan(one, every(one), Traffic(10.0, 5 * MS, (1,)), 0.9)
    with pytest.raises(ValueError, match="more than the best variant's"):
        plan(one, every(one), Traffic(10.0, 50 * MS, (1,)), 0.9, 0.95)
    with pytest.raises(ValueError, match="percentile"):
        plan(one, every(one), Traffic(10.0, 50 * MS, (1,)), 1.0)
    for wrong in ((0.0, MS, (1,)), (1.0, 0, (1,)), (1.0, MS, ())):
        with pytest.raises(ValueError, match="above 0"):
            Traffic(*wrong)
    with pytest.raises(ValueError, match="burst"):
        Traffic(1.0, MS, (1,), arrival_scv=0.0)
    with pytest.raises(ValueError, match="workers"):
        outlook(one, every(one), Traffic(1.0, MS, (1,)), 0)


def test_a_traffic_for_more_workers_than_anybody_has_is_refused_at_once() -> None:
    one = table(10.0)
    with pytest.raises(ValueError, match="takes 1000000 workers or more; this plans for at most"):
        plan(one, every(one), Traffic(1e8, 200 * MS, (1,)), 0.99)
