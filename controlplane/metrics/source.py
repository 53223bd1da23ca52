"""Everything that the control plane measures, read on its event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from controlplane.dispatcher import Dispatcher
from controlplane.generation.service import Generations
from controlplane.metrics import families as f
from controlplane.metrics import generations as of_generations
from controlplane.metrics import requests as of_requests
from controlplane.metrics.shared import counts
from controlplane.preprocess import Preprocessor
from controlplane.registry import Registry, WorkerState
from protos.measures import Reading

_CLASSES = ("encoder", "decode")
_STATES = tuple(state.value for state in WorkerState if state is not WorkerState.LOST)
# Work is shown by QUEUED_WORK, in seconds.
_IN_OTHER_UNITS = ("queued_work_ns",)
# Invariants are looked at while they cost little; a longer queue is looked at when it has shrunk.
_MOST_LOOKED_AT = 64


class Kept(Protocol):
    """Counts of the store of records."""

    written: int
    dropped: int


@dataclass(slots=True)
class MetricsSource:
    """Reads what is measured; call it on the event loop that owns everything here."""

    dispatcher: Dispatcher
    generations: Generations
    registry: Registry
    preprocessor: Preprocessor
    service: str
    version: str
    store: Kept | None = None
    _violations: int = 0

    def read(self) -> list[Reading]:
        """Every reading at this moment."""
        return [*self._read()]

    def _read(self) -> Iterator[Reading]:
        sessions = self.registry.workers()
        yield from of_requests.readings(self.dispatcher, sessions)
        yield from of_generations.readings(self.generations, self.registry)
        yield from counts(f.CHARGED, self.dispatcher.measures.callers.cpu_ns)
        workers = Counter(
            (_CLASSES[session.identity.decodes], session.state.value) for session in sessions
        )
        expected = [(klass, state) for klass in _CLASSES for state in _STATES]
        yield from counts(f.WORKERS, workers, expected)
        yield Reading(f.WORKERS_JOINED, (), self.registry.joined)
        yield Reading(f.WORKERS_LEFT, ("drained",), self.registry.drained)
        yield Reading(f.WORKERS_LEFT, ("lost",), self.registry.lost)
        store = self.store
        yield Reading(f.RECORDS, ("written",), 0 if store is None else store.written)
        yield Reading(f.RECORDS, ("dropped",), 0 if store is None else store.dropped)
        saturation = self.preprocessor.saturation()
        yield Reading(f.PREPROCESS, ("queued",), saturation.queued)
        yield Reading(f.PREPROCESS, ("running",), saturation.running)
        yield Reading(f.PREPROCESS_REFUSED, (), self.preprocessor.refused)
        yield Reading(f.HOST_CPU, (), self.dispatcher.host_cpu_percent / 100)
        held = self.dispatcher.gauges()
        if held["pending"] <= _MOST_LOOKED_AT:
            self._violations = len(self.dispatcher.violations())
        held |= self.generations.gauges()
        held["preprocess"] = saturation.queued + saturation.running
        for what, count in held.items():
            if what not in _IN_OTHER_UNITS:
                yield Reading(f.HELD, (what,), count)
        yield Reading(f.VIOLATIONS, (), self._violations)
        yield Reading(f.BUILD, (self.service, self.version, self.dispatcher.policy), 1)
