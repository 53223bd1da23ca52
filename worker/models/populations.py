"""The populations on which a classifier of sentiment is measured, beyond its own test reviews.

The four rated sets of Hutto and Gilbert (2014) lie in one archive: sentences of movie and
product reviews, of newspaper editorials, and tweets, each rated from -4 to 4 by 20 people or
more. The default model has been trained on the movie reviews only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from worker.models.dataset import CLEAR_MEAN, POPULATION, Review, of_split, read_reviews
from worker.models.errors import CheckpointError
from worker.models.packages import REVIEWS_FILE, REVIEWS_FOLDER, Pin
from worker.models.quality import LabelledTexts

CLEAR_SUFFIX = "-clear"
FITTING_SUFFIX = "-validation"


@dataclass(frozen=True, slots=True)
class RatedSet:
    """One rated set: what its population is called, its file, and whether a split was trained on.

    ``held_out`` takes only the test split.
    """

    population: str
    file: Pin
    held_out: bool = False


RATED_SETS = (
    RatedSet(POPULATION, REVIEWS_FILE, held_out=True),
    RatedSet(
        "amazon-reviews",
        Pin(
            "amazonReviewSnippets_GroundTruth.txt",
            "11a9807a0974a2506a2d3b4851eaf69b3d6d20688ce4923adda2312a4f6dd6c2",
            373157,
        ),
    ),
    RatedSet(
        "nyt-editorials",
        Pin(
            "nytEditorialSnippets_GroundTruth.txt",
            "7d8fbcce7dde5d716da53e78f4ef4be6b706e9ef1e1d51887e6d0ad4b69cc27e",
            607629,
        ),
    ),
    RatedSet(
        "tweets",
        Pin(
            "tweets_GroundTruth.txt",
            "dfbe7102e2f92579ed8b19df9a3822491880697c67adf712fb66e520cc05102f",
            389886,
        ),
    ),
)
RATED_LABELS = ("negative", "positive")


class RatedFiles(Protocol):
    """Where the files of rated sets come from; see PackageCache."""

    def rated(self, member: str, pin: Pin) -> Path:
        """Return the file ``member`` of the archive, fetched when needed."""
        ...


@dataclass(frozen=True, slots=True)
class Population:
    """Labelled items under a name: texts, or their ``token_ids`` in the place of texts.

    ``clear`` marks the items that lean clearly, when degrees exist. ``source`` identifies the
    content: the same source gives the same items in the same order, from the first on. Confidence
    is fitted on ``fitting``, else on one half of the items, as ``fitted_half`` says.
    """

    name: str
    texts: tuple[str, ...]
    labels: tuple[int, ...]
    source: str
    clear: tuple[bool, ...] = ()
    token_ids: tuple[tuple[int, ...], ...] = ()
    fitting: Population | None = None

    def first(self, limit: int) -> Population:
        """The first ``limit`` items, and of those to fit on; all of them for 0."""
        if not limit:
            return self
        return replace(
            self,
            texts=self.texts[:limit],
            labels=self.labels[:limit],
            clear=self.clear[:limit],
            token_ids=self.token_ids[:limit],
            fitting=None if self.fitting is None else self.fitting.first(limit),
        )

    def fitted_half(self) -> NDArray[np.bool_]:
        """Return which items confidence is fitted on when there are no others for it, [N].

        A hash of the item decides, so that equal ones are on one side however many there are.
        """
        items = self.texts or [repr(ids) for ids in self.token_ids]
        last = [hashlib.sha256(item.encode()).digest()[-1] for item in items]
        return np.array([byte % 2 == 0 for byte in last], np.bool_)


def rated_population(name: str, files: RatedFiles) -> Population:
    """Return a rated set by the name of its population, in the order of the texts' hashes.

    Hash order, so that the first items of a population are a sample of the whole. Raises
    CheckpointError for an unknown name, PackageError when the archive cannot be had.
    """
    chosen = next((rated for rated in RATED_SETS if rated.population == name), None)
    if chosen is None:
        known = ", ".join(rated.population for rated in RATED_SETS)
        raise CheckpointError(
            f"a population of {known}", repr(name), "name one of these, or give --labelled FILE"
        )
    reviews = read_reviews(files.rated(REVIEWS_FOLDER + chosen.file.name, chosen.file))
    if chosen.held_out:
        return held_out_population(name, reviews, chosen.file.sha256)
    return _by_hash(name, reviews, chosen.file.sha256)


def held_out_population(name: str, reviews: Sequence[Review], source: str) -> Population:
    """Return the test split of texts that were trained on; the validation split is to fit on."""
    test = _by_hash(name, of_split(reviews, "test"), source)
    validation = _by_hash(name + FITTING_SUFFIX, of_split(reviews, "validation"), source)
    return replace(test, fitting=validation)


def hash_order(texts: Sequence[str]) -> list[int]:
    """Return the places of texts in the order of their hashes, equal ones in their own order."""
    digests = [hashlib.sha256(text.encode()).digest() for text in texts]
    return sorted(range(len(digests)), key=digests.__getitem__)


def _by_hash(name: str, reviews: Sequence[Review], source: str) -> Population:
    items = [reviews[place] for place in hash_order([review.text for review in reviews])]
    return Population(
        name,
        tuple(item.text for item in items),
        tuple(item.label for item in items),
        source,
        tuple(abs(item.mean) >= CLEAR_MEAN for item in items),
    )


def labelled_population(data: LabelledTexts) -> Population:
    """Return a user's labelled texts as a population."""
    content = "\n".join(
        f"{label}\t{text}" for label, text in zip(data.labels, data.texts, strict=True)
    )
    source = hashlib.sha256(content.encode()).hexdigest()
    return Population(data.population, data.texts, data.labels, source)
