"""The CPU plan follows the tightest limit around the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.cpu_plan import CpuPlan, OversubscribedError, check_threads, read_cpu_plan


def group(root: Path, name: str, quota: str, throttled: int = 0) -> None:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.max").write_text(quota + "\n")
    (folder / "cpu.stat").write_text(f"usage_usec 5\nnr_throttled {throttled}\n")


def plan_of(root: Path, own: str, affinity: int) -> CpuPlan:
    own_group = root / "self"
    own_group.write_text(f"1:name=x:/other\n0::{own}\n")
    return read_cpu_plan(affinity=affinity, cgroup_root=root, self_cgroup=own_group)


def test_the_tightest_enclosing_quota_counts(tmp_path: Path) -> None:
    group(tmp_path, "", "max 100000")
    group(tmp_path, "a", "250000 100000", throttled=7)
    group(tmp_path, "a/b", "400000 100000")
    plan = plan_of(tmp_path, "/a/b", 8)
    assert (plan.quota, plan.granted, plan.cores) == (2.5, 2.5, 2)
    assert (plan.binding, plan.throttled_periods) == ("quota", 7)


def test_affinity_counts_when_it_is_tighter(tmp_path: Path) -> None:
    group(tmp_path, "a", "400000 100000")
    plan = plan_of(tmp_path, "/a", 1)
    assert (plan.cores, plan.binding) == (1, "affinity" if plan.visible > 1 else "machine")


def test_a_fraction_of_a_core_still_runs_one_worker(tmp_path: Path) -> None:
    group(tmp_path, "a", "50000 100000")
    assert plan_of(tmp_path, "/a", 4).cores == 1


@pytest.mark.parametrize("content", ["", "garbage", "max"])
def test_what_cannot_be_read_is_no_limit(tmp_path: Path, content: str) -> None:
    (tmp_path / "cpu.max").write_text(content)
    assert plan_of(tmp_path, "/", 3).granted == 3.0


def test_without_control_groups_affinity_decides(tmp_path: Path) -> None:
    plan = read_cpu_plan(affinity=2, cgroup_root=tmp_path / "no", self_cgroup=tmp_path / "none")
    assert plan.quota is None and plan.cores == 2


def test_oversubscription_is_refused_with_the_numbers() -> None:
    plan = CpuPlan(visible=8, affinity=8, quota=2.5, throttled_periods=0)
    check_threads(plan, 2, 1)
    check_threads(plan, 1, 2)
    with pytest.raises(
        OversubscribedError, match=r"3 workers .* need 3 cores, 2.5 are granted \(limit: quota\)"
    ):
        check_threads(plan, 3, 1)
