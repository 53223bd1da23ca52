"""This engine as a subject of measurement: the decode engine on one variant of a model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.decode.peers.protocol import prompt
from worker.decode import DecodeEngine, SequenceStep, StepLogits
from worker.engine import Session, runtime_info
from worker.hosted import variant_files
from worker.kv_arena import KV_BLOCK_TOKENS, KvArena
from worker.models.manifest import Generation, Manifest, Variant
from worker.stock_decode import StockDecodeEngine

_OWNER = 1


class Steps(Protocol):
    """A decode engine: the paged one, or that of stock graphs."""

    @property
    def arena(self) -> KvArena:
        """The arena whose blocks plans name."""
        ...

    def step(self, plan: Sequence[SequenceStep]) -> StepLogits:
        """Run one step."""
        ...


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One step and its parts: attention, and copying of keys and values; in seconds."""

    seconds: float
    attention: float
    moved: float


class EngineSubject:
    """A decode engine with room for `batch` sequences of `context` tokens; see Subject.

    Prompts of a batch are prefilled once and their blocks copied: which tokens they are changes
    no timing.
    """

    def __init__(self, engine: Steps, *, vocabulary: int, batch: int, context: int) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        width = -(-context // KV_BLOCK_TOKENS)
        blocks = range(batch * width)
        engine.arena.acquire(blocks, _OWNER)
        self._blocks = [tuple(blocks[at : at + width]) for at in range(0, batch * width, width)]
        self._cached = 0
        self._past: list[int] = []
        self._tokens: list[int] = []

    @property
    def version(self) -> str:
        """The runtime inside."""
        return f"onnxruntime {runtime_info().library_version}"

    def prefill(self, tokens: int) -> float:
        """See Subject."""
        self.close()
        self._cached = 0
        ids = prompt(0, tokens, self._vocabulary)
        return self._timed([SequenceStep(ids, 0, self._blocks[0])]).seconds

    def first_token(self, number: int, tokens: int) -> int:
        """See Subject."""
        self.close()
        self._cached = 0
        self._timed([SequenceStep(prompt(number, tokens, self._vocabulary), 0, self._blocks[0])])
        return self._tokens[0]

    def open(self, batch: int, cached: int) -> None:
        """See Subject."""
        self.close()
        if self._cached < cached:
            self._fill(cached)
        self._past = [cached] * batch
        self._tokens = prompt(1, batch, self._vocabulary)

    def steps(self, count: int) -> list[float]:
        """See Subject."""
        return [step.seconds for step in self.timed_steps(count)]

    def timed_steps(self, count: int) -> list[TimedStep]:
        """The next `count` steps, as `steps`, with the time attention took."""
        return [self._next() for _ in range(count)]

    def close(self) -> None:
        """See Subject."""
        self._past, self._tokens = [], []

    def _next(self) -> TimedStep:
        plan = [
            SequenceStep([token], past, blocks)
            for token, past, blocks in zip(self._tokens, self._past, self._blocks, strict=False)
        ]
        # What follows a rewritten position does not count as cached any more.
        self._cached = min(self._cached, self._past[0])
        found = self._timed(plan)
        self._past = [past + 1 for past in self._past]
        return found

    def _timed(self, plan: Sequence[SequenceStep]) -> TimedStep:
        began = time.perf_counter()
        step = self._engine.step(plan)
        self._tokens = step.logits.argmax(axis=-1).tolist()
        return TimedStep(time.perf_counter() - began, step.attention_ns / 1e9, step.moved_ns / 1e9)

    def _fill(self, cached: int) -> None:
        """Cache `cached` tokens of every sequence."""
        first, *others = self._blocks
        ids = prompt(0, cached, self._vocabulary)
        self._engine.step([SequenceStep(ids, 0, first, wants_logits=False)])
        for blocks in others:
            for source, target in zip(first, blocks, strict=True):
                self._engine.arena.copy(source, target)
        self._cached = cached


@dataclass(frozen=True, slots=True)
class VariantFiles:
    """One variant of a language model, and what a decode step must read of it at least.

    `weight_bytes` are its weights with the embedding table's single row left out.
    """

    variant: Variant
    graph: Path
    weight_bytes: int


def variants_of(folder: Path, manifest: Manifest) -> dict[str, VariantFiles]:
    """The variants of a language model by precision; of stock graphs all files are weights."""
    found = {}
    for variant in manifest.variants:
        if variant.layout == "dense":
            own = [ref.size for ref in variant_files(folder, manifest, variant).values()]
        else:
            own = [
                ref.size
                for ref in manifest.files.values()
                if ref.path == f"{variant.name}.weights"
                # A head that is the embeddings themselves is read whole.
                or (variant.precision == "fp32" and ref.path == "words.weights")
            ]
        found[variant.precision] = VariantFiles(variant, folder / variant.graph, sum(own))
    return found


def open_variant(
    files: VariantFiles,
    generation: Generation,
    *,
    threads: int,
    batch: int,
    context: int,
    half: bool = True,
) -> EngineSubject:
    """Load a variant as serving does: threads that spin, keys and values in half precision.

    Those of a stock graph are float32.
    """
    dense = files.variant.layout == "dense"
    session = Session(files.graph, intra_op_threads=threads, spinning=True)
    kv = generation.kv
    arena = KvArena(
        layers=kv.layers,
        kv_heads=kv.kv_heads,
        head_dim=kv.head_dim,
        blocks=batch * -(-context // KV_BLOCK_TOKENS),
        half=half and not dense,
    )
    engine: Steps
    if dense:
        engine = StockDecodeEngine(
            session,
            arena,
            vocabulary=generation.vocabulary,
            context=generation.context,
            threads=threads,
        )
    else:
        engine = DecodeEngine(
            session, arena, vocabulary=generation.vocabulary, context=generation.context
        )
    return EngineSubject(engine, vocabulary=generation.vocabulary, batch=batch, context=context)
