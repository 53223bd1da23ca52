from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.cpu_plan import (
    CpuPlan,
    OversubscribedError,
    Throttling,
    check_threads,
    parse_cpus,
    parse_quota,
    read_cpu_plan,
    read_throttling,
)


class Tree:
    """A fabricated control group tree and the process's place in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lines: list[str] = []

    def put(self, path: str, content: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content + "\n")

    def inside(self, *lines: str) -> None:
        self._lines = list(lines)

    def plan(self, affinity: range = range(8), visible: int = 8) -> CpuPlan:
        own = self.root / "self"
        own.write_text("\n".join(self._lines) + "\n")
        return read_cpu_plan(
            affinity=affinity, visible=visible, cgroup_root=self.root, self_cgroup=own
        )


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_the_tightest_enclosing_quota_counts_with_its_throttling(tree: Tree) -> None:
    tree.inside("1:name=x:/elsewhere", "0::/a/b")
    tree.put("cpu.max", "max 100000")
    tree.put("a/cpu.max", "250000 100000")
    tree.put("a/cpu.stat", "usage_usec 5\nnr_periods 40\nnr_throttled 7\nthrottled_usec 900")
    tree.put("a/b/cpu.max", "400000 100000")
    plan = tree.plan()
    assert (plan.quota, plan.granted, plan.cores, plan.binding) == (2.5, 2.5, 2, "quota")
    assert plan.throttling == Throttling(40, 7, 900)
    assert plan.throttled_periods == 7


def test_version_1_quota_and_cpuset_are_read(tree: Tree) -> None:
    tree.inside("3:cpuset:/box", "2:cpu,cpuacct:/box/inner", "0::/")
    tree.put("cpu,cpuacct/box/cpu.cfs_quota_us", "300000")
    tree.put("cpu,cpuacct/box/cpu.cfs_period_us", "100000")
    tree.put("cpu,cpuacct/box/cpu.stat", "nr_periods 9\nnr_throttled 2\nthrottled_time 5000")
    tree.put("cpu,cpuacct/box/inner/cpu.cfs_quota_us", "-1")
    tree.put("cpu,cpuacct/box/inner/cpu.cfs_period_us", "100000")
    tree.put("cpuset/box/cpuset.effective_cpus", "0-3,6")
    plan = tree.plan()
    assert (plan.quota, plan.cpus, plan.cores) == (3.0, (0, 1, 2, 3, 6), 3)
    assert plan.throttling == Throttling(9, 2, 5)


def test_a_version_2_tree_beside_version_1_is_found(tree: Tree) -> None:
    tree.inside("2:cpu:/", "0::/mine")
    tree.put("unified/mine/cpu.max", "100000 100000")
    assert tree.plan().cores == 1


def test_cpuset_binds_when_it_is_the_tightest(tree: Tree) -> None:
    tree.inside("0::/a")
    tree.put("a/cpuset.cpus.effective", "2-4")
    tree.put("a/cpu.max", "max 100000")
    plan = tree.plan()
    assert (plan.cpus, plan.cores, plan.binding) == ((2, 3, 4), 3, "cpuset")


def test_affinity_binds_when_it_is_the_tightest(tree: Tree) -> None:
    tree.inside("0::/a")
    tree.put("a/cpuset.cpus.effective", "0-7")
    tree.put("a/cpu.max", "600000 100000")
    plan = tree.plan(affinity=range(2))
    assert (plan.cores, plan.binding, plan.affinity) == (2, "affinity", 2)


def test_without_limits_the_machine_decides(tree: Tree) -> None:
    plan = tree.plan()
    assert (plan.cores, plan.binding, plan.quota, plan.cpuset) == (8, "machine", None, None)


def test_without_control_groups_affinity_decides(tmp_path: Path) -> None:
    plan = read_cpu_plan(
        affinity=[5, 3], visible=8, cgroup_root=tmp_path / "no", self_cgroup=tmp_path / "none"
    )
    assert (plan.cpus, plan.cores) == ((3, 5), 2)


def test_the_real_machine_grants_something() -> None:
    plan = read_cpu_plan()
    assert 1 <= plan.cores <= plan.visible
    assert plan.cpus


def test_a_fraction_of_a_core_still_runs_one_thread(tree: Tree) -> None:
    tree.inside("0::/")
    tree.put("cpu.max", "50000 100000")
    plan = tree.plan()
    assert (plan.granted, plan.cores) == (0.5, 1)


def test_masks_that_contradict_each_other_leave_the_affinity(tree: Tree) -> None:
    tree.inside("0::/")
    tree.put("cpuset.cpus.effective", "6-7")
    assert tree.plan(affinity=range(2)).cpus == (0, 1)


@pytest.mark.parametrize("content", ["", "garbage", "max", "100000 0", "x y"])
def test_what_cannot_be_read_is_no_limit(tree: Tree, content: str) -> None:
    tree.inside("0::/")
    tree.put("cpu.max", content)
    tree.put("cpuset.cpus.effective", content)
    tree.put("cpu.stat", content)
    assert tree.plan().granted == 8.0


def test_oversubscription_is_refused_with_the_numbers() -> None:
    plan = CpuPlan(visible=8, cpus=tuple(range(8)), quota=2.5)
    check_threads(plan, 2, 1)
    check_threads(plan, 1, 2)
    with pytest.raises(
        OversubscribedError,
        match=r"3 workers .* need 3 cores, 2.5 are granted \(limit: quota\); start at most 2",
    ):
        check_threads(plan, 3, 1)
    check_threads(plan, 3, 1, oversubscribe=True)
    with pytest.raises(ValueError, match="at least 1"):
        check_threads(plan, 0, 1)


def test_throttling_counters_ignore_what_they_do_not_know(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("nr_periods x\nother 3\n")
    assert read_throttling(tmp_path) == Throttling()


def test_parse_quota() -> None:
    assert parse_quota("150000", "100000") == 1.5
    assert parse_quota("max", "100000") is None
    assert parse_quota("-1", "100000") is None


@given(st.sets(st.integers(0, 300)))
def test_parse_cpus_reads_what_the_kernel_writes(cpus: set[int]) -> None:
    ordered = sorted(cpus)
    parts: list[str] = []
    while ordered:
        length = 1
        while length < len(ordered) and ordered[length] == ordered[0] + length:
            length += 1
        parts.append(str(ordered[0]) if length == 1 else f"{ordered[0]}-{ordered[length - 1]}")
        ordered = ordered[length:]
    assert parse_cpus(",".join(parts) + "\n") == cpus
