"""A process that starts beside others that serve takes CPU only where they leave some.

Each process of a cluster has a session of its own, and Linux schedules sessions as groups
(sched(7), "the autogroup feature"): the nice value of the group, not of its threads, says
what it gets beside others. Lowering it again takes no privilege down to 0.
"""

from __future__ import annotations

from pathlib import Path

# A tenth of the weight of those that serve.
_POLITE = 10


def give_way(pid: int) -> bool:
    """Let a process give way to others; False where the kernel has no such groups."""
    return _nice(pid, _POLITE)


def stand_up(pid: int) -> bool:
    """Let it take its full share again; False when it has ended or must be asked again."""
    return _nice(pid, 0)


def _nice(pid: int, value: int) -> bool:
    try:
        Path(f"/proc/{pid}/autogroup").write_text(str(value))
    except OSError:
        # No autogroups, no such process, or changed less than 0.1 s ago.
        return False
    return True
