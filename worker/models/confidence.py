"""Fits how sure a classifier is of an answer, and what a more accurate one would gain on it.

A network's top probability is not the chance that it is right. A temperature makes it one
(Guo et al. 2017), where need be with a bias for each class that was answered; how near it
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
# Temperature and biases are fitted in turns; they settle within a few.
_TURNS = 25
# Log-odds of a bias are drawn from a standard normal before the data speak, and bounded.
_LARGEST_BIAS = 10.0
_ERROR_BINS = 15
_DRAWS = 400
# Steps before neighbours are merged: about forty items each in the smallest sample.
_STEPS = 12
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Fit:
    """A temperature and a bias for each class in log-odds; none where they do not pay."""

    temperature: float
    biases: tuple[float, ...] = ()

    def confidences(self, logits: Logits) -> Floats:
        """Return the chance of each of N answers to be right, from logits [N, classes]."""
        scores = log_odds(logits, self.temperature)
        if self.biases:
            scores = scores + np.asarray(self.biases)[np.asarray(logits).argmax(axis=1)]
        return _logistic(scores)


def fit_confidence(logits: Logits, labels: Labels) -> Fit:
    """Return the map from logits [N, classes] to confidence that N labelled items speak for.

    Biases are taken where they raise the log-likelihood of right and wrong answers by more than
    their number (Akaike 1974). Raises ValueError for fewer than ``FEWEST_ITEMS`` items, fewer
    than two classes or no finite numbers.
    """
    z, at = _checked(logits, labels)
    plain = Fit(_rounded(fit_temperature(z, at)))
    right = z.argmax(axis=1) == at
    biased = _fit_biases(z, right, plain.temperature)
    saved = _log_loss(z, right, plain) - _log_loss(z, right, biased)
    return biased if saved > len(biased.biases) else plain


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


def _fit_biases(z: Floats, right: Rights, temperature: float) -> Fit:
    """Return temperature and biases of the least log loss, each fitted in turn beside the other."""
    answered, classes = z.argmax(axis=1), z.shape[1]
    biases = np.zeros(classes)
    for _ in range(_TURNS):
        scores = log_odds(z, temperature)
        for label in range(classes):
            mine = answered == label
            biases[label] = _bias(scores[mine], right[mine])
        temperature = _cooled(z, right, temperature, biases)
    return Fit(_rounded(temperature), tuple(_rounded(bias) for bias in biases))


def _bias(scores: Floats, right: Rights) -> float:
    """Return the zero of the slope ``sum(logistic(score + b) - right) + b``."""
    low, high, wanted = -_LARGEST_BIAS, _LARGEST_BIAS, float(right.sum())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        slope = float(_logistic(scores + middle).sum()) - wanted + middle
        low, high = (low, middle) if slope > 0.0 else (middle, high)
    return (low + high) / 2.0


def _cooled(z: Floats, right: Rights, temperature: float, biases: Floats) -> float:
    """Return the temperature of the least log loss within a factor of two, by thirds."""
    given = tuple(biases.tolist())
    low = float(np.log(max(temperature / 2.0, 1.0 / _HOTTEST)))
    high = float(np.log(min(temperature * 2.0, 1.0 / _COLDEST)))
    for _ in range(_HALVINGS // 2):
        left, there = low + (high - low) / 3.0, high - (high - low) / 3.0
        losses = [_log_loss(z, right, Fit(float(np.exp(at)), given)) for at in (left, there)]
        low, high = (low, there) if losses[0] < losses[1] else (left, high)
    return float(np.exp((low + high) / 2.0))


def _log_loss(z: Floats, right: Rights, fit: Fit) -> float:
    """Return minus the log-likelihood of which answers are right, summed over the items."""
    scores = log_odds(z, fit.temperature)
    if fit.biases:
        scores = scores + np.asarray(fit.biases)[z.argmax(axis=1)]
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
