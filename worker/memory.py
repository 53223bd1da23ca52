"""How much memory this process may still take, from its control group and the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_SELF = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """Bytes that can still be taken, and whose limit that is."""

    available: int
    limited_by: str


def memory_room(
    meminfo: Path = _MEMINFO, cgroup_root: Path = _CGROUP_ROOT, self_cgroup: Path = _SELF
) -> MemoryRoom:
    """The tightest of the host's available memory and each enclosing cgroup v2 limit.

    Page cache that the kernel can take back counts as available, as weight files are
    mapped. Raises OSError when the host does not tell its memory.
    """
    rooms = [MemoryRoom(_host_available(meminfo), "host")]
    for folder in _own_groups(cgroup_root, self_cgroup):
        limit = _number(folder / "memory.max")
        used = _number(folder / "memory.current")
        if limit is not None and used is not None:
            reclaimable = _stat(folder / "memory.stat", "inactive_file")
            name = str(folder.relative_to(cgroup_root))
            available = max(0, limit - used + reclaimable)
            rooms.append(MemoryRoom(available, f"control group {name}"))
    return min(rooms, key=lambda room: room.available)


def _host_available(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{meminfo} has no MemAvailable line")


def _own_groups(root: Path, self_cgroup: Path) -> Iterator[Path]:
    """The process's cgroup v2 folder and its parents, up to the root."""
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


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _stat(path: Path, key: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{key} ")), 0)
