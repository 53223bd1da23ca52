"""Manifests: round trip, identity, contradictions, and hash checks of the files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from worker.models.calibration import Calibration, Escalation
from worker.models.errors import ManifestError
from worker.models.manifest import (
    MANIFEST_NAME,
    FileRef,
    Manifest,
    QualityEvidence,
    TensorSpec,
    canonical_json,
    contradictions,
    load_manifest,
    save_manifest,
    verify,
)
from worker.models.synthetic import build_synthetic, build_tensor_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build_synthetic(tmp_path)


def test_a_saved_manifest_reads_back_equal(folder: Path) -> None:
    manifest = load_manifest(folder)
    save_manifest(manifest, folder)
    assert load_manifest(folder / MANIFEST_NAME) == manifest


def test_the_digest_names_the_content(folder: Path) -> None:
    manifest = load_manifest(folder)
    again = load_manifest(folder)
    assert manifest.digest == again.digest
    assert manifest.digest.startswith("sha256:")
    assert len(manifest.digest) == len("sha256:") + 64
    assert replace(manifest, version="2").digest != manifest.digest


def test_lookups_by_name(folder: Path) -> None:
    manifest = load_manifest(folder)
    variant = manifest.variant("tiny-a")
    assert variant is not None
    assert variant.evidence("tiny-words") == variant.quality[0]
    assert variant.evidence("other") is None
    assert manifest.variant("tiny-z") is None


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"schema": 2}, "schema is 2"),
        ({"variants": ()}, "no variant"),
        ({"primary_output": "scores"}, "no output 'scores'"),
        ({"task": "tensor"}, "does not fit task"),
        ({"default_tokenizer": "other"}, "default tokenizer 'other'"),
        ({"tokenizers": {}}, "tokenizer 'words' is not among"),
        ({"files": {}}, "graph 'tiny-a.onnx' is not among the files"),
    ],
)
def test_contradictions_are_named(folder: Path, change: dict[str, Any], fault: str) -> None:
    changed = replace(load_manifest(folder), **change)
    assert any(fault in text for text in contradictions(changed))
    with pytest.raises(ManifestError):
        save_manifest(changed, folder)


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "a/../../b"])
def test_files_outside_the_folder_are_refused(folder: Path, path: str) -> None:
    manifest = load_manifest(folder)
    files = {**manifest.files, path: FileRef(path, "0" * 64, 1)}
    assert any("not inside" in text for text in contradictions(replace(manifest, files=files)))


def test_a_variant_may_not_appear_twice(folder: Path) -> None:
    manifest = load_manifest(folder)
    doubled = replace(manifest, variants=manifest.variants + manifest.variants[:1])
    assert "variant 'tiny-a' appears twice" in contradictions(doubled)


def test_a_missing_manifest_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="orchid models build"):
        load_manifest(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda document: document | {"surprise": 1},
        lambda document: document | {"version": 1},
        lambda document: {k: v for k, v in document.items() if k != "labels"},
        lambda document: document | {"task": "poetry"},
    ],
)
def test_a_malformed_manifest_is_refused(folder: Path, damage: Any) -> None:
    file = folder / MANIFEST_NAME
    file.write_text(json.dumps(damage(json.loads(file.read_text()))))
    with pytest.raises(ManifestError, match="first at"):
        load_manifest(folder)


def test_no_json_is_refused(folder: Path) -> None:
    (folder / MANIFEST_NAME).write_bytes(b"\x00{")
    with pytest.raises(ManifestError):
        load_manifest(folder)


def test_verify_finds_missing_resized_and_changed_files(folder: Path) -> None:
    assert verify(folder) == []
    (folder / "tiny-a.onnx").unlink()
    with (folder / "tiny-b.onnx").open("ab") as stream:
        stream.write(b"x")
    tokenizer = folder / "tokenizers" / "words.json"
    content = bytearray(tokenizer.read_bytes())
    content[10] ^= 1
    tokenizer.write_bytes(content)
    faults = {fault.path: str(fault) for fault in verify(folder)}
    assert "no such file" in faults["tiny-a.onnx"]
    assert "bytes, got" in faults["tiny-b.onnx"]
    assert "sha256" in faults["tokenizers/words.json"]


def test_tensor_models_need_no_tokenizer(tmp_path: Path) -> None:
    manifest: Manifest = load_manifest(build_tensor_model(tmp_path))
    assert manifest.task == "tensor"
    assert not manifest.tokenizers
    assert manifest.variants[0].max_tokens == 0


def test_evidence_is_a_plain_value() -> None:
    evidence = QualityEvidence("p", "accuracy", 0.5, 10, 0.2, 0.8)
    assert replace(evidence, n=11) != evidence


def test_confidence_evidence_is_part_of_the_identity_and_reads_back(folder: Path) -> None:
    manifest = load_manifest(folder)
    assert b"calibrations" not in canonical_json(manifest)
    assert b"escalations" not in canonical_json(manifest)
    first, second = manifest.variants
    calibrated = replace(
        second,
        calibrations=(Calibration("p", 1.25, 0.01, 600, 700, (-1.5, 1.5, -2.0)),),
        escalations=(
            Escalation("p", "tiny-a", (0.0, 0.8), (0.2, 0.0), (300, 300), (0.6, 0.9)),
            Escalation("q", "tiny-a", refused="too far off"),
        ),
    )
    sure = replace(manifest, variants=(first, calibrated))
    save_manifest(sure, folder)
    assert load_manifest(folder) == sure
    assert sure.digest != manifest.digest
    assert calibrated.calibration("p") == calibrated.calibrations[0]
    assert calibrated.calibration("q") is None


def test_a_manifest_from_before_confidence_evidence_has_none(folder: Path) -> None:
    before = load_manifest(folder)
    file = folder / MANIFEST_NAME
    document = json.loads(file.read_text())
    for variant in document["variants"]:
        del variant["calibrations"], variant["escalations"]
    file.write_text(json.dumps(document))
    assert load_manifest(folder) == before


@pytest.mark.parametrize(
    ("evidence", "fault"),
    [
        ({"calibrations": (Calibration("p", 0.0, 0.0, 1, 1),)}, "temperature"),
        ({"calibrations": (Calibration("p", 1.0, 0.0, 1, 1, (1.0,)),)}, "1 numbers"),
        ({"escalations": (Escalation("p", "tiny-z", refused="no"),)}, "another variant"),
        ({"escalations": (Escalation("p", "tiny-a"),)}, "expected steps"),
    ],
)
def test_unsound_confidence_evidence_is_refused(
    folder: Path, evidence: dict[str, Any], fault: str
) -> None:
    manifest = load_manifest(folder)
    first, second = manifest.variants
    changed = replace(manifest, variants=(first, replace(second, **evidence)))
    assert any(fault in text for text in contradictions(changed))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"max_tokens": 0}, "max_tokens must be 1 to"),
        ({"max_tokens": 2**31}, "max_tokens must be 1 to"),
        ({"inputs": (TensorSpec("input_ids", "bfloat16", (-1,)),)}, "unknown type 'bfloat16'"),
        ({"inputs": (TensorSpec("input_ids", "int64", (10**20,)),)}, "has shape"),
        ({"quality": (QualityEvidence("p", "m", 0.5, 2**31, 0.2, 0.8),)}, "numbers of items"),
        ({"calibrations": (Calibration("p", 1.0, 0.0, 2**31, 1),)}, "numbers of items"),
    ],
)
def test_what_no_message_could_carry_is_refused(
    folder: Path, change: dict[str, Any], fault: str
) -> None:
    manifest = load_manifest(folder)
    first, second = manifest.variants
    changed = replace(manifest, variants=(first, replace(second, **change)))
    assert any(fault in text for text in contradictions(changed))
