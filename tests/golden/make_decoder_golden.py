"""Computes the golden logits of decoders with torch and transformers (extra ``reference``).

Run ``python -m tests.golden.make_decoder_golden`` in an environment that has them; it rewrites
``decoders.json``. With a GGUF file of SmolLM2-135M-Instruct as argument it also rewrites
``bench/decode/golden.json``, against which `orchid bench decode` checks the built model.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from bench.decode.golden_file import GOLDEN, KEPT, PROMPTS
from bench.decode.peers.protocol import prompt as bench_prompt
from tests.golden.decoder_checkpoints import (
    FAMILIES,
    LENGTHS,
    config_document,
    places,
    prompt,
    tiny_checkpoint,
)
from worker.models.decoder import Decoder
from worker.models.decoder_sources import read_gguf
from worker.models.gguf import GgufFile

TARGET = Path(__file__).with_name("decoders.json")
_CLASSES = {"llama": transformers.LlamaForCausalLM, "gpt2": transformers.GPT2LMHeadModel}


def golden(family: str) -> dict[str, list[list[float]]]:
    """Return the logits at the golden places of each prompt of a tiny checkpoint."""
    document = {k: v for k, v in config_document(family).items() if k != "model_type"}
    config = transformers.AutoConfig.for_model(family, **document, attn_implementation="eager")
    model = _CLASSES[family](config).eval()
    weights = {name: torch.from_numpy(array) for name, array in tiny_checkpoint(family).items()}
    _load(model, weights)
    return {
        str(length): [_plain(row) for row in _logits(model, prompt(length))[list(places(length))]]
        for length in LENGTHS
    }


def real(path: Path) -> dict[str, dict[str, list[float]]]:
    """Return the largest logits behind each prompt of the bench, of a GGUF file's weights."""
    with GgufFile(path) as file:
        decoder = read_gguf(file)
    c = decoder.config
    config = transformers.LlamaConfig(
        vocab_size=c.vocabulary,
        hidden_size=c.hidden,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads,
        num_hidden_layers=c.layers,
        intermediate_size=c.intermediate,
        max_position_embeddings=c.context,
        rms_norm_eps=c.epsilon,
        rope_theta=c.rope_theta,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = transformers.LlamaForCausalLM(config).eval()
    _load(model, {name: torch.from_numpy(array) for name, array in _named(decoder).items()})
    found = {}
    for length in PROMPTS:
        row = _logits(model, bench_prompt(length, length, c.vocabulary))[-1]
        values, ids = row.topk(KEPT)
        found[str(length)] = {"ids": ids.tolist(), "logits": _plain(values)}
    return found


def _named(decoder: Decoder) -> dict[str, Any]:
    """Return a decoder's weights as LLaMA checkpoints name them."""
    c = decoder.config
    weights = {
        "model.embed_tokens.weight": decoder.words.floats(),
        "model.norm.weight": decoder.norm.scale,
    }
    rows = np.cumsum([c.heads * c.head_dim, c.kv_heads * c.head_dim])
    for index, layer in enumerate(decoder.layers):
        here = f"model.layers.{index}."
        q, k, v = np.split(layer.qkv.weight.floats(), rows)
        gate, up = np.split(layer.up.weight.floats(), 2)
        weights |= {
            f"{here}self_attn.q_proj.weight": q,
            f"{here}self_attn.k_proj.weight": k,
            f"{here}self_attn.v_proj.weight": v,
            f"{here}self_attn.o_proj.weight": layer.attended.weight.floats(),
            f"{here}mlp.gate_proj.weight": gate,
            f"{here}mlp.up_proj.weight": up,
            f"{here}mlp.down_proj.weight": layer.down.weight.floats(),
            f"{here}input_layernorm.weight": layer.attention_norm.scale,
            f"{here}post_attention_layernorm.weight": layer.mlp_norm.scale,
        }
    return {name: np.array(array) for name, array in weights.items()}


def _load(model: Any, weights: dict[str, Any]) -> None:
    result = model.load_state_dict(weights, strict=False)
    missing = [name for name in result.missing_keys if name != "lm_head.weight"]
    if result.unexpected_keys or missing:
        raise SystemExit(f"unexpected {result.unexpected_keys}, missing {missing}")
    model.tie_weights()


def _logits(model: Any, tokens: list[int]) -> Any:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]


def _plain(row: Any) -> list[float]:
    return [float(f"{float(x):.9g}") for x in row]


def _write(path: Path, outputs: dict[str, Any]) -> None:
    versions = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    path.write_text(json.dumps({"versions": versions, "outputs": outputs}) + "\n")


def main() -> None:
    """Write the golden files."""
    _write(TARGET, {family: golden(family) for family in FAMILIES})
    if len(sys.argv) > 1:
        _write(GOLDEN, real(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
