"""Reads decoders: LLaMA from GGUF files, LLaMA and GPT-2 from checkpoint folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worker.models.blocks import Matrix, interleaved_rows, stacked
from worker.models.decoder import (
    Decoder,
    DecoderConfig,
    DecoderLayer,
    DecoderNorm,
    Floats,
    Linear,
)
from worker.models.errors import CheckpointError
from worker.models.gguf import GgufFile

MODEL_TYPES = ("llama", "gpt2")

_GGUF_REMEDY = "use a GGUF file of a LLaMA-architecture model"
_REMEDY = "use a LLaMA or GPT-2 checkpoint, saved by transformers"

Tensors = Mapping[str, NDArray[Any]]


def gguf_config(file: GgufFile) -> DecoderConfig:
    """Return a GGUF model's sizes; raises CheckpointError for another architecture."""
    architecture = file.value("general.architecture", str)
    if architecture != "llama":
        raise CheckpointError("architecture 'llama'", repr(architecture), _GGUF_REMEDY)
    scaling = file.metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in file.tensors:
        raise CheckpointError("rotary positions without scaling", str(scaling), _GGUF_REMEDY)
    hidden = file.value("llama.embedding_length", int)
    heads = file.value("llama.attention.head_count", int)
    head_dim = file.metadata.get("llama.rope.dimension_count", hidden // heads)
    config = DecoderConfig(
        architecture="llama",
        layers=file.value("llama.block_count", int),
        hidden=hidden,
        heads=heads,
        kv_heads=file.metadata.get("llama.attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate=file.value("llama.feed_forward_length", int),
        vocabulary=len(file.value("tokenizer.ggml.tokens", list)),
        context=file.value("llama.context_length", int),
        epsilon=file.value("llama.attention.layer_norm_rms_epsilon", float),
        rope_theta=float(file.metadata.get("llama.rope.freq_base", 10000.0)),
    )
    return _checked(config)


def read_gguf(file: GgufFile) -> Decoder:
    """Return the decoder of a GGUF file, its matrices in the blocks they are stored in.

    Rows of q and k, which such files have interleaved, come back in the order of checkpoints.
    """
    config = gguf_config(file)
    order = {"q": config.heads, "k": config.kv_heads}

    def layer(index: int) -> DecoderLayer:
        prefix = f"blk.{index}."

        def projection(name: str) -> Matrix:
            matrix = file.matrix(f"{prefix}attn_{name}.weight")
            heads = order.get(name)
            return (
                matrix if heads is None else matrix.rows(interleaved_rows(heads, config.head_dim))
            )

        def linear(*names: str) -> Linear:
            return Linear(stacked([file.matrix(f"{prefix}{name}.weight") for name in names]))

        return DecoderLayer(
            attention_norm=DecoderNorm(file.vector(prefix + "attn_norm.weight")),
            qkv=Linear(stacked([projection(name) for name in "qkv"])),
            attended=linear("attn_output"),
            mlp_norm=DecoderNorm(file.vector(prefix + "ffn_norm.weight")),
            up=linear("ffn_gate", "ffn_up"),
            down=linear("ffn_down"),
        )

    decoder = Decoder(
        config=config,
        words=file.matrix("token_embd.weight"),
        positions=None,
        layers=tuple(layer(index) for index in range(config.layers)),
        norm=DecoderNorm(file.vector("output_norm.weight")),
        head=file.matrix("output.weight") if "output.weight" in file.tensors else None,
    )
    return _fitting(decoder, _GGUF_REMEDY)


def checkpoint_config(document: Mapping[str, Any]) -> DecoderConfig:
    """Return the sizes that a ``config.json`` of a LLaMA or GPT-2 names.

    Raises CheckpointError for a value that is missing or asks for what is not supported.
    """
    kind = document.get("model_type")
    if kind == "llama":
        return _checked(_llama_config(document))
    if kind == "gpt2":
        return _checked(_gpt2_config(document))
    raise CheckpointError(f"a model_type of {MODEL_TYPES}", repr(kind), _REMEDY)


def read_decoder(config: DecoderConfig, weights: Tensors) -> Decoder:
    """Return the decoder of a checkpoint; raises CheckpointError when a weight is missing."""
    read = _read_llama if config.architecture == "llama" else _read_gpt2
    return _fitting(read(config, weights), _REMEDY)


def _llama_config(document: Mapping[str, Any]) -> DecoderConfig:
    rope = document.get("rope_parameters") or document.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    _need(kind == "default", "rotary positions without scaling", kind)
    activation = document.get("hidden_act", "silu")
    _need(activation == "silu", "activation 'silu'", activation)
    heads, hidden = _size(document, "num_attention_heads"), _size(document, "hidden_size")
    theta = rope.get("rope_theta", document.get("rope_theta", 10000.0))
    return DecoderConfig(
        architecture="llama",
        layers=_size(document, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=document.get("num_key_value_heads") or heads,
        head_dim=document.get("head_dim") or hidden // heads,
        intermediate=_size(document, "intermediate_size"),
        vocabulary=_size(document, "vocab_size"),
        context=_size(document, "max_position_embeddings"),
        epsilon=float(document.get("rms_norm_eps", 1e-6)),
        rope_theta=float(theta),
    )


def _gpt2_config(document: Mapping[str, Any]) -> DecoderConfig:
    activation = document.get("activation_function", "gelu_new")
    _need(activation in ("gelu_new", "gelu_pytorch_tanh"), "activation 'gelu_new'", activation)
    for key in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"):
        _need(not document.get(key), f"no {key}", document.get(key))
    heads, hidden = _size(document, "n_head"), _size(document, "n_embd")
    return DecoderConfig(
        architecture="gpt2",
        layers=_size(document, "n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate=document.get("n_inner") or 4 * hidden,
        vocabulary=_size(document, "vocab_size"),
        context=_size(document, "n_positions"),
        epsilon=float(document.get("layer_norm_epsilon", 1e-5)),
        rope_theta=0.0,
    )


def _read_llama(config: DecoderConfig, weights: Tensors) -> Decoder:
    def linear(prefix: str, *names: str) -> Linear:
        parts = [Matrix.dense(_floats(weights, f"{prefix}{name}.weight")) for name in names]
        biases = [
            _floats(weights, f"{prefix}{name}.bias")
            for name in names
            if f"{prefix}{name}.bias" in weights
        ]
        _need(len(biases) in (0, len(names)), f"all biases of {prefix} or none", len(biases))
        return Linear(stacked(parts), np.concatenate(biases) if biases else None)

    def layer(index: int) -> DecoderLayer:
        prefix = f"model.layers.{index}."
        return DecoderLayer(
            attention_norm=DecoderNorm(_floats(weights, prefix + "input_layernorm.weight")),
            qkv=linear(prefix + "self_attn.", "q_proj", "k_proj", "v_proj"),
            attended=linear(prefix + "self_attn.", "o_proj"),
            mlp_norm=DecoderNorm(_floats(weights, prefix + "post_attention_layernorm.weight")),
            up=linear(prefix + "mlp.", "gate_proj", "up_proj"),
            down=linear(prefix + "mlp.", "down_proj"),
        )

    tied = "lm_head.weight" not in weights
    return Decoder(
        config=config,
        words=Matrix.dense(_floats(weights, "model.embed_tokens.weight")),
        positions=None,
        layers=tuple(layer(index) for index in range(config.layers)),
        norm=DecoderNorm(_floats(weights, "model.norm.weight")),
        head=None if tied else Matrix.dense(_floats(weights, "lm_head.weight")),
    )


def _read_gpt2(config: DecoderConfig, weights: Tensors) -> Decoder:
    root = "transformer." if "transformer.wte.weight" in weights else ""

    def linear(name: str) -> Linear:
        # Stored as the product has it, [inputs, outputs].
        weight = np.ascontiguousarray(_floats(weights, f"{root}{name}.weight").T)
        return Linear(Matrix.dense(weight), _floats(weights, f"{root}{name}.bias"))

    def norm(name: str) -> DecoderNorm:
        scale, shift = (_floats(weights, f"{root}{name}.{part}") for part in ("weight", "bias"))
        return DecoderNorm(scale, shift)

    layers = tuple(
        DecoderLayer(
            attention_norm=norm(f"h.{index}.ln_1"),
            qkv=linear(f"h.{index}.attn.c_attn"),
            attended=linear(f"h.{index}.attn.c_proj"),
            mlp_norm=norm(f"h.{index}.ln_2"),
            up=linear(f"h.{index}.mlp.c_fc"),
            down=linear(f"h.{index}.mlp.c_proj"),
        )
        for index in range(config.layers)
    )
    return Decoder(
        config=config,
        words=Matrix.dense(_floats(weights, f"{root}wte.weight")),
        positions=_floats(weights, f"{root}wpe.weight"),
        layers=layers,
        norm=norm("ln_f"),
    )


def _floats(weights: Tensors, name: str) -> Floats:
    if name not in weights:
        some = ", ".join(sorted(weights)[:4]) or "nothing"
        raise CheckpointError(f"a weight {name!r}", f"{some}, ...", _REMEDY)
    return np.asarray(weights[name], np.float32)


def _size(document: Mapping[str, Any], key: str) -> int:
    value = document.get(key)
    if not isinstance(value, int) or value < 1:
        raise CheckpointError(f"a positive {key!r} in config.json", repr(value), _REMEDY)
    return value


def _need(held: bool, expected: str, got: object) -> None:
    if not held:
        raise CheckpointError(expected, repr(got), _REMEDY)


def _checked(config: DecoderConfig) -> DecoderConfig:
    _need(
        config.heads % config.kv_heads == 0 and config.head_dim > 0,
        "heads in multiples of kv heads",
        (config.heads, config.kv_heads),
    )
    rotary = config.rope_theta > 0
    _need(not rotary or config.head_dim % 2 == 0, "heads of an even size", config.head_dim)
    return config


def _fitting(decoder: Decoder, remedy: str) -> Decoder:
    """Return the decoder if every matrix has the shape that its sizes say."""
    config = decoder.config
    attention = config.heads * config.head_dim
    wide = config.intermediate * (2 if config.architecture == "llama" else 1)
    kv = 2 * config.kv_heads * config.head_dim
    expected = [("embeddings", decoder.words, (config.vocabulary, config.hidden))]
    for index, layer in enumerate(decoder.layers):
        expected += [
            (f"layer {index} qkv", layer.qkv.weight, (attention + kv, config.hidden)),
            (f"layer {index} attended", layer.attended.weight, (config.hidden, attention)),
            (f"layer {index} up", layer.up.weight, (wide, config.hidden)),
            (f"layer {index} down", layer.down.weight, (config.hidden, config.intermediate)),
        ]
    if decoder.head is not None:
        expected.append(("head", decoder.head, (config.vocabulary, config.hidden)))
    for name, matrix, shape in expected:
        if matrix.shape != shape:
            raise CheckpointError(f"{name} of shape {shape}", f"{matrix.shape}", remedy)
    return decoder
