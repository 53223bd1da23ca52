"""What a decode worker does with a variant: a session, an arena, and a lane that serves both."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from worker.decode import DecodeEngine
from worker.engine import HUGE_PAGE, SMALL_PAGE, Session
from worker.errors import ModelLoadError
from worker.generation.lane import Lane, Speech, Stepper
from worker.generation.loop import DecodeLoop
from worker.generation.text import load_token_text
from worker.generation.warmup import DecodeWarmup, StepBench
from worker.hosted import DecodeCapacity, HostedModel, LoadedVariant, listed
from worker.kv_arena import KV_BLOCK_TOKENS, KvArena
from worker.ledger import Lifetime, MemoryLine, RunMemory
from worker.models.layouts import kv_token_bytes
from worker.models.manifest import GENERATION, FileRef, Generation, Manifest, Variant
from worker.process_memory import process_memory
from worker.profile_file import content_digest
from worker.refusals import Unavailable
from worker.scheduling.blocks import blocks_for
from worker.scheduling.cost import CorrectedCost, StepCost
from worker.scheduling.policies import SchedulingPolicy
from worker.scheduling.records import SchedulingSettings
from worker.scheduling.scheduler import DecodeScheduler
from worker.stock_decode import PROBE_BLOCKS, StockDecodeEngine, bears_filling
from worker.warm_profiles import WarmProfiles, kept_or_measured

log = logging.getLogger(__name__)

T = TypeVar("T")

# The fastest first, as measured; see docs/decisions/0034.
_PREFERRED = ("q4", "int8", "fp32")
# Without a size of its own an arena takes at most so much, and this part of what is available.
_USUAL_BYTES = 512 << 20
_SHARE = 4
# More tokens than so many sequences of full length are of no use.
_USEFUL_SEQUENCES = 64
# Tenants whose cached prefixes have a line of their own in the memory ledger.
_MOST_TENANTS = 32


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """How models are decoded.

    `variants` are the names that may be loaded, empty allows all; one of a model is. `arena_bytes`
    0 lets the memory that is available decide. `half` keeps keys and values in 16 bits, but for
    stock graphs, whose are float32; `threads` copy those for them.
    """

    variants: tuple[str, ...]
    arena_bytes: int
    half: bool
    max_waiting: int
    policy: SchedulingPolicy
    threads: int = 1


@dataclass(frozen=True, slots=True)
class DecodeParts:
    """What a kind works with.

    `on_engine` runs a function on the engine thread and waits for it. `kept` are profiles that
    warm-ups of this host measured before. `memory` notes what steps take, if it is there.
    """

    loop: DecodeLoop
    open_session: Callable[[Path], Session]
    on_engine: OnEngine
    warmup: DecodeWarmup
    kept: WarmProfiles[StepCost]
    draw_seed: Callable[[], int]
    memory: RunMemory | None = None


class OnEngine:
    """Runs functions on the engine thread of a loop, between steps, and waits."""

    def __init__(self, loop: DecodeLoop) -> None:
        self._loop = loop

    def __call__(self, function: Callable[[], T]) -> T:
        """What the function returns or raises; Unavailable when the loop stops before."""
        return finished(self._loop.call(function))


def finished(future: Future[T], timeout_s: float | None = None) -> T:
    """What a future of the loop brings; Unavailable when the loop stops before.

    Raises TimeoutError when it takes longer than `timeout_s`.
    """
    try:
        return future.result(timeout_s)
    except CancelledError:
        raise Unavailable("the worker is stopping") from None


@dataclass(frozen=True, slots=True)
class LoadedDecoder(LoadedVariant):
    """A decoder that can run: its session with an arena.

    `make_engine` makes further engines, on arenas of so many blocks.
    """

    engine: Stepper = field(kw_only=True)
    make_engine: Callable[[int], Stepper] = field(kw_only=True)


class DecodeKind:
    """Loads decoders, one variant of a model, each with an arena of its own."""

    def __init__(self, settings: DecodeSettings, parts: DecodeParts) -> None:
        self._settings = settings
        self._parts = parts
        # By model; added to by one thread at a time, read by others.
        self._lanes: dict[str, Lane] = {}

    def refusal(self, manifest: Manifest) -> str:
        """Why a model is not for this kind of worker; empty when it is."""
        return "" if manifest.task == GENERATION else "does not generate text"

    def choose(
        self, manifest: Manifest, names: Sequence[str], held: Collection[str]
    ) -> tuple[Variant, ...]:
        """One variant: the named one, the loaded one, or of those allowed the fastest."""
        if len(names) > 1 or (names and held and names[0] not in held):
            there = f"; {listed(held)} is loaded, unload the model first" if held else ""
            raise ModelLoadError(
                f"a decode worker holds one variant of a model, {listed(names)} was asked{there}"
            )
        wanted = names or held or self._settings.variants
        found = [v for v in manifest.variants if not wanted or v.name in wanted]
        if not found:
            known = listed(v.name for v in manifest.variants)
            raise ModelLoadError(
                f"model {manifest.name!r} has {known}; the configuration allows {listed(wanted)}"
            )
        return (min(found, key=lambda variant: _rank(variant.precision)),)

    def reserve(self, manifest: Manifest, variant: Variant, room: int) -> int:
        """Bytes of the variant's arena."""
        generation = _generation(manifest)
        block = self._token_bytes(generation, variant) * KV_BLOCK_TOKENS
        least = blocks_for(generation.context) * block
        if self._settings.arena_bytes:
            return max(self._settings.arena_bytes // block, 1) * block
        useful = _USEFUL_SEQUENCES * least
        usual = min(_USUAL_BYTES, room // _SHARE) // block * block
        # At least one sequence of full length; the host refuses it when even that does not fit.
        return min(useful, max(least, usual))

    def open(self, model: HostedModel, variant: Variant, weights: int, extra: int) -> LoadedVariant:
        """A session, and an engine on an arena of `extra` bytes."""
        manifest = model.manifest
        generation = _generation(manifest)
        token_bytes = self._token_bytes(generation, variant)
        blocks = extra // (token_bytes * KV_BLOCK_TOKENS)
        session = self._parts.open_session(model.folder / variant.graph)
        make_engine = self._engines(session, generation, variant)
        return LoadedDecoder(
            variant,
            session,
            generation.vocabulary,
            weights,
            decode=DecodeCapacity(token_bytes, blocks * KV_BLOCK_TOKENS),
            engine=make_engine(blocks),
            make_engine=make_engine,
        )

    def measure(
        self,
        model: HostedModel,
        loaded: LoadedVariant,
        files: Mapping[str, FileRef],
        progress: Callable[[float], None],
        *,
        again: bool,
    ) -> LoadedVariant:
        """The variant with the cost of its steps, kept from before or measured now."""
        generation = _generation(model.manifest)
        parts = self._parts
        if not isinstance(loaded, LoadedDecoder):
            raise TypeError("a decoder was opened by this kind")
        make_engine = loaded.make_engine
        if parts.memory is not None:
            parts.on_engine(parts.memory.clear)
        bench = parts.on_engine(
            lambda: StepBench(
                make_engine,
                vocabulary=generation.vocabulary,
                context=generation.context,
            )
        )
        cost = kept_or_measured(
            parts.kept,
            content_digest(files.values()),
            compare=lambda known: parts.warmup.compare(bench, known),
            measure=lambda: parts.warmup.measure(bench, progress),
            again=again,
        )
        if parts.memory is not None:
            parts.memory.ran(max(shape.chunk + shape.decoding for shape in bench.shapes))
        if cost is None or loaded.decode is None:
            raise TypeError("a decoder has a capacity and is measured when it is served")
        log.info(
            "model=%s variant=%s warm step_us=%.0f prefill_us=%.1f sequence_us=%.1f cached_us=%.3f",
            *(model.manifest.name, loaded.variant.name),
            *(cost.step_us, cost.prefill_us_per_token, cost.sequence_us, cost.cached_us_per_token),
        )
        return replace(loaded, decode=replace(loaded.decode, cost=cost))

    def serve(self, model: HostedModel, loaded: LoadedVariant, *, again: bool) -> None:
        """Makes the lane that serves the variant, or tells it what its steps cost now."""
        capacity = loaded.decode
        if not isinstance(loaded, LoadedDecoder) or capacity is None or capacity.cost is None:
            raise TypeError("a decoder has a capacity and is measured when it is served")
        cost = capacity.cost
        name = model.manifest.name
        if again:
            # It may have been lost meanwhile, and then serves no more.
            if (lane := self._lanes.get(name)) is not None:
                scheduler = lane.scheduler
                self._parts.on_engine(lambda: setattr(scheduler, "cost", CorrectedCost(cost)))
            return
        manifest, generation = model.manifest, _generation(model.manifest)
        tokenizer = manifest.tokenizers[loaded.variant.tokenizer]
        speech = Speech(
            text=load_token_text(model.folder / tokenizer.path),
            end_tokens=generation.end_tokens,
            vocabulary=generation.vocabulary,
            context=generation.context,
        )
        settings = SchedulingSettings(
            blocks=capacity.arena_tokens // KV_BLOCK_TOKENS,
            context=generation.context,
            max_waiting=self._settings.max_waiting,
        )
        lane = Lane(
            name,
            loaded.variant.name,
            engine=loaded.engine,
            scheduler=DecodeScheduler(settings, cost, self._settings.policy),
            speech=speech,
            draw_seed=self._parts.draw_seed,
        )
        self._lanes[name] = lane
        self._parts.loop.attach(lane)
        # The lane is in the worker's reports before its model is said to be ready.
        self._parts.on_engine(lambda: None)

    def release(self, model: HostedModel, function: Callable[[], None]) -> None:
        """Runs `function` on the engine thread once the model's generations have ended."""
        name = model.manifest.name
        lane = self._lanes.pop(name, None)
        if lane is not None:
            finished(self._parts.loop.retire(lane.model, lane.variant))
        self._parts.on_engine(function)

    def forget(self, lane: Lane) -> None:
        """Lets go of a lane that the loop has lost, and with it of its arena."""
        if self._lanes.get(lane.model) is lane:
            del self._lanes[lane.model]

    def speech(self, model: str) -> Speech | None:
        """What answers of a model are made with, once it serves."""
        lane = self._lanes.get(model)
        return None if lane is None else lane.speech

    def memory_lines(self) -> list[MemoryLine]:
        """What the arenas hold, asked of the engine thread; nothing once that has ended.

        Waits for a step that runs, no longer than a second.
        """
        huge = process_memory().huge
        with suppress(Unavailable, TimeoutError):
            return finished(self._parts.loop.call(lambda: self._arenas(huge)), timeout_s=1.0)
        return []

    def _arenas(self, huge: int) -> list[MemoryLine]:
        return [line for lane in list(self._lanes.values()) for line in arena_lines(lane, huge)]

    def _engines(
        self, session: Session, generation: Generation, variant: Variant
    ) -> Callable[[int], Stepper]:
        """What makes engines of a session, each on an arena of so many blocks."""
        kv, dense = generation.kv, variant.layout == "dense"

        def arena(blocks: int) -> KvArena:
            return KvArena(
                layers=kv.layers,
                kv_heads=kv.kv_heads,
                head_dim=kv.head_dim,
                blocks=blocks,
                half=self._settings.half and not dense,
            )

        def paged(blocks: int) -> Stepper:
            return DecodeEngine(
                session,
                arena(blocks),
                vocabulary=generation.vocabulary,
                context=generation.context,
            )

        def stock(blocks: int, filled: bool) -> StockDecodeEngine:
            return StockDecodeEngine(
                session,
                arena(blocks),
                vocabulary=generation.vocabulary,
                context=generation.context,
                threads=self._settings.threads,
                filled=filled,
            )

        if not dense:
            return paged
        bears = self._parts.on_engine(
            lambda: bears_filling(
                lambda filled: stock(PROBE_BLOCKS, filled),
                vocabulary=generation.vocabulary,
                context=generation.context,
            )
        )
        if not bears:
            log.info("variant=%s runs only sequences of one length together", variant.name)
        return lambda blocks: stock(blocks, bears)

    def _token_bytes(self, generation: Generation, variant: Variant) -> int:
        return kv_token_bytes(variant.layout, generation.kv, 2 if self._settings.half else 4)


def arena_lines(lane: Lane, huge: int) -> list[MemoryLine]:
    """What a lane's arena is for; to be asked on the engine thread.

    The arena is mapped at once and takes memory where tokens were written, in huge pages as far
    as the process has `huge` bytes of them.
    """
    owner = f"{lane.model}/{lane.variant}"
    arena, use = lane.engine.arena, lane.scheduler.arena_use()
    stats = arena.stats()
    block = stats.bytes // stats.blocks
    cached = sum(use.cached.values())
    empty = int(stats.fragmentation * stats.used * block)
    touched = min(
        arena.touched_bytes(use.touched, HUGE_PAGE),
        arena.touched_bytes(use.touched, SMALL_PAGE) + huge,
    )
    spare = max(0, touched - (use.held + cached) * block)
    lines = [
        MemoryLine(Lifetime.SEQUENCES, owner, max(0, use.held * block - empty), stats.bytes),
        MemoryLine(Lifetime.ARENA, f"{owner} places without a token", empty),
        MemoryLine(Lifetime.ARENA, f"{owner} free, written before", spare),
    ]
    # Private scopes are one for each generation: only the largest are told apart.
    largest = sorted(use.cached.items(), key=lambda entry: -entry[1])
    for tenant, blocks in largest[:_MOST_TENANTS]:
        name = tenant.replace("\n", "/") or "(none)"
        of = f"{owner} tenant {name}"
        lines.append(MemoryLine(Lifetime.PREFIXES, of, blocks * block))
    rest = sum(blocks for _, blocks in largest[_MOST_TENANTS:])
    if rest:
        lines.append(MemoryLine(Lifetime.PREFIXES, f"{owner} other tenants", rest * block))
    return lines


def _generation(manifest: Manifest) -> Generation:
    if manifest.generation is None:
        raise ModelLoadError(f"model {manifest.name!r} does not generate text")
    return manifest.generation


def _rank(precision: str) -> int:
    return _PREFERRED.index(precision) if precision in _PREFERRED else len(_PREFERRED)
