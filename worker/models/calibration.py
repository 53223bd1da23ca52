"""How sure a classifier is, and what asking a more accurate one gains: values of a manifest."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pydantic import ConfigDict

_STRICT = ConfigDict(extra="forbid", strict=True)
# Numbers are kept to six digits.
_ROUNDING = 1e-4


@dataclass(frozen=True, slots=True)
class Calibration:
    """What makes a variant's confidence on a population the chance that its answer is right.

    With q the largest of ``softmax(logits / temperature)`` and ``beta`` the numbers a, b, c,
    ``confidence = 1 / (1 + exp(-(a ln q - b ln(1 - q) + c)))``; none are 1, 1, 0, and then it is q.
    All were fitted on ``fitted_on`` items; on ``n`` others the expected calibration error is
    ``error`` (0 to 1).
    """

    __pydantic_config__ = _STRICT

    population: str
    temperature: float
    error: float
    fitted_on: int
    n: int
    beta: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Escalation:
    """What asking variant ``to`` as well gains on a population, by the confidence of this one.

    Step i holds for confidences from ``confidences[i]`` on and below the next; the first is 0.
    Of its ``counts[i]`` items this variant answered the share ``shares_right[i]`` right, and
    ``to`` the share ``gains[i]`` more; gains fall and may be negative. With a reason in
    ``refused`` there are no steps: the evidence does not support stopping early.
    """

    __pydantic_config__ = _STRICT

    population: str
    to: str
    confidences: tuple[float, ...] = ()
    gains: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    shares_right: tuple[float, ...] = ()
    refused: str = ""

    def gain(self, confidence: float) -> float:
        """Return the expected gain in accuracy of escalating an answer of this confidence.

        Raises ValueError when the evidence was refused.
        """
        if not self.gains:
            raise ValueError(f"expected steps of the escalation to {self.to}, got {self.refused}")
        return self.gains[max(0, bisect_right(self.confidences, confidence) - 1)]


def calibration_faults(calibration: Calibration, classes: int) -> list[str]:
    """Return what is wrong with a calibration of a variant with so many classes."""
    found = []
    where = f"calibration on {calibration.population!r}"
    numbers = (calibration.temperature, calibration.error, *calibration.beta)
    if not all(map(math.isfinite, numbers)) or calibration.temperature <= 0.0:
        found.append(f"{where}: temperature must be above 0, and every number finite")
    if not 0.0 <= calibration.error <= 1.0:
        found.append(f"{where}: error must lie between 0 and 1")
    if min(calibration.fitted_on, calibration.n) < 1:
        found.append(f"{where}: items must be at least 1")
    if len(calibration.beta) not in (0, 3):
        found.append(f"{where}: {len(calibration.beta)} numbers of a beta map, expected 3 or none")
    elif calibration.beta:
        a, b, _ = calibration.beta
        if b < 0.0 or a * (classes - 1) + b < -_ROUNDING:
            found.append(f"{where}: confidence must not fall as the top probability grows")
    return found


def escalation_faults(escalation: Escalation, own: str, variants: Collection[str]) -> list[str]:
    """Return what is wrong with an escalation from variant ``own`` of a model's ``variants``."""
    found = []
    where = f"escalation to {escalation.to!r} on {escalation.population!r}"
    if escalation.to == own or escalation.to not in variants:
        found.append(f"{where}: expected another variant of the model")
    columns = (
        escalation.confidences,
        escalation.gains,
        escalation.counts,
        escalation.shares_right,
    )
    if len({len(column) for column in columns}) != 1:
        found.append(f"{where}: steps of different numbers")
    elif bool(escalation.refused) == bool(escalation.gains):
        found.append(f"{where}: expected steps, or why there are none")
    elif escalation.gains:
        if escalation.confidences[0] != 0.0 or not _rising(escalation.confidences):
            found.append(f"{where}: confidences must begin at 0 and rise")
        if not all(before >= after for before, after in pairwise(escalation.gains)):
            found.append(f"{where}: gains must fall")
        if min(escalation.counts) < 1:
            found.append(f"{where}: every step needs items")
        if not all(0.0 <= share <= 1.0 for share in escalation.shares_right):
            found.append(f"{where}: shares must lie between 0 and 1")
    return found


def _rising(values: Sequence[float]) -> bool:
    return all(math.isfinite(value) for value in values) and all(
        before < after for before, after in pairwise(values)
    )
