"""Tiny decoders on disk, and a caller that keeps a ledger beside the arena."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from worker.decode import DecodeEngine, SequenceStep
from worker.engine import Session
from worker.kv_arena import KvArena
from worker.models.decoder import Decoder
from worker.models.graph import write_graph
from worker.models.paged import DecoderPrecision, PagedEmitter, shared_weights
from worker.models.stock_decoder import emit_stock
from worker.models.weights import write_weights
from worker.scheduling.blocks import BlockLedger, blocks_for

Logits = NDArray[np.float32]
Change = Callable[[onnx.ModelProto], None]


def write_decoder(folder: Path, decoder: Decoder, precision: DecoderPrecision = "fp32") -> Path:
    """Write graph and weights; return the graph's path."""
    graph = folder / f"{precision}.onnx"
    model, own = PagedEmitter(decoder, precision).emit(f"{precision}.weights", "shared.weights")
    write_graph(model, graph)
    write_weights(own, folder / f"{precision}.weights")
    write_weights(shared_weights(decoder, "shared.weights"), folder / "shared.weights")
    return graph


def write_stock(folder: Path, decoder: Decoder, change: Change | None = None) -> Path:
    """Write the stock graph, changed before, and its weights; return the graph's path."""
    graph = folder / "stock.onnx"
    model, own = emit_stock(decoder, "stock.weights")
    if change is not None:
        change(model)
    write_graph(model, graph)
    write_weights(own, folder / "stock.weights")
    return graph


def ignore_mask(model: onnx.ModelProto) -> None:
    """Let every token be seen, whatever the mask says."""
    replace_input(model, "attention_mask", "all_ones")
    one = numpy_helper.from_array(np.ones(1, np.int64))
    put_first(
        model,
        helper.make_node("Shape", ["attention_mask"], ["mask_shape"]),
        helper.make_node("ConstantOfShape", ["mask_shape"], ["all_ones"], value=one),
    )


def count_positions(model: onnx.ModelProto) -> None:
    """Take positions from the length of the past instead of an input."""
    replace_input(model, "position_ids", "counted")
    (positions,) = [value for value in model.graph.input if value.name == "position_ids"]
    model.graph.input.remove(positions)
    for name, value in (("axis", [0]), ("step", 1), ("third", 2), ("second", 1)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
    put_first(
        model,
        helper.make_node("Shape", ["past_key_values.0.key"], ["past_shape"]),
        helper.make_node("Gather", ["past_shape", "third"], ["past_length"]),
        helper.make_node("Shape", ["input_ids"], ["ids_shape"]),
        helper.make_node("Gather", ["ids_shape", "second"], ["new_length"]),
        helper.make_node("Add", ["past_length", "new_length"], ["end"]),
        helper.make_node("Range", ["past_length", "end", "step"], ["new_places"]),
        helper.make_node("Unsqueeze", ["new_places", "axis"], ["counted"]),
    )


def replace_input(model: onnx.ModelProto, old: str, new: str) -> None:
    """Let every node that reads `old` read `new`."""
    for node in model.graph.node:
        names = [new if name == old else name for name in node.input]
        del node.input[:]
        node.input.extend(names)


def put_first(model: onnx.ModelProto, *nodes: onnx.NodeProto) -> None:
    """Put nodes before all others."""
    rest = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *rest])


def open_session(graph: Path, threads: int = 1) -> Session:
    """Load a graph without the host's cache of prepared ones."""
    return Session(graph, intra_op_threads=threads, share_weights=False)


@dataclass
class Text:
    """A sequence being decoded: the blocks it holds and the tokens they contain."""

    tokens: list[int]
    past: int = 0
    blocks: list[int] = field(default_factory=list)


class Lane:
    """Decodes texts on one arena; ledger and arena take the same changes."""

    def __init__(
        self, decoder: Decoder, session: Session, *, blocks: int = 96, half: bool = False
    ) -> None:
        config = decoder.config
        self.ledger = BlockLedger(blocks)
        self.arena = KvArena(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            blocks=blocks,
            half=half,
        )
        self.engine = DecodeEngine(
            session, self.arena, vocabulary=config.vocabulary, context=config.context
        )

    def plan(self, text: Text, count: int, wants_logits: bool = True) -> SequenceStep:
        """The next `count` tokens of a text, with blocks for them."""
        missing = blocks_for(text.past + count) - len(text.blocks)
        if missing > 0:
            taken = self.ledger.allocate(missing)
            self.arena.acquire(taken, 1)
            text.blocks += taken
        tokens = text.tokens[text.past : text.past + count]
        return SequenceStep(tokens, text.past, tuple(text.blocks), wants_logits)

    def step(self, *parts: tuple[Text, int]) -> Logits:
        """Run the next tokens of each text in one step; a row of logits each."""
        logits = self.engine.step([self.plan(text, count) for text, count in parts]).logits
        for text, count in parts:
            text.past += count
        return logits

    def free(self, text: Text) -> None:
        """Give a text's blocks back."""
        self.ledger.release(text.blocks)
        self.arena.release(text.blocks)
        text.blocks, text.past = [], 0

    def alone(self, tokens: Sequence[int], chunks: Sequence[int]) -> list[Logits]:
        """Decode a text alone in chunks; one row after each."""
        text = Text(list(tokens))
        rows = [self.step((text, count))[0] for count in chunks]
        self.free(text)
        return rows

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The `count` most likely tokens after a prompt, one after the other."""
        text = Text(list(prompt))
        logits = self.step((text, len(prompt)))
        for _ in range(count):
            text.tokens.append(int(logits[0].argmax()))
            if len(text.tokens) < len(prompt) + count:
                logits = self.step((text, 1))
        made = text.tokens[len(prompt) :]
        self.free(text)
        return made
