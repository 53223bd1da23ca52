"""What of several variants' answers a cascade may rest on, and what is refused with its reason."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from worker.models.escalations import Sample, confidence_evidence

Floats = NDArray[np.float32]


def logits_of(
    labels: NDArray[np.int64], strength: float, generator: np.random.Generator, told: float = 1.0
) -> Floats:
    """Two classes; the margin leans `strength` to the label, and `told` times what it should."""
    sign = labels * 2 - 1
    lean = strength * sign + generator.normal(0.0, np.sqrt(strength), len(labels))
    # A margin of normal noise with mean and variance alike is the log-odds when doubled.
    margin = told * 2.0 * lean
    return np.stack([-margin / 2, margin / 2], axis=1).astype(np.float32)


def sample(n: int, seed: int, *, told: float = 1.0, blind: bool = False) -> Sample:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, n)
    big = logits_of(labels, 3.0, generator)
    small = logits_of(labels, 0.7, generator, told)
    if blind:
        # It is right or wrong whatever it says.
        right = generator.random(n) < 0.8
        sure = generator.uniform(0.5, 3.0, n) * np.where(right, 1, -1) * (labels * 2 - 1)
        small = np.stack([-sure / 2, sure / 2], axis=1).astype(np.float32)
    return Sample(labels, {"big": big, "small": small})


def test_a_sound_first_stage_is_calibrated_and_may_ask_the_better_one() -> None:
    found = confidence_evidence("p", sample(3000, 1), sample(3000, 2))
    assert found["big"].escalations == ()
    small = found["small"]
    assert (small.calibration.fitted_on, small.calibration.n) == (3000, 3000)
    assert small.calibration.temperature == pytest.approx(1.0, rel=0.15)
    assert small.calibration.error < 0.03
    (table,) = small.escalations
    assert (table.population, table.to, table.refused) == ("p", "big", "")
    assert table.gains[0] > 0.3 > 0.05 > table.gains[-1]


def test_confidence_that_is_off_on_the_other_items_is_refused() -> None:
    found = confidence_evidence("p", sample(2000, 1), sample(2000, 2, told=5.0))
    (table,) = found["small"].escalations
    assert table.gains == ()
    assert "calibration error" in table.refused
    assert "2000 items" in table.refused


def test_confidence_that_does_not_tell_where_to_ask_is_refused() -> None:
    found = confidence_evidence("p", sample(2000, 1, blind=True), sample(2000, 2, blind=True))
    (table,) = found["small"].escalations
    assert "big does not surely gain more on the less confident half" in table.refused


def test_a_variant_that_is_hardly_better_is_not_asked() -> None:
    one, two = sample(1000, 1), sample(1000, 2)
    for each in (one, two):
        each.logits["twin"] = each.logits["small"] * np.float32(1.1)  # type: ignore[index]
    found = confidence_evidence("p", one, two)
    assert [item.to for item in found["small"].escalations] == ["big"]
    assert [item.to for item in found["twin"].escalations] == ["big"]


def test_too_few_items_are_refused_with_their_numbers() -> None:
    with pytest.raises(ValueError, match="499 items to fit on and 900 to test on"):
        confidence_evidence("p", sample(499, 1), sample(900, 2))
