"""The capacity worksheet's arithmetic: weights, tokens that fit beside them, positions of a mix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worker.models.manifest import Manifest

GIB = 1 << 30
KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class Fit:
    """What fits into a memory: all in bytes, but for the tokens.

    `live_tokens` is how many cached tokens of `token_bytes` the rest holds once weights and
    reserve are in; 0 when those do not fit, or a model keeps nothing of its tokens.
    """

    memory: int
    reserve: int
    weights: int
    token_bytes: int
    rest: int
    live_tokens: int

    @property
    def fits(self) -> bool:
        """Whether weights and reserve leave anything."""
        return self.memory > self.reserve + self.weights


def fit(memory: int, reserve: int, weights: int, token_bytes: int) -> Fit:
    """`tokens = floor((memory - reserve - weights) / token_bytes)`."""
    rest = max(0, memory - reserve - weights)
    tokens = rest // token_bytes if token_bytes else 0
    return Fit(memory, reserve, weights, token_bytes, rest, tokens)


@dataclass(frozen=True, slots=True)
class Positions:
    """Token positions of a mix of sequences that run together.

    `useful` are the tokens; `padded` what a batch padded to its longest sequence computes.
    A ragged run, as the project's own graphs are, computes the useful ones.
    """

    useful: int
    padded: int

    @property
    def factor(self) -> float:
        """Padded over useful."""
        return self.padded / self.useful


def positions(lengths: Sequence[int]) -> Positions:
    """Positions of sequences with these lengths in tokens, at least one of them."""
    return Positions(sum(lengths), len(lengths) * max(lengths))


def mix_of(text: str) -> list[int]:
    """Lengths from "256x7,4096": seven of 256 and one of 4096. Raises ValueError."""
    lengths: list[int] = []
    for part in text.split(","):
        length, _, times = part.partition("x")
        lengths += [int(length)] * int(times or 1)
    if not lengths or min(lengths) < 1:
        raise ValueError(f"expected lengths above 0, got {text!r}")
    return lengths


@dataclass(frozen=True, slots=True)
class VariantNeed:
    """One variant of a model: its graph with all weights, and what a token keeps, in bytes."""

    model: str
    variant: str
    weights: int
    token_bytes: int


def needs(folder: Path, manifest: Manifest, kv_bytes: int) -> list[VariantNeed]:
    """What the variants of the model in a folder take; keys and values have `kv_bytes` each.

    A weight file counts for every variant whose graph names it. Raises ManifestError for a graph
    that cannot be read.
    """
    from worker.models.layouts import kv_token_bytes

    kv = manifest.generation.kv if manifest.generation is not None else None
    return [
        VariantNeed(
            model=manifest.name,
            variant=variant.name,
            weights=_weights(folder / variant.graph),
            token_bytes=kv_token_bytes(variant.layout, kv, kv_bytes) if kv is not None else 0,
        )
        for variant in manifest.variants
    ]


def _weights(graph: Path) -> int:
    """Bytes of a graph and of the weight files that it names."""
    from worker.errors import ModelLoadError
    from worker.models.errors import ManifestError
    from worker.models.external_data import confined

    try:
        names = confined(graph, graph.read_bytes())
        return sum(path.stat().st_size for path in (graph, *(graph.parent / n for n in names)))
    except (OSError, ModelLoadError) as error:
        remedy = "orchid models verify finds what is damaged; build or import the model again"
        raise ManifestError(f"a graph in {graph}", str(error), remedy) from None
