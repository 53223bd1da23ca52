"""Tiny random LLaMA and GPT-2 checkpoints, from numpy's frozen legacy generator.

The golden logits in ``decoders.json`` were computed from exactly these weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FAMILIES = ("llama", "gpt2")
VOCABULARY, LAYERS, CONTEXT = 97, 2, 1024
HEADS, KV_HEADS, HEAD_DIM = 6, 2, 16
HIDDEN, WIDE = HEADS * HEAD_DIM, 192
# Prompts, and where in each the logits are golden.
LENGTHS = (37, 128, 500, 900)

Weights = dict[str, NDArray[np.float32]]


def places(length: int) -> tuple[int, ...]:
    """Return the positions of a prompt whose logits are golden."""
    return (0, 1, length // 2, length - 2, length - 1)


def prompt(length: int) -> list[int]:
    """Return the token ids of the prompt of a length."""
    random = np.random.RandomState(length)
    return [int(token) for token in random.randint(0, VOCABULARY, length)]


def config_document(family: str) -> dict[str, Any]:
    """Return the ``config.json`` of the tiny checkpoint of a family."""
    if family == "llama":
        return {
            "model_type": family,
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "num_hidden_layers": LAYERS,
            "intermediate_size": WIDE,
            "max_position_embeddings": CONTEXT,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
        }
    return {
        "model_type": family,
        "vocab_size": VOCABULARY,
        "n_embd": HIDDEN,
        "n_head": HEADS,
        "n_layer": LAYERS,
        "n_inner": WIDE,
        "n_positions": CONTEXT,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
    }


def tiny_checkpoint(family: str) -> Weights:
    """Return the weights of a family's language model, as checkpoints name them."""
    random = np.random.RandomState({"llama": 31, "gpt2": 32}[family])
    weights: Weights = {}

    def draw(name: str, *shape: int, scale: float, shift: float = 0.0) -> None:
        weights[name] = (random.standard_normal(shape) * scale + shift).astype(np.float32)

    def matrix(name: str, outputs: int, inputs: int) -> None:
        draw(name, outputs, inputs, scale=1.2 / np.sqrt(inputs))

    if family == "llama":
        draw("model.embed_tokens.weight", VOCABULARY, HIDDEN, scale=1.0)
        for index in range(LAYERS):
            here = f"model.layers.{index}."
            for part, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
                matrix(f"{here}self_attn.{part}_proj.weight", heads * HEAD_DIM, HIDDEN)
            matrix(f"{here}self_attn.o_proj.weight", HIDDEN, HIDDEN)
            matrix(f"{here}mlp.gate_proj.weight", WIDE, HIDDEN)
            matrix(f"{here}mlp.up_proj.weight", WIDE, HIDDEN)
            matrix(f"{here}mlp.down_proj.weight", HIDDEN, WIDE)
            for norm in ("input_layernorm", "post_attention_layernorm"):
                draw(f"{here}{norm}.weight", HIDDEN, scale=0.1, shift=1.0)
        draw("model.norm.weight", HIDDEN, scale=0.1, shift=1.0)
        matrix("lm_head.weight", VOCABULARY, HIDDEN)
        return weights

    def affine(name: str, inputs: int, outputs: int) -> None:
        # Stored as the product has it, [inputs, outputs].
        draw(f"{name}.weight", inputs, outputs, scale=1.2 / np.sqrt(inputs))
        draw(f"{name}.bias", outputs, scale=0.1)

    def layer_norm(name: str) -> None:
        draw(f"{name}.weight", HIDDEN, scale=0.1, shift=1.0)
        draw(f"{name}.bias", HIDDEN, scale=0.1)

    draw("transformer.wte.weight", VOCABULARY, HIDDEN, scale=0.3)
    draw("transformer.wpe.weight", CONTEXT, HIDDEN, scale=0.3)
    for index in range(LAYERS):
        here = f"transformer.h.{index}."
        layer_norm(here + "ln_1")
        affine(here + "attn.c_attn", HIDDEN, 3 * HIDDEN)
        affine(here + "attn.c_proj", HIDDEN, HIDDEN)
        layer_norm(here + "ln_2")
        affine(here + "mlp.c_fc", HIDDEN, WIDE)
        affine(here + "mlp.c_proj", WIDE, HIDDEN)
    layer_norm("transformer.ln_f")
    return weights
