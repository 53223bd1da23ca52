"""Our engine as a subject, and the comparison with stock graphs, on tiny models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.decode.grid import cached_token_bytes, step_grid
from bench.decode.ours import EngineSubject, open_variant, variants_of
from bench.decode.plot import plot_decode
from bench.decode.run import DecodeBenchError, DecodeSettings, run_decode
from bench.decode.stock import GPT2, StockSettings, against_stock
from worker.models.importer import ImportOptions, import_model
from worker.models.manifest import KvGeometry, load_manifest
from worker.models.progress import Silent
from worker.models.synthetic import build_synthetic
from worker.models.synthetic_generator import build_tiny_generator, write_tiny_export

TINY = replace(
    GPT2, layers=2, hidden=96, heads=6, kv_heads=6, head_dim=16, intermediate=192, vocabulary=150
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build_tiny_generator(tmp_path, precisions=("fp32", "q4"), context=1024)


@pytest.fixture
def subject(folder: Path) -> EngineSubject:
    manifest = load_manifest(folder)
    assert manifest.generation is not None
    files = variants_of(folder, manifest)["q4"]
    return open_variant(files, manifest.generation, threads=1, batch=4, context=128)


def test_sequences_grow_by_a_token_a_step_and_start_again_where_they_are_opened(
    subject: EngineSubject,
) -> None:
    assert subject.prefill(40) > 0
    for batch, cached in ((4, 90), (2, 90), (3, 17)):
        subject.open(batch, cached)
        timed = subject.timed_steps(5)
        assert len(timed) == 5
        assert all(0 < step.attention < step.seconds for step in timed)
    # Longer than what the last steps left: prefilled again.
    subject.open(4, 120)
    assert len(subject.steps(8)) == 8


def test_a_grid_has_every_batch_and_length_against_the_floor(subject: EngineSubject) -> None:
    points = step_grid(
        subject,
        "tiny",
        batches=(1, 4),
        lengths=(16, 64),
        steps=2,
        bytes_of=lambda batch, cached: 1e6 * batch,
        read_rate=1e9,
        notify=lambda text: None,
    )
    assert {(p["batch"], p["cached"]) for p in points} == {(1, 16), (4, 16), (1, 64), (4, 64)}
    for point in points:
        assert point["floor_ms"] == pytest.approx(point["batch"])
        assert point["bandwidth_fraction"] == pytest.approx(point["floor_ms"] / point["ms"])
    kv = KvGeometry(30, 3, 64)
    assert cached_token_bytes(kv, "paged") == 2 * 30 * 3 * 64 * 2
    assert cached_token_bytes(kv, "dense") == 2 * 30 * 3 * 64 * 4


def test_what_a_step_reads_is_a_variants_own_weights(folder: Path) -> None:
    manifest = load_manifest(folder)
    found = variants_of(folder, manifest)
    assert set(found) == {"fp32", "q4"}
    assert found["q4"].weight_bytes == manifest.files["tiny-chat-q4.weights"].size
    whole = manifest.files["tiny-chat-fp32.weights"].size + manifest.files["words.weights"].size
    assert found["fp32"].weight_bytes == whole


def test_both_forms_of_a_gpt2_agree_and_are_timed() -> None:
    settings = StockSettings(threads=1, rounds=1, steps=1, batches=(1, 2), cached=48)
    points = against_stock(settings, lambda text: None, config=TINY)
    assert [point["summary"] for point in points] == ["vs_stock_gpt2_48", "vs_stock_gpt2_48_b2"]
    for point in points:
        assert point["ratio"] > 0
        assert 0 < point["moved_share"] < 1
        assert point["largest_difference"] < 1e-3


def test_a_run_has_a_summary_of_every_measure(folder: Path) -> None:
    settings = DecodeSettings(
        threads=1, rounds=1, steps=1, grid_steps=1, batches=(1, 2), lengths=(8, 16), stock=False
    )
    report = run_decode(
        settings, folder, load_manifest(folder), [], lambda text: None, lambda text: None
    )
    assert report.bench == "decode"
    assert report.summary["read_gb_s"] > 0
    assert report.summary["decode_b8_900_orchid-q4_tok_s"] > 0
    assert report.summary["bandwidth_fraction_b1"] > 0
    assert report.summary["bandwidth_fraction_b1_fp32"] > 0
    assert not any("_vs_" in name for name in report.summary)


def test_a_classifier_is_no_subject(tmp_path: Path) -> None:
    folder = build_synthetic(tmp_path)
    with pytest.raises(DecodeBenchError, match="generates no text"):
        run_decode(
            DecodeSettings(), folder, load_manifest(folder), [], lambda text: None, lambda t: None
        )


def test_a_run_has_a_picture(folder: Path, tmp_path: Path) -> None:
    settings = DecodeSettings(
        threads=1, rounds=1, steps=1, grid_steps=1, batches=(1,), lengths=(8,), stock=False
    )
    report = run_decode(
        settings, folder, load_manifest(folder), [], lambda text: None, lambda text: None
    )
    plot_decode(report, tmp_path / "decode.png")
    assert (tmp_path / "decode.png").read_bytes().startswith(b"\x89PNG")


def test_of_a_stock_graph_the_share_of_copying_is_told(tmp_path: Path) -> None:
    source = write_tiny_export(tmp_path / "export", context=1024)
    manifest = import_model(source, tmp_path / "r", ImportOptions(name="stock"), Silent())
    settings = DecodeSettings(
        threads=1, rounds=1, steps=1, grid_steps=1, batches=(1, 2), lengths=(8, 16), stock=False
    )
    folder = tmp_path / "r" / "stock"
    report = run_decode(settings, folder, manifest, [], lambda text: None, lambda text: None)
    assert 0 < report.summary["moved_share_orchid-fp32_b2_16"] < 1
    assert report.summary["bandwidth_fraction_b1"] > 0
