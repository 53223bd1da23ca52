"""The default model: seven depths of two encoders, each with a small trained adapter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from worker.models.packages import MINILM, MPNET, CheckpointPackages

NAME = "sentiment"
VERSION = "1"
LABELS = ("negative", "positive")
WARM_LENGTHS = (16, 32, 64, 128, 256)
# Where the answer for a training mix-up would show first: merged float32 accuracies that were
# measured independently when the adapters were made.
EXPECTED_ACCURACY = {"mpnet4": 0.8903, "mini6": 0.8669, "mini3": 0.8415}
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
