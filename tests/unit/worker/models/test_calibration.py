"""Confidence evidence as values: what it says, and what contradicts itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from worker.models.calibration import (
    Calibration,
    Escalation,
    calibration_faults,
    escalation_faults,
)

CALIBRATION = Calibration("p", 1.5, 0.01, 600, 700, (-1.5, 1.5, -2.0))
ESCALATION = Escalation("p", "big", (0.0, 0.7), (0.3, -0.01), (100, 500), (0.6, 0.97))


def test_the_step_of_a_confidence_tells_its_gain() -> None:
    assert [ESCALATION.gain(c) for c in (0.0, 0.69, 0.7, 1.0)] == [0.3, 0.3, -0.01, -0.01]
    with pytest.raises(ValueError, match="too far off"):
        Escalation("p", "big", refused="too far off").gain(0.5)


def test_sound_evidence_has_no_fault() -> None:
    assert calibration_faults(CALIBRATION, 2) == []
    assert calibration_faults(replace(CALIBRATION, beta=()), 3) == []
    assert escalation_faults(ESCALATION, "small", ["small", "big"]) == []
    assert escalation_faults(Escalation("p", "big", refused="no"), "small", ["small", "big"]) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": float("inf")}, "finite"),
        ({"beta": (0.0, 1.0, float("nan"))}, "finite"),
        ({"error": 1.5}, "error"),
        ({"n": 0}, "items"),
        ({"beta": (0.1,)}, "1 numbers"),
        ({"beta": (1.0, -0.1, 0.0)}, "must not fall"),
        ({"beta": (-1.6, 1.5, 0.0)}, "must not fall"),
    ],
)
def test_faults_of_a_calibration_are_named(change: dict[str, Any], fault: str) -> None:
    assert any(fault in text for text in calibration_faults(replace(CALIBRATION, **change), 2))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"to": "small"}, "another variant"),
        ({"to": "huge"}, "another variant"),
        ({"counts": (100,)}, "different numbers"),
        ({"refused": "no"}, "expected steps"),
        ({"confidences": (0.1, 0.7)}, "begin at 0"),
        ({"confidences": (0.0, 0.0)}, "rise"),
        ({"gains": (0.1, 0.2)}, "fall"),
        ({"counts": (0, 600)}, "needs items"),
        ({"shares_right": (0.5, 1.1)}, "shares"),
        ({"confidences": (), "gains": (), "counts": (), "shares_right": ()}, "expected steps"),
    ],
)
def test_faults_of_an_escalation_are_named(change: dict[str, Any], fault: str) -> None:
    found = escalation_faults(replace(ESCALATION, **change), "small", ["small", "big"])
    assert any(fault in text for text in found)
