"""Writes small GGUF files: a quantised decoder with a byte-level tokenizer of 97 tokens."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from worker.models.blocks import Matrix, interleaved_rows
from worker.models.decoder import Decoder
from worker.models.synthetic_decoder import quantized_decoder, tiny_decoder

TOKENS = ["<|endoftext|>", "<|im_end|>", "Ġ", "th", *(chr(c) for c in range(ord("!"), ord("~")))]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def tiny_gguf_decoder() -> Decoder:
    """A LLaMA whose vocabulary is TOKENS."""
    return quantized_decoder(tiny_decoder(vocabulary=len(TOKENS)))


def metadata_of(decoder: Decoder) -> dict[str, Any]:
    config = decoder.config
    return {
        "general.architecture": "llama",
        "llama.block_count": config.layers,
        "llama.context_length": config.context,
        "llama.embedding_length": config.hidden,
        "llama.feed_forward_length": config.intermediate,
        "llama.attention.head_count": config.heads,
        "llama.attention.head_count_kv": config.kv_heads,
        "llama.rope.freq_base": config.rope_theta,
        "llama.rope.dimension_count": config.head_dim,
        "llama.attention.layer_norm_rms_epsilon": config.epsilon,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3, 3] + [1] * (len(TOKENS) - 2),
        "tokenizer.ggml.merges": ["t h"],
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def tensors_of(decoder: Decoder) -> dict[str, Matrix | np.ndarray]:
    """The tensors as a GGUF names them; q and k rows in its interleaved order."""
    config = decoder.config
    heads = config.heads * config.head_dim
    kv = config.kv_heads * config.head_dim
    found: dict[str, Matrix | np.ndarray] = {
        "token_embd.weight": decoder.words,
        "output_norm.weight": decoder.norm.scale,
    }
    for index, layer in enumerate(decoder.layers):
        prefix = f"blk.{index}."
        rows = np.arange(heads + 2 * kv)
        q, k = (
            part[np.argsort(interleaved_rows(count, config.head_dim))]
            for part, count in (
                (rows[:heads], config.heads),
                (rows[heads : heads + kv], config.kv_heads),
            )
        )
        wide = np.arange(2 * config.intermediate)
        found |= {
            prefix + "attn_norm.weight": layer.attention_norm.scale,
            prefix + "attn_q.weight": layer.qkv.weight.rows(q),
            prefix + "attn_k.weight": layer.qkv.weight.rows(k),
            prefix + "attn_v.weight": layer.qkv.weight.rows(rows[heads + kv :]),
            prefix + "attn_output.weight": layer.attended.weight,
            prefix + "ffn_norm.weight": layer.mlp_norm.scale,
            prefix + "ffn_gate.weight": layer.up.weight.rows(wide[: config.intermediate]),
            prefix + "ffn_up.weight": layer.up.weight.rows(wide[config.intermediate :]),
            prefix + "ffn_down.weight": layer.down.weight,
        }
    return found


def write_gguf(
    path: Path, metadata: dict[str, Any], tensors: dict[str, Matrix | np.ndarray]
) -> None:
    """Write a version 3 file."""
    header = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        header += _string(key) + _typed(value)
    data = bytearray()
    for name, tensor in tensors.items():
        kind, shape, raw = _tensor(tensor)
        header += _string(name) + struct.pack("<I", len(shape))
        header += struct.pack(f"<{len(shape)}Q", *reversed(shape))
        header += struct.pack("<IQ", kind, len(data))
        data += raw + bytes(-len(raw) % 32)
    path.write_bytes(bytes(header) + bytes(-len(header) % 32) + bytes(data))


def _tensor(tensor: Matrix | np.ndarray) -> tuple[int, tuple[int, ...], bytes]:
    if isinstance(tensor, np.ndarray):
        return 0, tensor.shape, np.asarray(tensor, np.float32).tobytes()
    outputs, blocks = tensor.values.shape[:2]
    assert tensor.scales is not None
    parts = [_halves(tensor.scales)]
    if tensor.form == "q8":
        parts.append(np.asarray(tensor.values, np.int8).view(np.uint8))
    else:
        assert tensor.minima is not None
        values = np.asarray(tensor.values, np.uint8)
        parts += [_halves(tensor.minima), values[..., :16] | (values[..., 16:] << 4)]
    raw = np.concatenate(parts, axis=-1).reshape(outputs, blocks, -1)
    return (8 if tensor.form == "q8" else 3), tensor.shape, raw.tobytes()


def _halves(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values.astype("<f2"))[..., None].view(np.uint8)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _typed(value: Any) -> bytes:
    if isinstance(value, list):
        items = [_typed(item) for item in value]
        return (
            struct.pack("<I", 9)
            + items[0][:4]
            + struct.pack("<Q", len(items))
            + b"".join(item[4:] for item in items)
        )
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, float):
        return struct.pack("<Id", 12, value)
    return struct.pack("<II", 4, value)
