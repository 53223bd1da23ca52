"""Who owns which cores."""

from __future__ import annotations

import pytest

from deploy.budget import CoreBudget, core_budget, decode_share
from worker.cpu_plan import CpuPlan, OversubscribedError

FOUR = CpuPlan(4, (0, 1, 2, 3))


def test_each_class_keeps_to_its_own_cores() -> None:
    budget = core_budget(FOUR, encoders=None, encoder_threads=1, decode_threads=2)
    assert budget == CoreBudget(2, 1, 2, (0, 1), (2, 3))
    fewer = core_budget(FOUR, encoders=1, encoder_threads=2, decode_threads=1)
    assert (fewer.encoder_cpus, fewer.decode_cpus) == ((0, 1, 2), (3,))


def test_one_class_alone_has_all() -> None:
    alone = core_budget(FOUR, encoders=None, encoder_threads=1, decode_threads=0)
    assert alone == CoreBudget(4, 1, 0)
    assert core_budget(FOUR, encoders=0, encoder_threads=1, decode_threads=4).encoder_cpus == ()
    assert decode_share(FOUR, encoders=False) == 4
    assert decode_share(FOUR, encoders=True) == 2
    assert decode_share(CpuPlan(1, (0,)), encoders=True) == 1


def test_a_quota_grants_time_and_no_cpus() -> None:
    plan = CpuPlan(8, tuple(range(8)), quota=2.0)
    budget = core_budget(plan, encoders=None, encoder_threads=1, decode_threads=1)
    assert budget == CoreBudget(1, 1, 1)


def test_more_than_there_is_is_refused_with_the_numbers() -> None:
    one = CpuPlan(1, (0,))
    with pytest.raises(
        OversubscribedError, match=r"1 workers with 1 .* decode worker with 1 need 2 cores, 1 are"
    ):
        core_budget(one, encoders=None, encoder_threads=1, decode_threads=1)
    shared = core_budget(
        one, encoders=None, encoder_threads=1, decode_threads=1, oversubscribe=True
    )
    assert shared == CoreBudget(1, 1, 1)
    with pytest.raises(OversubscribedError, match=r"9 workers with 1 .* need 9 cores, 4 are"):
        core_budget(FOUR, encoders=9, encoder_threads=1, decode_threads=0)
