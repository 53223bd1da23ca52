"""Runs the variants of a classifier on populations and keeps what they answered.

Answers are kept after every chunk of items under a key of the files, the items and the engine:
what was interrupted goes on, what is finished is only read, what changed is measured anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from worker.engine import machine_class, runtime_info
from worker.models.errors import CheckpointError
from worker.models.evaluate import Runs, tokenize
from worker.models.evidence import FOLDER, Tally, save_tally, tally_of
from worker.models.manifest import FileRef, QualityEvidence, Variant
from worker.models.populations import CLEAR_SUFFIX, Population
from worker.models.progress import Progress
from worker.models.quality import answers
from worker.models.records import digest
from worker.models.statistics import accuracy_evidence

# Items between two savings: seconds of work on the largest variant.
CHUNK = 128


@dataclass(frozen=True, slots=True)
class Measured:
    """One variant as it is run: its ``files`` by path, its tokenizer's, and the answer's output."""

    variant: Variant
    files: Mapping[str, FileRef]
    tokenizer: FileRef
    output: str


@dataclass(frozen=True, slots=True)
class Answers:
    """Which of N items were answered right, [N], and the logits float32 [N, classes]."""

    right: NDArray[np.bool_]
    logits: NDArray[np.float32]


def engine_identity() -> str:
    """What runs graphs here: the class of machine and the engine's ONNX Runtime."""
    return f"{machine_class()} {runtime_info().library_version}"


def accuracies(population: Population, found: Answers) -> tuple[QualityEvidence, ...]:
    """Return the accuracy on a population, and on its clear items where there are degrees."""
    every = accuracy_evidence(population.name, int(found.right.sum()), len(found.right))
    if not any(population.clear):
        return (every,)
    clear = found.right[np.array(population.clear, np.bool_)]
    name = population.name + CLEAR_SUFFIX
    return (every, accuracy_evidence(name, int(clear.sum()), len(clear)))


class Measurement:
    """Measures variants of the model in ``folder``; ``engine`` identifies what runs them.

    ``open_session`` loads a graph as serving does. Variants may be measured by several threads.
    """

    def __init__(
        self,
        folder: Path,
        engine: str,
        open_session: Callable[[Path], Runs],
        progress: Progress,
    ) -> None:
        self._folder = folder
        self._engine = engine
        self._open_session = open_session
        self._progress = progress

    def answers(self, measured: Measured, population: Population) -> Answers:
        """Return a variant's answers, running it on what is not done yet.

        Raises CheckpointError when an item does not fit the variant, WorkerError when that
        does not run.
        """
        name, total = measured.variant.name, len(population.labels)
        tally, logits = self._kept(measured, population)
        if tally.done < total:
            session = self._open_session(self._folder / measured.variant.graph)
            ids = self.sequences(measured, population)
            with self._progress.step(f"{name} on {population.name}", total, "items") as report:
                while tally.done < total:
                    chunk = slice(tally.done, min(total, tally.done + CHUNK))
                    found = answers(
                        session, measured.variant, ids[chunk], measured.output, lambda done: None
                    )
                    logits = found if logits is None else np.concatenate([logits, found])
                    tally = _counted(tally, population.labels[chunk], found)
                    # Logits first: a tally never tells of more than there are.
                    self._save(name, population.name, logits)
                    save_tally(self._folder, name, population.name, tally)
                    report(tally.done)
        return _answers(tally, logits, total)

    def kept(self, measured: Measured, population: Population) -> Answers | None:
        """Return a variant's answers if all are there."""
        tally, logits = self._kept(measured, population)
        total = len(population.labels)
        return None if tally.done < total else _answers(tally, logits, total)

    def sequences(self, measured: Measured, population: Population) -> list[list[int]]:
        """Return the token ids of a population's items; raises CheckpointError for one too long."""
        variant, limit = measured.variant, measured.variant.max_tokens
        tokenizer = Tokenizer.from_file(str(self._folder / measured.tokenizer.path))
        if not population.token_ids:
            try:
                return tokenize(tokenizer, population.texts, limit)
            except ValueError as error:
                raise CheckpointError(
                    f"texts of {population.name} that fit {variant.name}",
                    str(error),
                    "leave out the longest ones",
                ) from None
        size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        for ids in population.token_ids:
            if len(ids) > limit or min(ids) < 0 or max(ids) >= size:
                raise CheckpointError(
                    f"at most {limit} token ids below {size} in each item of {population.name}",
                    f"an item of {len(ids)} from {min(ids)} to {max(ids)}",
                    "use the tokenizer of this model",
                )
        return [list(ids) for ids in population.token_ids]

    def _kept(
        self, measured: Measured, population: Population
    ) -> tuple[Tally, NDArray[np.float32] | None]:
        """Return what is done of this very content; nothing when logits are missing."""
        key = digest(
            files=sorted(ref.sha256 for ref in measured.files.values()),
            tokenizer=measured.tokenizer.sha256,
            data=population.source,
            engine=self._engine,
        )
        name = measured.variant.name
        tally = tally_of(self._folder, name, population.name)
        logits = _logits_in(self._file(name, population.name))
        if tally is None or tally.key != key or logits is None or len(logits) < tally.done:
            return Tally(key, population.source), None
        return tally, logits[: tally.done]

    def _file(self, variant: str, population: str) -> Path:
        return self._folder / FOLDER / f"{variant}.{population}.npy"

    def _save(self, variant: str, population: str, logits: NDArray[np.float32]) -> None:
        file = self._file(variant, population)
        file.parent.mkdir(exist_ok=True)
        partial = file.with_name(file.name + ".partial")
        with partial.open("wb") as stream:
            np.save(stream, logits)
        partial.replace(file)


def _counted(tally: Tally, labels: Sequence[int], found: NDArray[np.float32]) -> Tally:
    right = found.argmax(axis=1) == np.asarray(labels)
    return replace(tally, right=tally.right + "".join("1" if one else "0" for one in right))


def _answers(tally: Tally, logits: NDArray[np.float32] | None, total: int) -> Answers:
    if logits is None:
        logits = np.zeros((0, 0), np.float32)
    right = np.array([one == "1" for one in tally.right[:total]], np.bool_)
    return Answers(right, logits[:total])


def _logits_in(file: Path) -> NDArray[np.float32] | None:
    try:
        found = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if not isinstance(found, np.ndarray) or found.ndim != 2 or found.dtype != np.float32:
        return None
    return found
