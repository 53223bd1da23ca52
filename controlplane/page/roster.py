"""Workers that were here a while ago: the registry forgets them, an operator should not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.registry import WorkerSession

MOST_GONE = 16
_KEPT_NS = 600 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class GoneWorker:
    """The last session of a worker that left. It was `drained` if it had said that it would."""

    session: WorkerSession
    gone_ns: int

    @property
    def drained(self) -> bool:
        """Whether its last report said that it takes no more work."""
        return self.session.load.draining


class Roster:
    """Compares who is here with who was; bounded in number and time. Holds no clock."""

    def __init__(self) -> None:
        self._here: dict[str, WorkerSession] = {}
        self._gone: dict[str, GoneWorker] = {}

    def look(self, sessions: Iterable[WorkerSession], now_ns: int) -> None:
        """Who is here at `now_ns`."""
        here = {each.identity.id: each for each in sessions}
        for worker, session in self._here.items():
            if worker not in here:
                self._gone[worker] = GoneWorker(session, now_ns)
        for worker in here:
            self._gone.pop(worker, None)
        for worker, gone in tuple(self._gone.items()):
            if now_ns - gone.gone_ns > _KEPT_NS or len(self._gone) > MOST_GONE:
                del self._gone[worker]
        self._here = here

    def gone(self) -> tuple[GoneWorker, ...]:
        """Those that left and did not come back, the last one first."""
        return tuple(reversed(self._gone.values()))
