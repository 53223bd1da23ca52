"""The memory ledger: what a worker's memory is for, by how long it stays, against what there is.

Booked by those who take the memory (sessions, runs, caches), so that the difference from what the
kernel counts is a finding and not a definition; docs/memory.md says where each line comes from.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from worker.memory import MemoryRoom
from worker.process_memory import Heap, ProcessMemory

_MIB = 1 << 20


class Lifetime(StrEnum):
    """How long memory stays, and what for; the words are those on the wire."""

    RUNTIME = "runtime"
    WEIGHTS = "weights"
    STATE = "state"
    WORKSPACE = "workspace"
    REQUESTS = "requests"
    SEQUENCES = "sequences"
    PREFIXES = "prefixes"
    ARENA = "arena"
    LOADING = "loading"
    ALLOCATOR = "allocator"


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """Bytes of one owner that are there now; `most` is what they may be or were, 0 unknown."""

    lifetime: Lifetime
    owner: str
    bytes: int
    most: int = 0


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """The ledger at one moment; bytes.

    `measured` is the process's PSS, `available` what it may still take and `limited_by` who says
    so, `budget` what the configuration allows altogether, 0 without one.
    """

    lines: tuple[MemoryLine, ...]
    measured: int
    available: int
    limited_by: str
    budget: int = 0

    @property
    def accounted(self) -> int:
        """What the lines add up to."""
        return sum(line.bytes for line in self.lines)

    def text(self) -> str:
        """The table for an error: MiB by lifetime, then what is accounted for and measured."""
        sums: dict[Lifetime, int] = {}
        for line in self.lines:
            sums[line.lifetime] = sums.get(line.lifetime, 0) + line.bytes
        rows = [f"  {name:<10}{size / _MIB:>9.1f}" for name, size in sums.items()]
        rows.append(f"  {'accounted':<10}{self.accounted / _MIB:>9.1f}")
        rows.append(f"  {'measured':<10}{self.measured / _MIB:>9.1f}")
        return "\n".join(rows)


class RunStats(Protocol):
    """Bytes of the engine's sessions, as `worker.engine.MemoryStats`."""

    @property
    def in_use(self) -> int: ...

    @property
    def cached(self) -> int: ...

    @property
    def reserved(self) -> int: ...


class RunMemory(Protocol):
    """Where warm-ups note what runs take beside their inputs."""

    def clear(self) -> int:
        """Gives back what no run holds, so that the next run's memory is its own."""

    def ran(self, tokens: int) -> None:
        """A run of so many tokens ended: note what memory it left warm."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the ledger's figures come from; every call is cheap but `process` and `weights`.

    `weights` are mapped bytes by owner, `engine` the sessions', `trim` gives the engine's spare
    memory back, `room` is what host and control groups leave.
    """

    process: Callable[[], ProcessMemory]
    heap: Callable[[], Heap]
    weights: Callable[[], Mapping[str, int]]
    engine: Callable[[], RunStats]
    trim: Callable[[], None]
    room: Callable[[], MemoryRoom]


@dataclass(slots=True)
class _Booked:
    """What one variant took when it was loaded, and its runs by tokens."""

    private: int = 0
    structures: int = 0
    runs: dict[int, int] = field(default_factory=dict)


class MemoryLedger:
    """The ledger of one worker process. Thread-safe; `refresh` reads the kernel's files.

    Make it before anything is loaded: what there is then is the runtime's. `budget` bounds the
    whole process, 0 leaves that to `Sources.room`.
    """

    def __init__(self, sources: Sources, budget: int = 0) -> None:
        self._sources = sources
        self._budget = budget
        self._lock = threading.Lock()
        # Guarded by the lock.
        self._variants: dict[tuple[str, str], _Booked] = {}
        self._loading: tuple[str, str] | None = None
        self._needed = 0
        self._most_cached = 0
        self._start = sources.process()
        self._start_heap = sources.heap()
        self._others: list[Callable[[], Iterable[MemoryLine]]] = []
        self.latest = self.refresh()

    def add_source(self, lines: Callable[[], Iterable[MemoryLine]]) -> None:
        """Lines of others, asked for at each refresh: request buffers and caches."""
        self._others.append(lines)

    # --- loads ---------------------------------------------------------------------------

    @contextmanager
    def loading(self, model: str, variant: str, needed: int) -> Iterator[None]:
        """Around a load of `needed` bytes: what it leaves behind is booked to the variant."""
        heap, reserved = self._sources.heap().used, self._sources.engine().reserved
        booked = _Booked()
        with self._lock:
            self._loading, self._needed = (model, variant), needed
            self._variants[model, variant] = booked
        try:
            yield
        except BaseException:
            with self._lock:
                del self._variants[model, variant]
            raise
        finally:
            with self._lock:
                self._loading, self._needed = None, 0
        booked.private = max(0, self._sources.engine().reserved - reserved)
        booked.structures = max(0, self._sources.heap().used - heap)

    def unloaded(self, model: str) -> None:
        """A model's variants are gone."""
        with self._lock:
            for key in [key for key in self._variants if key[0] == model]:
                del self._variants[key]

    def clear(self) -> int:
        """Gives back what no run holds; see `RunMemory`."""
        self._sources.trim()
        return 0

    def ran(self, tokens: int) -> None:
        """Notes what a run left warm, for the variant that is being loaded; see `RunMemory`."""
        stats = self._sources.engine()
        with self._lock:
            if self._loading is not None:
                self._variants[self._loading].runs[tokens] = stats.in_use + stats.cached

    # --- what there is -------------------------------------------------------------------

    def room(self) -> MemoryRoom:
        """What a load may take: the tightest limit, less what the largest known run needs yet.

        Raises OSError when the host does not tell its memory.
        """
        room = self._sources.room()
        if self._budget:
            left = self._budget - self._sources.process().pss
            if left < room.available:
                room = MemoryRoom(left, "memory_mib")
        stats = self._sources.engine()
        spare = max(0, self._largest_run() - stats.in_use - stats.cached)
        return MemoryRoom(max(0, room.available - spare), room.limited_by)

    def refresh(self) -> MemoryTable:
        """Reads everything anew and keeps it as `latest`."""
        process, heap, engine = (
            self._sources.process(),
            self._sources.heap(),
            self._sources.engine(),
        )
        mapped = self._sources.weights()
        others = [line for lines in self._others for line in lines()]
        room = self.room()
        with self._lock:
            variants = {key: _copied(booked) for key, booked in self._variants.items()}
            loading, needed = self._loading, self._needed
            self._most_cached = max(self._most_cached, engine.in_use + engine.cached)
            most_cached = self._most_cached
        lines = [*self._runtime(process, heap, mapped, variants, others)]
        lines += _of_weights(mapped, variants)
        lines += _of_runs(engine, variants, most_cached)
        lines += others
        lines.append(self._allocator(heap))
        if loading is not None:
            # What nobody else accounts for is the load's while it goes on.
            taken = process.pss - sum(line.bytes for line in lines)
            owner = "/".join(loading)
            lines.append(MemoryLine(Lifetime.LOADING, owner, max(0, taken), needed))
        self.latest = MemoryTable(
            tuple(lines), process.pss, room.available, room.limited_by, self._budget
        )
        return self.latest

    def _largest_run(self) -> int:
        with self._lock:
            runs = [size for booked in self._variants.values() for size in booked.runs.values()]
        return max(runs, default=0)

    def _runtime(
        self,
        process: ProcessMemory,
        heap: Heap,
        mapped: Mapping[str, int],
        variants: Mapping[tuple[str, str], _Booked],
        others: Iterable[MemoryLine],
    ) -> Iterator[MemoryLine]:
        """The interpreter and its libraries, and what grew on the heap since the start."""
        yield MemoryLine(Lifetime.RUNTIME, "process at start", self._start.anonymous)
        libraries = process.mapped - sum(mapped.values())
        yield MemoryLine(Lifetime.RUNTIME, "libraries", max(0, libraries))
        grown = heap.used - self._start_heap.used
        # Request buffers lie on the heap, too.
        buffers = sum(line.bytes for line in others if line.lifetime is Lifetime.REQUESTS)
        booked = sum(each.structures for each in variants.values())
        yield MemoryLine(Lifetime.RUNTIME, "heap since", max(0, grown - booked - buffers))

    def _allocator(self, heap: Heap) -> MemoryLine:
        kept = max(0, heap.free - self._start_heap.free)
        return MemoryLine(Lifetime.ALLOCATOR, "heap kept free", kept)


def _copied(booked: _Booked) -> _Booked:
    return _Booked(booked.private, booked.structures, dict(booked.runs))


def _of_weights(
    mapped: Mapping[str, int], variants: Mapping[tuple[str, str], _Booked]
) -> Iterator[MemoryLine]:
    """Mapped files by graph or model, private copies and session structures by variant."""
    for owner in sorted(mapped):
        yield MemoryLine(Lifetime.WEIGHTS, f"{owner} mapped", mapped[owner])
    for (model, variant), booked in sorted(variants.items()):
        if booked.private:
            yield MemoryLine(Lifetime.WEIGHTS, f"{model}/{variant} private", booked.private)
        if booked.structures:
            yield MemoryLine(Lifetime.STATE, f"{model}/{variant}", booked.structures)


def _of_runs(
    engine: RunStats, variants: Mapping[tuple[str, str], _Booked], most: int
) -> Iterator[MemoryLine]:
    """Run memory of all variants together, which have it one after the other, and their peaks."""
    yield MemoryLine(Lifetime.WORKSPACE, "all runs", engine.in_use + engine.cached, most)
    for (model, variant), booked in sorted(variants.items()):
        for tokens, size in sorted(booked.runs.items()):
            owner = f"{model}/{variant} {tokens} tokens"
            yield MemoryLine(Lifetime.WORKSPACE, owner, 0, size)
