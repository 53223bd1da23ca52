"""From all variants' answers to the same items to what a cascade may rest on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.models.calibration import Calibration, Escalation
from worker.models.confidence import (
    FEWEST_ITEMS,
    Floats,
    Rights,
    calibration_error,
    error_by_chance,
    escalation,
    fit_confidence,
)
from worker.models.evidence import ConfidenceEvidence
from worker.models.statistics import paired_difference

# What the calibration error of a first stage may be, and at most where chance may explain more.
LARGEST_ERROR, LARGEST_BY_CHANCE = 0.02, 0.03
_Z = 1.959964


@dataclass(frozen=True, slots=True)
class Sample:
    """Labels int64 [N] of some items and every variant's logits float32 [N, classes] for them."""

    labels: NDArray[np.int64]
    logits: Mapping[str, NDArray[np.float32]]

    def __len__(self) -> int:
        return len(self.labels)

    def right(self, variant: str) -> Rights:
        """Which of the items a variant answered right, [N]."""
        found: Rights = self.logits[variant].argmax(axis=1) == self.labels
        return found


def too_few(fitting: int, testing: int) -> str:
    """Return why so many items to fit and to test on make no evidence, or nothing."""
    if min(fitting, testing) >= FEWEST_ITEMS:
        return ""
    return (
        f"{fitting} items to fit on and {testing} to test on, "
        f"expected at least {FEWEST_ITEMS} of both"
    )


def confidence_evidence(
    population: str, fitting: Sample, testing: Sample
) -> dict[str, ConfidenceEvidence]:
    """Return the confidence evidence of every variant of both samples.

    Temperatures, beta maps and gains are fitted on ``fitting``; ``testing`` gives calibration
    errors and decides what is supported. There is an escalation to each variant that is surely
    more accurate (95 %, paired, on all items). Raises ValueError when `too_few` says why, or when
    logits are not finite.
    """
    if reason := too_few(len(fitting), len(testing)):
        raise ValueError(f"too few labelled items: {reason}")
    names = [name for name in fitting.logits if name in testing.logits]
    return {name: _evidence(population, name, names, fitting, testing) for name in names}


def _evidence(
    population: str, name: str, names: list[str], fitting: Sample, testing: Sample
) -> ConfidenceEvidence:
    fit = fit_confidence(fitting.logits[name], fitting.labels)
    fitted, tested = (fit.confidences(sample.logits[name]) for sample in (fitting, testing))
    right = testing.right(name)
    error = calibration_error(tested, right)
    calibration = Calibration(
        population,
        temperature=fit.temperature,
        error=round(error, 6),
        fitted_on=len(fitting),
        n=len(testing),
        beta=fit.beta,
    )
    off = _off(tested, error)
    escalations = []
    for other in names:
        if other == name or not _better(other, name, fitting, testing):
            continue
        there = testing.right(other)
        reason = off or _blind(tested, there.astype(np.float64) - right, other)
        escalations.append(
            Escalation(population, other, refused=reason)
            if reason
            else escalation(population, other, fitted, fitting.right(name), fitting.right(other))
        )
    return ConfidenceEvidence(calibration, tuple(escalations))


def _better(other: str, name: str, *samples: Sample) -> bool:
    """Tell whether one variant is surely more accurate than another on the same items."""
    pairs = [(sample.right(other).tolist(), sample.right(name).tolist()) for sample in samples]
    theirs = [value for one, _ in pairs for value in one]
    ours = [value for _, one in pairs for value in one]
    _, low, _ = paired_difference(theirs, ours)
    return low > 0.0


def _off(confidence: Floats, error: float) -> str:
    """Return why confidences are too far from the truth, or nothing.

    Two thousand items may show a little more than the largest error by chance alone; a few hundred
    show so much that they tell nothing.
    """
    allowed = max(LARGEST_ERROR, min(LARGEST_BY_CHANCE, error_by_chance(confidence)))
    if error <= allowed:
        return ""
    return f"calibration error {error:.3f} on {len(confidence)} items, at most {allowed:.3f} serves"


def _blind(confidence: Floats, gained: Floats, other: str) -> str:
    """Return why the confidence does not tell where another variant gains, or nothing.

    Over the less confident half of the items it must gain more than over the other, at 95 %.
    """
    halves = np.array_split(gained[np.argsort(confidence, kind="stable")], 2)
    between = float(halves[0].mean() - halves[1].mean())
    spread = _Z * float(np.sqrt(sum(half.var() / len(half) for half in halves)))
    if between - spread > 0.0:
        return ""
    return (
        f"{other} does not surely gain more on the less confident half of {len(gained)} items: "
        f"{between:+.3f} +- {spread:.3f}"
    )
