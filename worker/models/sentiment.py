"""The default model: seven depths of two encoders, each with a small trained adapter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from worker.models.packages import MINILM, MPNET, CheckpointPackages

NAME = "sentiment"
VERSION = "1"
LABELS = ("negative", "positive")
WARM_LENGTHS = (16, 32, 64, 128, 256)
# Accuracy on the test reviews when the adapters were made: mpnet4, mini6
# and mini3 as merged here in float32, the others in bfloat16, which moves a few items.
EXPECTED_ACCURACY = {
    "mpnet12": 0.9217,
    "mpnet8": 0.9208,
    "mpnet6": 0.9090,
    "mpnet4": 0.8903,
    "mini6": 0.8669,
    "mini4": 0.8579,
    "mini3": 0.8415,
}
LARGEST_DEVIATION = 0.003
ADAPTERS = Path(__file__).with_name("adapters")


@dataclass(frozen=True, slots=True)
class Recipe:
    """One depth: the base checkpoint, its first ``layers`` layers, and the adapter on them."""

    name: str
    base: CheckpointPackages
    family: str
    layers: int

    @property
    def small(self) -> bool:
        """Whether its base is the small download."""
        return self.base is MINILM

    @property
    def adapter(self) -> Path:
        """The adapter's file."""
        return ADAPTERS / f"{self.name}.safetensors"


RECIPES = (
    Recipe("mpnet12", MPNET, "mpnet", 12),
    Recipe("mpnet8", MPNET, "mpnet", 8),
    Recipe("mpnet6", MPNET, "mpnet", 6),
    Recipe("mpnet4", MPNET, "mpnet", 4),
    Recipe("mini6", MINILM, "minilm", 6),
    Recipe("mini4", MINILM, "minilm", 4),
    Recipe("mini3", MINILM, "minilm", 3),
)


def deviation(name: str, accuracy: float) -> str:
    """Return what is off when a fp32 variant measures otherwise than expected, or nothing."""
    expected = EXPECTED_ACCURACY.get(name)
    if expected is None or abs(accuracy - expected) <= LARGEST_DEVIATION:
        return ""
    return f"{name} measures {accuracy:.4f}, {expected:.4f} was expected: suspect its adapter"
