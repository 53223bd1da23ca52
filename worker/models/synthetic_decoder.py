"""Tiny decoders that build in milliseconds, and their definition in numpy.

Their attention is broad and their weights are large enough that every cached position changes the
logits, so a lost, stale or misplaced block cannot go unseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from worker.models.blocks import Matrix, eight_bits, four_bits
from worker.models.decoder import (
    Architecture,
    Decoder,
    DecoderConfig,
    DecoderLayer,
    DecoderNorm,
    Floats,
    Linear,
)


def tiny_decoder(
    architecture: Architecture = "llama",
    *,
    seed: int = 1,
    layers: int = 2,
    heads: int = 6,
    kv_heads: int = 2,
    head_dim: int = 16,
    vocabulary: int = 97,
    context: int = 2048,
    tied: bool = True,
) -> Decoder:
    """Return a decoder with random dense weights; ``gpt2`` has as many kv heads as heads.

    A ``tied`` one has its embeddings as head and tends to repeat itself.
    """
    llama = architecture == "llama"
    hidden = heads * head_dim
    config = DecoderConfig(
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads if llama else heads,
        head_dim=head_dim,
        intermediate=2 * hidden,
        vocabulary=vocabulary,
        context=context,
        epsilon=1e-5,
        rope_theta=10000.0 if llama else 0.0,
    )
    random = np.random.default_rng(seed)

    def draw(*shape: int, scale: float) -> Floats:
        return random.normal(0.0, scale, shape).astype(np.float32)

    def linear(outputs: int, inputs: int) -> Linear:
        weight = Matrix.dense(draw(outputs, inputs, scale=1.2 / np.sqrt(inputs)))
        return Linear(weight, None if llama else draw(outputs, scale=0.1))

    def norm() -> DecoderNorm:
        scale = 1 + draw(hidden, scale=0.1)
        return DecoderNorm(scale, None if llama else draw(hidden, scale=0.1))

    wide = config.intermediate * (2 if llama else 1)
    made = tuple(
        DecoderLayer(
            attention_norm=norm(),
            qkv=linear((heads + 2 * config.kv_heads) * head_dim, hidden),
            attended=linear(hidden, hidden),
            mlp_norm=norm(),
            up=linear(wide, hidden),
            down=linear(hidden, config.intermediate),
        )
        for _ in range(layers)
    )
    return Decoder(
        config=config,
        words=Matrix.dense(draw(vocabulary, hidden, scale=1.0)),
        positions=None if llama else draw(context, hidden, scale=0.5),
        layers=made,
        norm=norm(),
        head=None if tied else Matrix.dense(draw(vocabulary, hidden, scale=1.0)),
    )


def quantized_decoder(decoder: Decoder | None = None) -> Decoder:
    """Return a decoder whose matrices are 4-bit blocks and whose embeddings are 8-bit blocks."""
    source = tiny_decoder() if decoder is None else decoder

    def linear(dense: Linear) -> Linear:
        return Linear(four_bits(dense.weight.floats()), dense.bias)

    layers = tuple(
        replace(
            layer,
            qkv=linear(layer.qkv),
            attended=linear(layer.attended),
            up=linear(layer.up),
            down=linear(layer.down),
        )
        for layer in source.layers
    )
    return replace(source, words=eight_bits(source.words.floats()), layers=layers)


def reference_decode(decoder: Decoder, tokens: Sequence[int]) -> Floats:
    """Return the logits [tokens, vocabulary] after each token of one sequence, in float64."""
    config = decoder.config
    x = decoder.words.floats()[list(tokens)].astype(np.float64)
    if decoder.positions is not None:
        x += decoder.positions[: len(tokens)]
    for layer in decoder.layers:
        normed = _normalize(config, layer.attention_norm, x)
        x = x + _apply(layer.attended, _attend(config, _apply(layer.qkv, normed)))
        wide = _apply(layer.up, _normalize(config, layer.mlp_norm, x))
        x = x + _apply(layer.down, _activate(config, wide))
    head = decoder.words if decoder.head is None else decoder.head
    logits = _normalize(config, decoder.norm, x) @ head.floats().T.astype(np.float64)
    result: Floats = logits.astype(np.float32)
    return result


_Doubles = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def _apply(linear: Linear, x: _Doubles) -> _Doubles:
    product: _Doubles = x @ linear.weight.floats().T.astype(np.float64)
    return product if linear.bias is None else product + linear.bias


def _normalize(config: DecoderConfig, norm: DecoderNorm, x: _Doubles) -> _Doubles:
    if norm.shift is None:
        size = np.sqrt((x * x).mean(axis=-1, keepdims=True) + config.epsilon)
        scaled: _Doubles = x / size * norm.scale
        return scaled
    centred = x - x.mean(axis=-1, keepdims=True)
    size = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + config.epsilon)
    result: _Doubles = centred / size * norm.scale + norm.shift
    return result


def _activate(config: DecoderConfig, x: _Doubles) -> _Doubles:
    if config.architecture == "llama":
        gate, up = np.split(x, 2, axis=-1)
        gated: _Doubles = gate / (1 + np.exp(-gate)) * up
        return gated
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    result: _Doubles = 0.5 * x * (1 + np.tanh(inner))
    return result


def _rotate(config: DecoderConfig, x: _Doubles) -> _Doubles:
    """Rotate [tokens, heads, head_dim] to the tokens' positions."""
    half = config.head_dim // 2
    powers = config.rope_theta ** (-np.arange(half) / half)
    angles = np.arange(len(x))[:, None, None] * powers
    low, high = x[..., :half], x[..., half:]
    turned = (
        low * np.cos(angles) - high * np.sin(angles),
        high * np.cos(angles) + low * np.sin(angles),
    )
    return np.concatenate(turned, axis=-1)


def _attend(config: DecoderConfig, qkv: _Doubles) -> _Doubles:
    """Return causal grouped-query attention over packed projections of one sequence."""
    tokens = len(qkv)
    rows = qkv.reshape(tokens, -1, config.head_dim)
    heads, kv_heads = config.heads, config.kv_heads
    q, k, v = rows[:, :heads], rows[:, heads : heads + kv_heads], rows[:, heads + kv_heads :]
    if config.rope_theta:
        q, k = _rotate(config, q), _rotate(config, k)
    k, v = (np.repeat(part, heads // kv_heads, axis=1) for part in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(config.head_dim)
    scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed: _Doubles = np.einsum("hij,jhd->ihd", weights, v).reshape(tokens, -1)
    return mixed
