"""Paged attention against a stock graph: a GPT-2 of 124 million random weights in both forms."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.decode.ours import EngineSubject
from worker.decode import DecodeEngine, SequenceStep, StepLogits
from worker.engine import Session
from worker.kv_arena import KV_BLOCK_TOKENS, KvArena
from worker.models.blocks import Matrix
from worker.models.decoder import (
    Decoder,
    DecoderConfig,
    DecoderLayer,
    DecoderNorm,
    Floats,
    Linear,
)
from worker.models.graph import write_graph
from worker.models.paged import PagedEmitter, shared_weights
from worker.models.stock_decoder import emit_stock
from worker.models.weights import write_weights
from worker.stock_decode import StockDecodeEngine

GPT2 = DecoderConfig(
    architecture="gpt2",
    layers=12,
    hidden=768,
    heads=12,
    kv_heads=12,
    head_dim=64,
    intermediate=3072,
    vocabulary=50257,
    context=1024,
    epsilon=1e-5,
    rope_theta=0.0,
)
_SPREAD = 0.02


@dataclass(frozen=True, slots=True)
class StockSettings:
    """Medians are over `rounds` turns of `steps` steps with `cached` tokens, for each batch."""

    threads: int = 2
    rounds: int = 5
    steps: int = 6
    batches: tuple[int, ...] = (1, 4)
    cached: int = 960
    seed: int = 1


def against_stock(
    settings: StockSettings, notify: Callable[[str], None], *, config: DecoderConfig = GPT2
) -> list[dict[str, Any]]:
    """One point a batch size: the stock graph's step time over the paged graph's, in fp32.

    `moved_share` is the share of a stock step that copying keys and values between arena and
    tensors took, `largest_difference` that of the first step's logits.
    """
    with tempfile.TemporaryDirectory(prefix="orchid-stock-") as scratch:
        notify("building GPT-2 of random weights in both forms")
        paged, stock = _build(Path(scratch), random_decoder(config, settings.seed))
        ours = _paged(paged, config, settings)
        theirs = _stock(stock, config, settings)
    points = []
    for batch in settings.batches:
        notify(f"paged and stock GPT-2: {batch} at {settings.cached}")
        points.append(_compared(ours, theirs, batch, settings))
    return points


def random_decoder(config: DecoderConfig, seed: int) -> Decoder:
    """A GPT-2 of the given shape with random dense weights."""
    generator = np.random.default_rng(seed)

    def draw(*shape: int) -> Floats:
        return generator.standard_normal(shape, dtype=np.float32) * np.float32(_SPREAD)

    def linear(outputs: int, inputs: int) -> Linear:
        return Linear(Matrix.dense(draw(outputs, inputs)), draw(outputs))

    def norm() -> DecoderNorm:
        return DecoderNorm(1 + draw(config.hidden), draw(config.hidden))

    layers = tuple(
        DecoderLayer(
            attention_norm=norm(),
            qkv=linear(3 * config.hidden, config.hidden),
            attended=linear(config.hidden, config.hidden),
            mlp_norm=norm(),
            up=linear(config.intermediate, config.hidden),
            down=linear(config.hidden, config.intermediate),
        )
        for _ in range(config.layers)
    )
    return Decoder(
        config=config,
        words=Matrix.dense(draw(config.vocabulary, config.hidden)),
        positions=draw(config.context, config.hidden),
        layers=layers,
        norm=norm(),
    )


class _Kept:
    """An engine that keeps what its last step returned."""

    def __init__(self, engine: DecodeEngine | StockDecodeEngine) -> None:
        self._engine = engine
        self.last: StepLogits | None = None

    @property
    def arena(self) -> KvArena:
        """The arena of the engine."""
        return self._engine.arena

    def step(self, plan: Sequence[SequenceStep]) -> StepLogits:
        """Run one step."""
        self.last = self._engine.step(plan)
        return self.last


@dataclass(frozen=True, slots=True)
class _Side:
    subject: EngineSubject
    engine: _Kept

    def timed(self, steps: int) -> tuple[float, float]:
        """Medians of `steps` steps: seconds, and the share of them that copying took."""
        seconds, shares = [], []
        for _ in range(steps):
            (took,) = self.subject.steps(1)
            seconds.append(took)
            shares.append(self.last.moved_ns / 1e9 / took)
        return median(seconds), median(shares)

    @property
    def last(self) -> StepLogits:
        """What the last step returned."""
        if self.engine.last is None:
            raise RuntimeError("no step has run")
        return self.engine.last


def _compared(paged: _Side, stock: _Side, batch: int, settings: StockSettings) -> dict[str, Any]:
    logits = []
    for side in (paged, stock):
        side.subject.open(batch, settings.cached)
        side.timed(1)
        logits.append(side.last.logits)
    difference = float(np.abs(logits[0] - logits[1]).max())
    rounds = []
    for number in range(settings.rounds):
        # Whoever runs second finds warmer caches, so the order alternates.
        sides = (stock, paged) if number % 2 else (paged, stock)
        found = {id(side): side.timed(settings.steps) for side in sides}
        rounds.append((found[id(paged)][0], *found[id(stock)]))
    for side in (paged, stock):
        side.subject.close()
    suffix = "" if batch == 1 else f"_b{batch}"
    return {
        "name": "stock",
        "summary": f"vs_stock_gpt2_{settings.cached}{suffix}",
        "batch": batch,
        "cached": settings.cached,
        "ms": median(mine for mine, _, _ in rounds) * 1e3,
        "stock_ms": median(other for _, other, _ in rounds) * 1e3,
        "moved_share": median(share for _, _, share in rounds),
        "ratio": median(other / mine for mine, other, _ in rounds),
        "largest_difference": difference,
    }


def _build(folder: Path, decoder: Decoder) -> tuple[Path, Path]:
    paged, stock = folder / "paged.onnx", folder / "stock.onnx"
    model, own = PagedEmitter(decoder, "fp32").emit("paged.weights", "words.weights")
    write_weights(own, folder / "paged.weights")
    write_weights(shared_weights(decoder, "words.weights"), folder / "words.weights")
    write_graph(model, paged)
    model, own = emit_stock(decoder, "stock.weights")
    write_weights(own, folder / "stock.weights")
    write_graph(model, stock)
    return paged, stock


def _paged(graph: Path, config: DecoderConfig, settings: StockSettings) -> _Side:
    session = Session(graph, intra_op_threads=settings.threads, spinning=True, share_weights=False)
    engine = DecodeEngine(
        session,
        _arena(config, settings),
        vocabulary=config.vocabulary,
        context=config.context,
    )
    return _side(engine, config, settings)


def _stock(graph: Path, config: DecoderConfig, settings: StockSettings) -> _Side:
    session = Session(graph, intra_op_threads=settings.threads, spinning=True, share_weights=False)
    engine = StockDecodeEngine(
        session,
        _arena(config, settings),
        vocabulary=config.vocabulary,
        context=config.context,
        threads=settings.threads,
    )
    return _side(engine, config, settings)


def _side(
    engine: DecodeEngine | StockDecodeEngine, config: DecoderConfig, settings: StockSettings
) -> _Side:
    kept = _Kept(engine)
    subject = EngineSubject(
        kept,
        vocabulary=config.vocabulary,
        batch=max(settings.batches),
        context=config.context,
    )
    return _Side(subject, kept)


def _arena(config: DecoderConfig, settings: StockSettings) -> KvArena:
    return KvArena(
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        blocks=max(settings.batches) * -(-config.context // KV_BLOCK_TOKENS),
        half=False,
    )
