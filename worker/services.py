"""The two classes of worker put together: what loads models, runs them, and answers calls."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from protos.measures import Reading
from protos.orchid.v1 import worker_pb2
from worker import engine
from worker.changes import Changes
from worker.config import WorkerConfig
from worker.cpu_plan import Throttling
from worker.encoder_kind import EncoderKind
from worker.generation.kind import DecodeKind, DecodeParts, DecodeSettings, OnEngine, finished
from worker.generation.lane import Lane
from worker.generation.loop import DecodeLoop
from worker.generation.warmup import DecodeWarmup
from worker.host import ModelHost
from worker.ledger import Lifetime, MemoryLedger, MemoryLine, Sources
from worker.loop import Clocks, EngineLoop
from worker.measures import BatchMeasures
from worker.memory import memory_room
from worker.meter import LoadMeter
from worker.metrics import readings
from worker.prepared import default_cache
from worker.process_memory import heap, mapped_weights, process_memory
from worker.profile import VariantProfile
from worker.profile_file import own_machine, profiles_of
from worker.rpc import convert
from worker.rpc.drain import Drainer
from worker.rpc.execute import ExecuteParts
from worker.rpc.generate import GenerateParts
from worker.rpc.servicer import DecodeServicer, EncoderServicer, WorkerServicer
from worker.scheduling.cost import StepCost
from worker.scheduling.policies import policy_named
from worker.tracing import Tracing
from worker.warm_profiles import HostProfiles
from worker.warmup import Warmup
from worker.watchdog import Watchdog

T = TypeVar("T")

# A token of a prompt in Python: its place in two lists and its number, most of them shared.
_PROMPT_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Means:
    """Clocks, meters, the generator and a way to wait, made by the process and passed down.

    `wall_ns` is the time since the epoch.
    """

    clocks: Clocks
    wall_ns: Callable[[], int]
    meter: LoadMeter
    throttling: Callable[[], Throttling]
    tracing: Tracing
    generator: np.random.Generator
    wait_s: Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a service is told by its process; all of it belongs to the event loop."""

    config: WorkerConfig
    means: Means
    worker_id: str
    changes: Changes
    open_session: Callable[[Path], engine.Session]
    exit_process: Callable[[], None]
    loop: asyncio.AbstractEventLoop

    def notify(self) -> None:
        """Counts a change, from any thread."""
        self.loop.call_soon_threadsafe(self.changes.notify)

    @property
    def service_ns(self) -> Callable[[], int]:
        """The clock that warm-ups read: CPU time where one thread does all the work."""
        clocks = self.means.clocks
        return clocks.cpu_ns if self.config.intra_op_threads == 1 else clocks.now_ns

    @property
    def profile_kind(self) -> str:
        """What besides its files a kept profile holds for."""
        return f"{own_machine(self.config.intra_op_threads)} {self.config.warm_budget_ms}"


class Service(Protocol):
    """One class of worker on the running event loop."""

    @property
    def host(self) -> ModelHost:
        """The models of the worker."""

    @property
    def drainer(self) -> Drainer:
        """Ends the work of the worker."""

    @property
    def servicer(self) -> WorkerServicer:
        """Answers calls."""

    def start(self) -> None:
        """Starts the engine thread."""

    async def stop(self) -> None:
        """Ends the engine thread; work that is left is answered as unavailable."""

    @property
    def ledger(self) -> MemoryLedger:
        """What the worker's memory is for."""

    def measured(self) -> Iterator[Reading]:
        """What was measured of its work, for the event loop to read."""

    def load(self) -> worker_pb2.WorkerLoad:
        """The worker's report of itself."""

    def untold_s(self) -> float:
        """For how long no answer has carried that report to the control plane, in seconds."""


class EncoderService:
    """Executes batches of requests."""

    def __init__(self, around: Surroundings) -> None:
        config, means = around.config, around.means
        now_ns = means.clocks.now_ns
        self.ledger = _ledger(config)
        self.ledger.add_source(self._requests)
        self.host = ModelHost(
            config.repository,
            kind=EncoderKind(
                variants=config.variants,
                open_session=around.open_session,
                warmup=Warmup(
                    self._on_engine,
                    engine.RunToken,
                    now_ns,
                    config.warm_budget_ms * 1_000_000,
                    around.service_ns,
                    self.ledger,
                ),
                release=self._release,
                profile_of=profiles_of(own_machine(config.intra_op_threads)),
                warm_profiles=HostProfiles(
                    default_cache().with_name("profiles"),
                    around.profile_kind,
                    means.wait_s,
                    VariantProfile,
                ),
            ),
            memory=self.ledger.room,
            on_change=around.notify,
            ledger=self.ledger,
            take_peak=engine.take_run_peak,
        )
        self.engine = EngineLoop(
            self.host,
            bound=config.max_queued_items,
            clocks=means.clocks,
            make_token=engine.RunToken,
            wake=around.loop.call_soon_threadsafe,
            soon=around.loop.call_soon,
            when_idle=engine.trim_memory,
            when_broken=self._broken,
        )
        self.drainer = Drainer(self.engine, around.changes.notify)
        self._meter = means.meter
        self._measures = BatchMeasures()
        self._watchdog = Watchdog(self.engine, now_ns, around.loop.call_later)
        self._now_ns = now_ns
        self._told_ns = 0
        parts = ExecuteParts(
            engine=self.engine,
            host=self.host,
            watchdog=self._watchdog,
            tracing=means.tracing,
            measures=self._measures,
            load=self._told_load,
            now_ns=now_ns,
            max_message_bytes=config.max_message_bytes,
        )
        common = _common(around, self)
        self.servicer: WorkerServicer = EncoderServicer(parts, **common)

    def start(self) -> None:
        """Starts the engine thread."""
        self.engine.start()

    async def stop(self) -> None:
        """Ends the engine thread; work that is left is answered as unavailable."""
        self._watchdog.stop()
        await asyncio.to_thread(self.engine.stop)

    def load(self) -> worker_pb2.WorkerLoad:
        """The worker's report of itself."""
        state = self.engine.state()
        return convert.load_to(state, self._meter.latest, self._meter.process_cpu_ns())

    def untold_s(self) -> float:
        """For how long no answer has carried that report to the control plane, in seconds."""
        return (self._now_ns() - self._told_ns) / 1e9

    def measured(self) -> Iterator[Reading]:
        """What was measured of its work, for the event loop to read."""
        yield from readings.of_loop(self.engine.state())
        yield from readings.of_batches(self._measures)

    def _told_load(self) -> worker_pb2.WorkerLoad:
        self._told_ns = self._now_ns()
        return self.load()

    def _broken(self, reason: str) -> None:
        """No model serves without the loop."""
        for model in self.host.describe():
            for variant in model.variants:
                self.host.lose(model.manifest.name, variant.variant.name, reason)

    def _requests(self) -> list[MemoryLine]:
        return [MemoryLine(Lifetime.REQUESTS, "inputs", self.engine.held_bytes())]

    def _on_engine(self, function: Callable[[], T]) -> T:
        return finished(self.engine.call(function))

    def _release(self, function: Callable[[], None]) -> None:
        finished(self.engine.call(function, in_turn=True))


class DecodeService:
    """Generates text."""

    def __init__(self, around: Surroundings) -> None:
        config, means = around.config, around.means
        now_ns = means.clocks.now_ns
        self.ledger = _ledger(config)
        self.engine = DecodeLoop(
            clocks=means.clocks,
            make_token=engine.RunToken,
            wake=around.loop.call_soon_threadsafe,
            when_idle=engine.trim_memory,
            when_lost=self._lost,
        )
        on_engine = OnEngine(self.engine)
        self._kind = kind = DecodeKind(
            DecodeSettings(
                variants=config.variants,
                arena_bytes=config.arena_mib << 20,
                half=config.kv_precision == "fp16",
                max_waiting=config.max_queued_items,
                policy=policy_named(config.scheduling),
                threads=config.intra_op_threads,
            ),
            DecodeParts(
                loop=self.engine,
                open_session=around.open_session,
                on_engine=on_engine,
                warmup=DecodeWarmup(
                    on_engine, now_ns, config.warm_budget_ms * 1_000_000, around.service_ns
                ),
                kept=HostProfiles(
                    default_cache().with_name("profiles"),
                    f"decode {around.profile_kind} {config.kv_precision} {config.spins}",
                    means.wait_s,
                    StepCost,
                ),
                draw_seed=lambda: int(means.generator.integers(1 << 63)),
                memory=self.ledger,
            ),
        )
        self.ledger.add_source(self._prompts)
        self.ledger.add_source(kind.memory_lines)
        self.host = ModelHost(
            config.repository,
            kind=kind,
            memory=self.ledger.room,
            on_change=around.notify,
            ledger=self.ledger,
        )
        self.drainer = Drainer(self.engine, around.changes.notify)
        self._meter = means.meter
        self._watchdog = Watchdog(self.engine, now_ns, around.loop.call_later)
        parts = GenerateParts(
            loop=self.engine,
            host=self.host,
            watchdog=self._watchdog,
            tracing=means.tracing,
            speech=kind.speech,
            now_ns=now_ns,
        )
        common = _common(around, self)
        self.servicer: WorkerServicer = DecodeServicer(parts, **common)

    def start(self) -> None:
        """Starts the engine thread."""
        self.engine.start()

    async def stop(self) -> None:
        """Ends the engine thread; generations that are left end as unavailable."""
        self._watchdog.stop()
        await asyncio.to_thread(self.engine.stop)

    def load(self) -> worker_pb2.WorkerLoad:
        """The worker's report of itself."""
        state = self.engine.state()
        return convert.load_to(
            state, self._meter.latest, self._meter.process_cpu_ns(), self.engine.loads
        )

    def untold_s(self) -> float:
        """Its answers carry no report."""
        return math.inf

    def measured(self) -> Iterator[Reading]:
        """What was measured of its work, for the event loop to read."""
        yield from readings.of_loop(self.engine.state())
        yield from readings.of_lanes(self.engine.loads)

    def _lost(self, lane: Lane, reason: str) -> None:
        self.host.lose(lane.model, lane.variant, reason)
        self._kind.forget(lane)

    def _prompts(self) -> list[MemoryLine]:
        held = self.engine.held_tokens() * _PROMPT_TOKEN_BYTES
        return [MemoryLine(Lifetime.REQUESTS, "prompts", held)]


def _ledger(config: WorkerConfig) -> MemoryLedger:
    """The ledger of this process, of which nothing is loaded yet."""
    cache = default_cache()
    sources = Sources(
        process=process_memory,
        heap=heap,
        weights=lambda: mapped_weights(config.repository, cache),
        engine=engine.memory_stats,
        trim=engine.trim_memory,
        room=memory_room,
    )
    return MemoryLedger(sources, config.memory_mib << 20)


def _common(around: Surroundings, service: EncoderService | DecodeService) -> dict[str, Any]:
    return {
        "worker_id": around.worker_id,
        "engine_version": engine.runtime_info().library_version,
        "host": service.host,
        "ledger": service.ledger,
        "drainer": service.drainer,
        "changes": around.changes,
        "exit_process": around.exit_process,
    }
