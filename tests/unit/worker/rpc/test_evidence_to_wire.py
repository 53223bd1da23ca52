"""Confidence evidence as the control plane gets it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from worker.hosted import HostedModel
from worker.models.calibration import Calibration, Escalation
from worker.models.manifest import load_manifest
from worker.models.synthetic import build_synthetic
from worker.rpc.convert import model_to


def test_supported_evidence_is_described_and_refused_evidence_is_not(tmp_path: Path) -> None:
    folder = build_synthetic(tmp_path)
    manifest = load_manifest(folder)
    first, second = manifest.variants
    second = replace(
        second,
        calibrations=(
            Calibration("p", 1.25, 0.01, 600, 700, (-1.5, 1.5, -2.0)),
            Calibration("q", 2.0, 0.1, 601, 701),
        ),
        escalations=(
            Escalation("p", "tiny-a", (0.0, 0.75), (0.25, -0.125), (300, 301), (0.5, 0.875)),
            Escalation("q", "tiny-a", refused="calibration error 0.100 on 701 items"),
        ),
    )
    manifest = replace(manifest, variants=(first, second))
    hosted = HostedModel(manifest, folder, manifest.variants)
    plain, sure = model_to(hosted.snapshot()).variants
    assert (len(plain.calibrations), len(plain.escalations)) == (0, 0)
    one, other = sure.calibrations
    assert (one.population, one.temperature, one.fitted_on, one.n) == ("p", 1.25, 600, 700)
    assert one.error == pytest.approx(0.01)
    assert list(one.beta) == [-1.5, 1.5, -2.0]
    assert (other.population, list(other.beta)) == ("q", [])
    (escalation,) = sure.escalations
    assert (escalation.population, escalation.to) == ("p", "tiny-a")
    assert list(escalation.confidences) == [0.0, 0.75]
    assert list(escalation.gains) == [0.25, -0.125]
    assert list(escalation.counts) == [300, 301]
    assert list(escalation.shares_right) == [0.5, 0.875]
