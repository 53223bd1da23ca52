"""Reads decoders: LLaMA from GGUF files, LLaMA and GPT-2 from checkpoint folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worker.models.blocks import Matrix, interleaved_rows, stacked
from worker.models.config_fields import ConfigFields
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

_CONFIG = "config.json"
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
    fields = ConfigFields(file.metadata, file=file.name, remedy=_GGUF_REMEDY)
    hidden = fields.size("llama.embedding_length")
    heads = fields.size("llama.attention.head_count")
    config = DecoderConfig(
        architecture="llama",
        layers=fields.size("llama.block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=fields.size("llama.attention.head_count_kv", heads),
        head_dim=fields.size("llama.rope.dimension_count", hidden // heads),
        intermediate=fields.size("llama.feed_forward_length"),
        vocabulary=len(file.value("tokenizer.ggml.tokens", list)),
        context=fields.size("llama.context_length"),
        epsilon=fields.positive("llama.attention.layer_norm_rms_epsilon"),
        rope_theta=fields.positive("llama.rope.freq_base", 10000.0),
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
    fields = ConfigFields(document, file=_CONFIG, remedy=_REMEDY)
    rope = fields.section("rope_parameters") or fields.section("rope_scaling")
    kind = rope.get("rope_type", rope.get("type", "default"))
    _need(kind == "default", "rotary positions without scaling", kind)
    activation = document.get("hidden_act", "silu")
    _need(activation == "silu", "activation 'silu'", activation)
    heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    bases = ConfigFields({**document, **rope}, file=_CONFIG, remedy=_REMEDY)
    return DecoderConfig(
        architecture="llama",
        layers=fields.size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=fields.size("num_key_value_heads", heads),
        head_dim=fields.size("head_dim", hidden // heads),
        intermediate=fields.size("intermediate_size"),
        vocabulary=fields.size("vocab_size"),
        context=fields.size("max_position_embeddings"),
        epsilon=fields.positive("rms_norm_eps", 1e-6),
        rope_theta=bases.positive("rope_theta", 10000.0),
    )


def _gpt2_config(document: Mapping[str, Any]) -> DecoderConfig:
    activation = document.get("activation_function", "gelu_new")
    _need(activation in ("gelu_new", "gelu_pytorch_tanh"), "activation 'gelu_new'", activation)
    for key in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"):
        _need(not document.get(key), f"no {key}", document.get(key))
    fields = ConfigFields(document, file=_CONFIG, remedy=_REMEDY)
    heads, hidden = fields.size("n_head"), fields.size("n_embd")
    return DecoderConfig(
        architecture="gpt2",
        layers=fields.size("n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate=fields.size("n_inner", 4 * hidden),
        vocabulary=fields.size("vocab_size"),
        context=fields.size("n_positions"),
        epsilon=fields.positive("layer_norm_epsilon", 1e-5),
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


def _need(held: bool, expected: str, got: object) -> None:
    if not held:
        raise CheckpointError(expected, repr(got), _REMEDY)


def _checked(config: DecoderConfig) -> DecoderConfig:
    heads, kv_heads, hidden = config.heads, config.kv_heads, config.hidden
    _need(heads % kv_heads == 0, "heads in multiples of kv heads", (heads, kv_heads))
    _need(config.head_dim > 0, "no more heads than the hidden size", (heads, hidden))
    rotary = config.rope_theta > 0
    _need(not rotary or config.head_dim % 2 == 0, "heads of an even size", config.head_dim)
    return config


def _fitting(decoder: Decoder, remedy: str) -> Decoder:
    """Return the decoder if every matrix has the shape that its sizes say."""
    config = decoder.config
    attention = config.heads * config.head_dim
    wide = config.intermediate * (2 if config.architecture == "llama" else 1)
    kv = 2 * config.kv_heads * config.head_dim
    expected: list[tuple[str, Matrix | Floats, tuple[int, int]]]
    expected = [("embeddings", decoder.words, (config.vocabulary, config.hidden))]
    if decoder.positions is not None:
        expected.append(("positions", decoder.positions, (config.context, config.hidden)))
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
