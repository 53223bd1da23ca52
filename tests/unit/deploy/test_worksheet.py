"""The worksheet's arithmetic, and what the scheduler really runs for the mix of its example."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.policy.hands import Flight
from controlplane.policy.profiles import VariantTable
from controlplane.policy.records import Shape
from deploy.worksheet import GIB, KIB, fit, mix_of, needs, positions
from tests.unit.controlplane.policy.world import MS, TOKENIZER, candidate, request, scheduler
from worker.models.errors import ManifestError
from worker.models.external_data import external_files
from worker.models.manifest import FileRef, load_manifest
from worker.models.synthetic import build_synthetic
from worker.models.synthetic_generator import build_tiny_generator

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


def test_what_a_model_of_ours_takes_is_in_its_files(tmp_path: Path) -> None:
    build_tiny_generator(tmp_path, "tiny-chat")
    folder = tmp_path / "tiny-chat"
    manifest = load_manifest(folder)
    found = needs(folder, manifest, kv_bytes=2)
    assert [need.variant for need in found] == [variant.name for variant in manifest.variants]
    kv = manifest.generation.kv if manifest.generation is not None else None
    assert kv is not None
    for need, variant in zip(found, manifest.variants, strict=True):
        names = external_files((folder / variant.graph).read_bytes())
        sizes = [(folder / name).stat().st_size for name in (variant.graph, *names)]
        assert need.weights == sum(sizes)
        assert need.token_bytes == 2 * kv.layers * kv.kv_heads * kv.head_dim * 2


def test_a_variant_takes_no_weights_of_others(tmp_path: Path) -> None:
    build_synthetic(tmp_path, "tiny")
    folder = tmp_path / "tiny"
    manifest = load_manifest(folder)
    (folder / "others.weights").write_bytes(b"0" * 10_000)
    more = {**manifest.files, "others.weights": FileRef("others.weights", "0" * 64, 10_000)}
    without = needs(folder, manifest, kv_bytes=2)
    assert needs(folder, replace(manifest, files=more), kv_bytes=2) == without
    assert without[0].token_bytes == 0


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
