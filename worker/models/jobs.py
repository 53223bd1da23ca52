"""What there is to build of the default model: each depth in each precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from worker.models.emitter import Precision
from worker.models.sentiment import Recipe

PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")


@dataclass(frozen=True, slots=True)
class Job:
    """One variant to be built, with the paths of what it shares, relative to the model's folder."""

    recipe: Recipe
    precision: Precision

    @property
    def name(self) -> str:
        """The variant's name."""
        return self.recipe.name + ("" if self.precision == "fp32" else f"-{self.precision}")

    @property
    def shared(self) -> str:
        """The file of weights that all variants of its base share."""
        return f"{self.recipe.family}.weights"

    @property
    def tokenizer(self) -> str:
        """The tokenizer's file."""
        return f"tokenizers/{self.recipe.family}.json"

    @property
    def twin(self) -> Job:
        """The same depth in the other precision."""
        return replace(self, precision="int8" if self.precision == "fp32" else "fp32")


def jobs_of(recipes: Sequence[Recipe]) -> list[Job]:
    """Return every variant of some depths."""
    return [Job(recipe, precision) for recipe in recipes for precision in PRECISIONS]
