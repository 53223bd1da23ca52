"""What a finished decoder graph says of itself, and what must come with it.

Exporters write ``past_key_values.N.key`` and ``.value`` [batch, kv_heads, past, head_dim] as inputs
and ``present.N.*`` with the new tokens behind them as outputs; everything else is in the files of
the checkpoint that lie beside the graph.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.decode import SequenceStep
from worker.engine import Session
from worker.kv_arena import KvArena
from worker.models.checkpoint import read_tokenizer
from worker.models.errors import CheckpointError
from worker.models.generator import folder_settings
from worker.models.manifest import LARGEST, Generation, KvGeometry, TensorSpec
from worker.models.signature import PAST, Signature
from worker.stock_decode import StockDecodeEngine

_PRESENT = "present."
_PARTS = ("key", "value")
_IDS = "input_ids"
_TEXT_INPUTS = frozenset({_IDS, "attention_mask", "position_ids"})
_CONTEXTS = ("max_position_embeddings", "n_positions", "n_ctx")
# What chooses between the two graphs that some exporters merge into one.
_BRANCH = "use_cache_branch"
_REMEDY = "export it with past keys and values in float32, or serve it as is with --task tensor"


@dataclass(frozen=True, slots=True)
class DecoderFiles:
    """What generating text with a finished graph needs; ``tokenizer`` is a tokenizer.json."""

    generation: Generation
    tokenizer: bytes


def decoder_files(
    signature: Signature,
    folder: Path,
    config: Mapping[str, Any],
    *,
    tokenizer: Path | None,
    max_tokens: int,
) -> DecoderFiles:
    """Return it from the graph's signature, its config.json and the files in ``folder``.

    ``tokenizer`` and ``max_tokens`` go before the folder's tokenizer.json and the configured
    context. Raises CheckpointError when something is missing or of another form.
    """
    kv = kv_geometry(signature)
    text = folder_settings(folder, config, tokenizer)
    known = read_tokenizer(text.tokenizer).get_vocab(with_added_tokens=True)
    vocabulary = _vocabulary(signature, config, max(known.values(), default=0) + 1)
    return DecoderFiles(
        Generation(
            chat_template=text.chat_template,
            end_tokens=text.end_tokens,
            begin_token=text.begin_token,
            vocabulary=vocabulary,
            context=_context(config, max_tokens),
            kv=kv,
        ),
        text.tokenizer,
    )


def kv_geometry(signature: Signature) -> KvGeometry:
    """Return the size of a graph's keys and values; CheckpointError for one of another form."""
    inputs = {spec.name: spec for spec in signature.inputs}
    outputs = {spec.name: spec for spec in signature.outputs}
    layers = sum(name.startswith(PAST) for name in inputs) // len(_PARTS)
    names = [f"{index}.{part}" for index in range(layers) for part in _PARTS]
    if _BRANCH in inputs:
        # Of one step's sequences some have a past and some have none; a branch is all or nothing.
        raise CheckpointError(
            "a graph that takes past keys and values of any length, none as well",
            f"a merged one, whose {_BRANCH} says for the whole run whether there is a past",
            "take the graph with past that it was merged of (decoder_with_past_model.onnx), or "
            "serve it as is with --task tensor",
        )
    texts = inputs.keys() & _TEXT_INPUTS
    wanted = {PAST + name for name in names} | texts
    if inputs.keys() != wanted or _IDS not in texts:
        raise CheckpointError(
            f"inputs {', '.join(sorted(_TEXT_INPUTS))} and {PAST}N.key and .value alone",
            _difference(inputs.keys(), wanted | {_IDS}),
            _REMEDY,
        )
    answers = {"logits", *(_PRESENT + name for name in names)}
    if not outputs.keys() >= answers:
        raise CheckpointError(
            f"outputs logits and {_PRESENT}N.key and .value",
            _difference(outputs.keys() & answers, answers),
            _REMEDY,
        )
    for name in texts:
        _check(inputs[name], "int64", (-1, -1))
    _check(outputs["logits"], "float32", (None, None, None))
    shape = inputs[f"{PAST}0.key"].shape
    if len(shape) != 4 or min(shape[1], shape[3]) < 1:
        raise CheckpointError(
            f"{PAST}0.key as [batch, kv_heads, tokens, head_dim] with fixed heads",
            str(list(shape)),
            _REMEDY,
        )
    kept = (-1, shape[1], -1, shape[3])
    for name in names:
        _check(inputs[PAST + name], "float32", kept)
        _check(outputs[_PRESENT + name], "float32", (None, None, None, None))
    return KvGeometry(layers, shape[1], shape[3])


def try_decoder(session: Session, generation: Generation) -> None:
    """Run a prompt and a token; raises WorkerError when that does not go as it must.

    So a graph that only looks like a decoder fails when it is imported and not in a worker.
    """
    kv = generation.kv
    arena = KvArena(
        layers=kv.layers, kv_heads=kv.kv_heads, head_dim=kv.head_dim, blocks=1, half=False
    )
    arena.acquire((0,), 1)
    engine = StockDecodeEngine(
        session, arena, vocabulary=generation.vocabulary, context=generation.context
    )
    prompt = [index % generation.vocabulary for index in range(min(3, generation.context - 1))]
    logits = engine.step([SequenceStep(prompt, 0, (0,))]).logits
    token = int(logits[0].argmax())
    engine.step([SequenceStep([token], len(prompt), (0,))])


def _vocabulary(signature: Signature, config: Mapping[str, Any], known: int) -> int:
    """Return the width of the logits, which has a place for each token of the tokenizer."""
    told = next(spec.shape[-1] for spec in signature.outputs if spec.name == "logits")
    width = told if told > 0 else config.get("vocab_size")
    if not isinstance(width, int) or width < 1:
        raise CheckpointError(
            "the size of the vocabulary",
            "logits of a free width and no vocab_size in config.json",
            "add the config.json of the checkpoint",
        )
    if known > width:
        raise CheckpointError(
            f"a tokenizer of at most {width} tokens",
            f"one of {known}",
            "use the tokenizer of this checkpoint",
        )
    return width


def _context(config: Mapping[str, Any], max_tokens: int) -> int:
    found = max_tokens or next((config[key] for key in _CONTEXTS if key in config), 0)
    if not isinstance(found, int) or not 2 <= found <= LARGEST:
        raise CheckpointError(
            f"the longest sequence the graph takes, of 2 to {LARGEST} tokens",
            "--max-tokens or config.json say " + json.dumps(found),
            "give --max-tokens",
        )
    return found


def _check(spec: TensorSpec, dtype: str, shape: tuple[int | None, ...]) -> None:
    """Raise CheckpointError unless a tensor has this type and shape.

    -1 is a free dimension, as runs of any company need it; None may be anything.
    """
    fits = len(spec.shape) == len(shape) and all(
        want in (None, got) for got, want in zip(spec.shape, shape, strict=False)
    )
    if spec.dtype != dtype or not fits:
        dimensions = ", ".join("any" if size is None else str(size) for size in shape)
        raise CheckpointError(
            f"{spec.name} as {dtype} [{dimensions}], where -1 is free",
            f"{spec.dtype} {list(spec.shape)}",
            _REMEDY,
        )


def _difference(got: Set[str], wanted: Set[str]) -> str:
    """Name what is missing and what is there besides."""
    parts = [("no ", wanted - got), ("also ", got - wanted)]
    return "; ".join(word + ", ".join(sorted(names)[:8]) for word, names in parts if names)
