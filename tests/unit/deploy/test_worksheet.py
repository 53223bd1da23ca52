"""The worksheet's arithmetic, and what the scheduler really runs for the mix of its example."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto, helper

from controlplane.policy.hands import Flight
from controlplane.policy.profiles import VariantTable
from controlplane.policy.records import Shape
from deploy.worksheet import GIB, KIB, fit, mix_of, needs, positions
from tests.unit.controlplane.policy.world import MS, TOKENIZER, candidate, request, scheduler
from worker.models.errors import ManifestError
from worker.models.manifest import (
    FileRef,
    Generation,
    KvGeometry,
    Manifest,
    TensorSpec,
    Variant,
    load_manifest,
)
from worker.models.synthetic import build_synthetic

MIX = "256x7,4096"


def test_a_model_of_14_billion_parameters_beside_its_tokens() -> None:
    weights = int(14e9 * 2)
    assert round(weights / GIB, 2) == 26.08
    sheet = fit(80 * GIB, 6 * GIB, weights, 128 * KIB)
    assert sheet.live_tokens == 392_584
    assert sheet.fits
    assert not fit(32 * GIB, 6 * GIB, weights, 128 * KIB).fits


def test_our_language_model_in_the_memory_of_a_container() -> None:
    # SmolLM2-135M: 30 layers of 3 heads of 64, keys and values in 16 bits.
    token_bytes = 2 * 30 * 3 * 64 * 2
    assert token_bytes == 23_040
    sheet = fit(3 * GIB, GIB // 2, 134_515_008 * 2, token_bytes)
    assert sheet.live_tokens == 104_831
    # The arena that a worker takes by itself, in whole blocks of 16 tokens.
    arena = fit(GIB // 2, 0, 0, token_bytes)
    assert (arena.live_tokens, arena.live_tokens // 16 * 16) == (23_301, 23_296)


def test_padding_a_mix_of_lengths() -> None:
    counted = positions(mix_of(MIX))
    assert (counted.useful, counted.padded) == (5_888, 32_768)
    assert round(counted.factor, 3) == 5.565


@pytest.mark.parametrize("text", ["", "0", "x7", "1,,2", "-3", "5x-1"])
def test_a_mix_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|expected lengths"):
        mix_of(text)


@pytest.mark.parametrize("fixed_share", [0.0, 0.9])
def test_what_the_scheduler_runs_for_the_mix_has_no_padding(fixed_share: float) -> None:
    table = VariantTable.build(
        [candidate("only", 0.9, 1.0, fixed_share=fixed_share, max_tokens=8192)]
    )
    made = scheduler(table=table, max_batch=16)
    lengths = mix_of(MIX)
    for length in lengths:
        shape = Shape.of_lengths([length])
        assert made.offer(request(60_000, shape=shape, table=table), 0).admitted
    executed, runs, now = 0, 0, 0
    while isinstance(flight := made.next_step(now), Flight):
        shapes = [each.shapes[TOKENIZER] for each in flight.requests]
        executed += sum(shape.tokens for shape in shapes)
        runs += 1
        now += 1000 * MS
        made.finished(flight.worker, flight.id, now, run_ns=flight.nominal_ns)
    assert made.queued == 0
    assert executed == positions(lengths).useful
    # Sharing is a matter of fixed costs alone: nothing is gained by equal lengths.
    assert runs == len(lengths) if not fixed_share else runs < len(lengths)


def graph_with(*locations: str) -> bytes:
    """A model whose weights lie in these files."""
    weights = []
    for number, location in enumerate(locations):
        weight = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT, dims=[1])
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=location)
        weights.append(weight)
    return helper.make_model(helper.make_graph([], "g", [], [], weights)).SerializeToString()


def test_a_variant_takes_its_graph_and_the_weights_that_this_names(tmp_path: Path) -> None:
    def variant(name: str) -> Variant:
        spec = (TensorSpec("x", "int64", (-1,)),)
        return Variant(name, "paged", "fp32", f"{name}.onnx", "t", 64, spec, spec)

    sizes = {"words.weights": 100, "a.weights": 10, "b.weights": 20, "t.json": 7}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"0" * size)
    (tmp_path / "a.onnx").write_bytes(graph_with("words.weights", "a.weights"))
    (tmp_path / "b.onnx").write_bytes(graph_with("words.weights", "b.weights"))
    files = [FileRef(path.name, "0" * 64, path.stat().st_size) for path in tmp_path.iterdir()]
    refs = {ref.path: ref for ref in files}
    manifest = Manifest(
        schema=1,
        name="m",
        version="1",
        task="text-generation",
        labels=(),
        primary_output="x",
        default_tokenizer="t",
        tokenizers={"t": refs["t.json"]},
        variants=(variant("a"), variant("b")),
        files=refs,
        generation=Generation("", (0,), None, 10, 64, KvGeometry(30, 3, 64)),
    )
    a, b = needs(tmp_path, manifest, kv_bytes=2)
    assert a.weights == refs["a.onnx"].size + 110
    assert b.weights == refs["b.onnx"].size + 120
    assert a.token_bytes == 23_040
    (tmp_path / "b.weights").unlink()
    with pytest.raises(ManifestError, match=r"b\.weights"):
        needs(tmp_path, manifest, kv_bytes=2)


def test_a_graph_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    build_synthetic(tmp_path, "tiny")
    folder = tmp_path / "tiny"
    manifest = load_manifest(folder)
    graph = folder / manifest.variants[0].graph
    graph.write_bytes(b"\xff\xff no graph")
    with pytest.raises(ManifestError, match=manifest.variants[0].graph):
        needs(folder, manifest, kv_bytes=2)
    graph.unlink()
    with pytest.raises(ManifestError, match="No such file"):
        needs(folder, manifest, kv_bytes=2)
