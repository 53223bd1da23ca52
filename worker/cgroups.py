"""Where this process stands among the control groups (version 2) of its host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
SELF_CGROUP = Path("/proc/self/cgroup")


def own_groups(root: Path = CGROUP_ROOT, self_cgroup: Path = SELF_CGROUP) -> Iterator[Path]:
    """The folders of the process's group and of those around it, innermost first."""
    try:
        lines = self_cgroup.read_text().splitlines()
    except OSError:
        return
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    if own is None:
        return
    folder = root / own.strip("/")
    while True:
        if folder.is_dir():
            yield folder
        if folder == root:
            return
        folder = folder.parent


def limit(path: Path) -> int | None:
    """The number in a group's file; None for `max`, or when there is no such file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def statistic(path: Path, key: str) -> int:
    """The value of `key` in a group's file of `key value` lines; 0 when it is not there."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{key} ")), 0)


def throttle_counter(
    root: Path = CGROUP_ROOT, self_cgroup: Path = SELF_CGROUP
) -> Callable[[], int]:
    """Returns a function that counts the periods in which a CPU quota held the process back.

    Which files to read is found out once, here; a host without quotas costs nothing later.
    """
    files = [folder / "cpu.stat" for folder in own_groups(root, self_cgroup)]
    quotas = [file for file in files if _has_quota(file.parent / "cpu.max")]

    def count() -> int:
        return max((statistic(file, "nr_throttled") for file in quotas), default=0)

    return count


def _has_quota(path: Path) -> bool:
    try:
        return not path.read_text().startswith("max")
    except OSError:
        return False
