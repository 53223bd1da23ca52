"""Fits how sure a classifier is of an answer, and what a more accurate one would gain on it.

A network's top probability is not the chance that it is right. A temperature brings it near
(Guo et al. 2017), and where need be a beta map on top of that (Kull et al. 2017); how near it
comes is the calibration error. What escalation gains is the difference of two variants'
chances to be right, given the cheaper one's confidence: few items say little about a single
confidence, but the gain can only fall as confidence grows, so it is fitted as a falling step
function (isotonic regression).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worker.models.calibration import Escalation

Floats = NDArray[np.float64]
Rights = NDArray[np.bool_]
Logits = NDArray[Any]
Labels = Sequence[int] | NDArray[np.int64]

# Fewer items than this tell neither a calibration error of 0.02 nor a gain of a few points.
FEWEST_ITEMS = 500
# Inverse temperatures that are tried; beyond them answers are coin tosses or certainties.
_COLDEST, _HOTTEST = 1e-3, 1e3
_HALVINGS = 60
# Before the data speak, numbers of a beta map are normal around the identity with variance 100;
# where all answers are right or wrong, nothing else would hold them.
_RIDGE = 0.01
_NEWTON_STEPS, _SHORTEST_STEP = 50, 1e-4
_IDENTITY = (1.0, 1.0, 0.0)
_ERROR_BINS = 15
_DRAWS = 400
# Steps before neighbours are merged: about forty items each in the smallest sample.
_STEPS = 12
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Fit:
    """A temperature and the numbers a, b, c of a beta map, or none for the identity.

    With q the largest of ``softmax(logits / temperature)`` the chance to be right is
    ``1 / (1 + exp(-(a ln q - b ln(1 - q) + c)))``, which never falls as q grows.
    """

    temperature: float
    beta: tuple[float, ...] = ()

    def confidences(self, logits: Logits) -> Floats:
        """Return the chance of each of N answers to be right, from logits [N, classes]."""
        return _logistic(self.scores(logits))

    def scores(self, logits: Logits) -> Floats:
        """Return the log-odds of the same, [N]."""
        odds = log_odds(logits, self.temperature)
        if not self.beta:
            return odds
        a, b, c = self.beta
        result: Floats = a * _log_top(odds) + b * _log_others(odds) + c
        return result


def fit_confidence(logits: Logits, labels: Labels) -> Fit:
    """Return the map from logits [N, classes] to confidence that N labelled items speak for.

    A beta map is taken where it raises the log-likelihood of right and wrong answers by more than
    the number of its parameters (Akaike 1974). Raises ValueError for fewer than ``FEWEST_ITEMS``
    items, fewer than two classes or no finite numbers.
    """
    z, at = _checked(logits, labels)
    right = z.argmax(axis=1) == at
    plain = Fit(_rounded(fit_temperature(z, at)))
    odds = log_odds(z, plain.temperature)
    beta, parameters = _fit_beta(odds, right, z.shape[1])
    mapped = Fit(plain.temperature, beta)
    saved = _log_loss(plain.scores(z), right) - _log_loss(mapped.scores(z), right)
    return mapped if saved > parameters else plain


def fit_temperature(logits: Logits, labels: Labels) -> float:
    """Return the temperature with the least negative log-likelihood of ``labels``.

    ``logits`` [N, classes]. The loss is convex in the inverse temperature b, and its slope
    ``mean(sum_c p_c z_c - z_label)`` is found zero by halving on a logarithmic scale. Raises
    like ``fit_confidence``.
    """
    z, at = _checked(logits, labels)
    # Distances to the largest: the same probabilities, and none of them overflows.
    z = z - z.max(axis=1, keepdims=True)
    of_label = z[np.arange(len(z)), at]
    low, high = _COLDEST, _HOTTEST
    for _ in range(_HALVINGS):
        middle = float(np.sqrt(low * high))
        powers = np.exp(z * middle)
        expected = (powers * z).sum(axis=1) / powers.sum(axis=1)
        slope = float((expected - of_label).mean())
        low, high = (low, middle) if slope > 0.0 else (middle, high)
    return 1.0 / float(np.sqrt(low * high))


def log_odds(logits: Logits, temperature: float) -> Floats:
    """Return ``ln(q / (1 - q))`` of the largest softmax probability q of each row, [N].

    Taken as the difference of logarithms, so that answers of any certainty keep their order.
    """
    z = np.asarray(logits, np.float64) / temperature
    rows, top = np.arange(len(z)), z.argmax(axis=1)
    best = z[rows, top]
    z[rows, top] = -np.inf
    second = z.max(axis=1)
    others = np.log(np.exp(z - second[:, None]).sum(axis=1))
    result: Floats = best - second - others
    return result


def calibration_error(confidence: Floats, right: Rights) -> float:
    """Return the expected calibration error over 15 bins of equal width.

    ``sum_b n_b / n |mean confidence - share right|`` (Naeini et al. 2015, Guo et al. 2017).
    """
    bins = np.minimum((confidence * _ERROR_BINS).astype(np.int64), _ERROR_BINS - 1)
    apart = np.bincount(bins, weights=confidence - right, minlength=_ERROR_BINS)
    return float(np.abs(apart).sum()) / len(confidence)


def error_by_chance(confidence: Floats, quantile: float = 0.95) -> float:
    """Return the calibration error that perfect confidences exceed in ``1 - quantile`` of samples.

    So many items show some error even where each answer is right with the very chance that its
    confidence says; found by drawing such answers from a fixed seed.
    """
    random = np.random.default_rng(0)
    drawn = [
        calibration_error(confidence, random.random(len(confidence)) < confidence)
        for _ in range(_DRAWS)
    ]
    return float(np.quantile(drawn, quantile))


def escalation(
    population: str, to: str, confidence: Floats, right: Rights, right_there: Rights
) -> Escalation:
    """Return what escalating to variant ``to`` gains, by confidence, from the same N items.

    ``right`` and ``right_there`` say where this variant and ``to`` were right. Raises
    ValueError for fewer than ``FEWEST_ITEMS`` items or unequal lengths.
    """
    n = len(confidence)
    if n < FEWEST_ITEMS or not n == len(right) == len(right_there):
        raise ValueError(
            f"expected at least {FEWEST_ITEMS} items, the same of both variants, "
            f"got {n}, {len(right)} and {len(right_there)}"
        )
    rounded = np.round(confidence, _DIGITS)
    order = np.argsort(rounded, kind="stable")
    ordered = rounded[order]
    # Steps begin where the confidence changes, so that equal ones are in the same step.
    even = ordered[np.arange(_STEPS) * n // _STEPS]
    starts = np.unique(np.searchsorted(ordered, even, side="left"))
    ours, theirs = right[order].astype(np.int64), right_there[order].astype(np.int64)
    blocks: list[_Step] = []
    for first, end in zip(starts, [*starts[1:], n], strict=True):
        step = _Step(
            float(ordered[first]) if first else 0.0,
            int(end - first),
            int(ours[first:end].sum()),
            int(theirs[first:end].sum()),
        )
        # Pool adjacent violators: a gain above that of less confident answers joins them.
        while blocks and blocks[-1].gain <= step.gain:
            step = blocks.pop().joined(step)
        blocks.append(step)
    return Escalation(
        population,
        to,
        confidences=tuple(step.start for step in blocks),
        gains=tuple(_rounded(step.gain) for step in blocks),
        counts=tuple(step.items for step in blocks),
        shares_right=tuple(_rounded(step.right / step.items) for step in blocks),
    )


@dataclass(frozen=True, slots=True)
class _Step:
    start: float
    items: int
    right: int
    right_there: int

    @property
    def gain(self) -> float:
        return (self.right_there - self.right) / self.items

    def joined(self, above: _Step) -> _Step:
        return _Step(
            self.start,
            self.items + above.items,
            self.right + above.right,
            self.right_there + above.right_there,
        )


def _fit_beta(odds: Floats, right: Rights, classes: int) -> tuple[tuple[float, ...], int]:
    """Return the beta map of the least log loss that never falls, and its number of parameters.

    The map rises on all q from 1 / K on, the least that the largest of K probabilities can be, when
    ``b >= 0`` and ``a (K - 1) + b >= 0``; otherwise the best one on the border of that is taken.
    """
    near, far, ones = _log_top(odds), _log_others(odds), np.ones_like(odds)
    a, b, c = _regress(np.stack([near, far, ones], axis=1), right, _IDENTITY)
    if b >= 0.0 and a * (classes - 1) + b >= 0.0:
        return (_rounded(a), _rounded(b), _rounded(c)), len(_IDENTITY)
    border = far - near / (classes - 1)
    slope, c = _regress(np.stack([border, ones], axis=1), right, (1.0, 0.0))
    if slope < 0.0:
        # The less sure are the more often right: all that is known is how often.
        slope = 0.0
        (c,) = _regress(ones[:, None], right, (0.0,))
    return (_rounded(-slope / (classes - 1)), _rounded(slope), _rounded(c)), 2


def _regress(features: Floats, right: Rights, prior: Sequence[float]) -> list[float]:
    """Return the weights of a logistic regression, by Newton's method with halved steps."""
    origin = np.array(prior, np.float64)
    weights = origin.copy()

    def loss(at: Floats) -> float:
        return _log_loss(features @ at, right) + _RIDGE / 2.0 * float(((at - origin) ** 2).sum())

    lowest = loss(weights)
    for _ in range(_NEWTON_STEPS):
        chance = _logistic(features @ weights)
        slope = features.T @ (chance - right) + _RIDGE * (weights - origin)
        bend = (features * (chance * (1.0 - chance))[:, None]).T @ features
        step = np.linalg.solve(bend + _RIDGE * np.eye(len(origin)), slope)
        share = 1.0
        while loss(weights - share * step) > lowest and share > _SHORTEST_STEP:
            share /= 2.0
        weights = weights - share * step
        before, lowest = lowest, loss(weights)
        if before - lowest < 1e-9:
            break
    return [float(weight) for weight in weights]


def _log_top(odds: Floats) -> Floats:
    """Return ln q, given ln(q / (1 - q))."""
    result: Floats = -np.logaddexp(0.0, -odds)
    return result


def _log_others(odds: Floats) -> Floats:
    """Return -ln(1 - q), given ln(q / (1 - q))."""
    result: Floats = np.logaddexp(0.0, odds)
    return result


def _log_loss(scores: Floats, right: Rights) -> float:
    """Return minus the log-likelihood of which answers are right, summed over the items."""
    return float(np.logaddexp(0.0, np.where(right, -scores, scores)).sum())


def _logistic(scores: Floats) -> Floats:
    result: Floats = np.exp(-np.logaddexp(0.0, -scores))
    return result


def _rounded(value: float) -> float:
    """Digits beyond these are noise, and would make manifests hard to read."""
    return round(float(value), _DIGITS)


def _checked(logits: Logits, labels: Labels) -> tuple[Floats, NDArray[np.int64]]:
    z, at = np.asarray(logits, np.float64), np.asarray(labels, np.int64)
    if z.ndim != 2 or z.shape[1] < 2 or len(z) != len(at) or len(z) < FEWEST_ITEMS:
        raise ValueError(
            f"expected logits [N, classes] of at least {FEWEST_ITEMS} items and a label for each, "
            f"got shape {z.shape} and {len(at)} labels"
        )
    if not np.isfinite(z).all() or at.min() < 0 or at.max() >= z.shape[1]:
        raise ValueError("expected finite logits and labels of their classes")
    return z, at
