"""How much memory this process may still take, from its control group and the host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from worker.cgroups import CGROUP_ROOT, SELF_CGROUP, number, own_groups, statistics

_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """Bytes that can still be taken, and whose limit that is."""

    available: int
    limited_by: str


def memory_room(
    meminfo: Path = _MEMINFO, cgroup_root: Path = CGROUP_ROOT, self_cgroup: Path = SELF_CGROUP
) -> MemoryRoom:
    """The tightest of the host's available memory and the limit of each enclosing group.

    Page cache that the kernel can take back counts as available, as weight files are
    mapped. Raises OSError when the host does not tell its memory.
    """
    rooms = [MemoryRoom(_host_available(meminfo), "host")]
    for folder in own_groups("memory", root=cgroup_root, self_cgroup=self_cgroup):
        # The second name of each is that of version 1.
        most = number(folder / "memory.max", folder / "memory.limit_in_bytes")
        used = number(folder / "memory.current", folder / "memory.usage_in_bytes")
        if most is not None and used is not None:
            values = statistics(folder / "memory.stat")
            reclaimable = values.get("total_inactive_file", values.get("inactive_file", 0))
            name = str(folder.relative_to(cgroup_root))
            available = max(0, most - used + reclaimable)
            rooms.append(MemoryRoom(available, f"control group {name}"))
    return min(rooms, key=lambda room: room.available)


def _host_available(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{meminfo} has no MemAvailable line")
