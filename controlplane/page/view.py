"""The house as the feed sees it: sources, their history, and clocks that were passed in."""

from __future__ import annotations

from collections.abc import Callable

from pydantic_core import to_json

from controlplane.page.history import History
from controlplane.page.roster import Roster
from controlplane.page.snapshot import Sources, Usage, counts_of, snapshot


class HouseView:
    """Samples and renders. `usage` gives the process's CPU seconds and its resident bytes."""

    def __init__(
        self,
        sources: Sources,
        *,
        now_ns: Callable[[], int],
        wall_ms: Callable[[], int],
        usage: Callable[[], tuple[float, int]],
    ) -> None:
        self._sources = sources
        self._now_ns = now_ns
        self._wall_ms = wall_ms
        self._usage = usage
        self._history = History()
        self._roster = Roster()
        self._cpu = (0.0, sources.started_ns)
        self._cpu_percent = 0.0

    def sample(self) -> None:
        """Take the totals of this moment into the history."""
        now_ns = self._now_ns()
        at_s = (now_ns - self._sources.started_ns) / 1e9
        self._history.add(counts_of(self._sources), at_s)
        self._roster.look(self._sources.registry.workers(), now_ns)

    def render(self, *, whole: bool) -> bytes:
        """The house now as one line of JSON."""
        now_ns = self._now_ns()
        shown = snapshot(
            self._sources,
            self._history,
            self._roster,
            self._used(now_ns),
            now_ns=now_ns,
            wall_ms=self._wall_ms(),
            whole=whole,
        )
        return to_json(shown, inf_nan_mode="null")

    def _used(self, now_ns: int) -> Usage:
        cpu_s, resident = self._usage()
        before_s, before_ns = self._cpu
        if now_ns - before_ns >= 500_000_000:
            self._cpu_percent = 100.0 * (cpu_s - before_s) * 1e9 / (now_ns - before_ns)
            self._cpu = cpu_s, now_ns
        return Usage(self._cpu_percent, resident)
