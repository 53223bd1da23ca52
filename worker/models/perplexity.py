"""Measures a language model's precisions on a fixed text, against its fp32 variant.

The text is cut into windows, and every token behind the first quarter of a window is predicted
from all before it in the window. Work is kept after every window, so an evaluation that was
interrupted goes on where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError
from tokenizers import Tokenizer

from worker.engine import Session
from worker.hosted import variant_files
from worker.models.errors import CheckpointError
from worker.models.evidence import FOLDER, record_evidence
from worker.models.manifest import (
    GENERATION,
    Generation,
    Manifest,
    QualityEvidence,
    Variant,
    load_manifest,
)
from worker.models.novels import POPULATION, text_digest
from worker.models.progress import Progress
from worker.models.records import digest
from worker.models.statistics import wilson_interval
from worker.models.window_runs import Floats, WindowRun, window_run

REFERENCE = "fp32"
WINDOW = 512
WINDOWS = 24
# What a build measures: a window of each novel.
BUILT_WINDOWS = 6
_UNSCORED = 4  # the part of a window that is context only: one in so many
_CHUNK_ROWS = 64
_Z = 1.959964

AGREEMENT, PERPLEXITY = "top1-agreement", "perplexity"
PERPLEXITY_RATIO, DIVERGENCE = "perplexity-ratio", "kl-divergence"


@dataclass(frozen=True, slots=True)
class WindowScore:
    """One window: sums over its scored tokens.

    ``surprise`` and ``reference`` are -ln p of the text's tokens by the variant and by fp32,
    ``divergence`` KL(fp32 || variant) in nats, ``agreed`` how often both would choose the same.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    tokens: int
    surprise: float
    reference: float
    divergence: float
    agreed: int


@dataclass(frozen=True, slots=True)
class Scores:
    """How far one variant has come; ``key`` says with what."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    key: str
    windows: tuple[WindowScore, ...] = ()


_SCORES: TypeAdapter[Scores] = TypeAdapter(Scores)


def windows(texts: Sequence[Sequence[int]], length: int, count: int) -> list[list[int]]:
    """Cut ``count`` windows of ``length`` token ids out of texts, in turns and evenly spread.

    The same first windows come whatever ``count`` up to WINDOWS is. Raises ValueError when a
    text is too short.
    """
    of_each = -(-max(count, WINDOWS) // len(texts))
    found = []
    for number in range(count):
        text, turn = texts[number % len(texts)], number // len(texts)
        room = len(text) - length
        if room < of_each - 1:
            raise ValueError(f"expected texts of over {length + of_each} tokens, got {len(text)}")
        start = room * turn // of_each
        found.append(list(text[start : start + length]))
    return found


def score(window: Sequence[int], reference: Floats, logits: Floats) -> WindowScore:
    """Score the logits after a window's tokens from the last unscored one on, but the last."""
    first = len(window) - len(logits)
    targets = np.asarray(window[first:], np.int64)
    surprise = expected = divergence = 0.0
    for start in range(0, len(targets), _CHUNK_ROWS):
        rows = slice(start, start + _CHUNK_ROWS)
        theirs = _log_softmax(reference[rows])
        ours = theirs if logits is reference else _log_softmax(logits[rows])
        at = np.arange(len(ours)), targets[rows]
        surprise -= float(ours[at].sum())
        expected -= float(theirs[at].sum())
        divergence += float((np.exp(theirs) * (theirs - ours)).sum())
    agreed = int((logits.argmax(axis=-1) == reference.argmax(axis=-1)).sum())
    return WindowScore(len(targets), surprise, expected, divergence, agreed)


def evidence(scores: Sequence[WindowScore], *, is_reference: bool) -> tuple[QualityEvidence, ...]:
    """Return the evidence of finished windows, agreement first: it is what routing compares.

    Agreement has a Wilson interval over tokens; the others normal intervals over windows, the
    perplexities on the logarithmic scale.
    """
    n = sum(one.tokens for one in scores)
    agreed = sum(one.agreed for one in scores)
    low, high = wilson_interval(agreed, n)
    found = [QualityEvidence(POPULATION, AGREEMENT, agreed / n, n, low, high)]
    surprise = _interval([one.surprise / one.tokens for one in scores])
    found.append(_exponential(PERPLEXITY, surprise, n))
    if not is_reference:
        more = _interval([(one.surprise - one.reference) / one.tokens for one in scores])
        found.append(_exponential(PERPLEXITY_RATIO, more, n))
        value, low, high = _interval([one.divergence / one.tokens for one in scores])
        found.append(QualityEvidence(POPULATION, DIVERGENCE, value, n, max(0.0, low), high))
    return tuple(found)


class GeneratorEvaluation:
    """Evaluates variants of one language model; ``engine`` identifies what runs them."""

    def __init__(
        self,
        folder: Path,
        engine: str,
        open_session: Callable[[Path], Session],
        progress: Progress,
    ) -> None:
        self._folder = folder
        self._engine = engine
        self._open_session = open_session
        self._progress = progress

    def run(self, variants: Sequence[str], texts: Sequence[str], limit: int = 0) -> Manifest:
        """Measure the named variants (none means all) on ``limit`` windows; return the manifest.

        0 means the usual number. Raises CheckpointError when a variant does not exist, or there
        is no fp32 variant to compare with; WorkerError when one does not run.
        """
        manifest = load_manifest(self._folder)
        generation = manifest.generation
        if manifest.task != GENERATION or generation is None:
            raise CheckpointError(
                f"a language model in {self._folder.name}", manifest.task, "evaluate a classifier"
            )
        reference = next((v for v in manifest.variants if v.precision == REFERENCE), None)
        if reference is None:
            raise CheckpointError(
                f"an {REFERENCE} variant to compare with",
                ", ".join(v.name for v in manifest.variants),
                "build that one too",
            )
        names = [variant.name for variant in manifest.variants]
        for name in variants:
            if name not in names:
                raise CheckpointError(f"a variant of {', '.join(names)}", repr(name), "name these")
        chosen = [v for v in manifest.variants if not variants or v.name in variants]
        count = limit or WINDOWS
        cut = self._windows(manifest, reference, generation, texts, count)
        # Fewer windows are the first of the usual ones, so what was done of those counts.
        data = digest(texts=text_digest(tuple(texts)), of=max(count, WINDOWS), length=len(cut[0]))
        scores = self._scores(manifest, generation, reference, chosen, cut, data)
        for variant in chosen:
            found = evidence(scores[variant.name], is_reference=variant is reference)
            manifest = record_evidence(self._folder, variant.name, found)
        return manifest

    def _windows(
        self,
        manifest: Manifest,
        reference: Variant,
        generation: Generation,
        texts: Sequence[str],
        count: int,
    ) -> list[list[int]]:
        path = manifest.tokenizers[reference.tokenizer].path
        tokenizer = Tokenizer.from_file(str(self._folder / path))
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        begin = [] if generation.begin_token is None else [generation.begin_token]
        length = min(WINDOW, generation.context) - len(begin)
        return [[*begin, *window] for window in windows(ids, length, count)]

    def _scores(
        self,
        manifest: Manifest,
        generation: Generation,
        reference: Variant,
        chosen: Sequence[Variant],
        cut: Sequence[Sequence[int]],
        data: str,
    ) -> dict[str, list[WindowScore]]:
        """Return every variant's windows, going on behind those that are kept."""
        kept = {v.name: self._kept(manifest, reference, v, data) for v in chosen}
        done = {name: len(scores.windows) for name, scores in kept.items()}
        todo = range(min([*done.values(), len(cut)]), len(cut))
        with self._progress.step(f"{manifest.name} on {POPULATION}", len(cut), "items") as report:
            runs: dict[str, WindowRun] = {}
            size = len(cut[0])

            def logits(variant: Variant, window: Sequence[int]) -> Floats:
                if variant.name not in runs:
                    session = self._open_session(self._folder / variant.graph)
                    runs[variant.name] = window_run(session, variant, generation, size)
                return runs[variant.name](window, size // _UNSCORED - 1)

            for number in todo:
                wanted = [v for v in chosen if done[v.name] <= number]
                expected = logits(reference, cut[number])
                for variant in wanted:
                    found = expected if variant is reference else logits(variant, cut[number])
                    one = score(cut[number], expected, found)
                    scores = kept[variant.name]
                    kept[variant.name] = replace(scores, windows=(*scores.windows, one))
                    self._save(variant, kept[variant.name])
                report(number + 1)
        return {name: list(scores.windows[: len(cut)]) for name, scores in kept.items()}

    def _kept(self, manifest: Manifest, reference: Variant, variant: Variant, data: str) -> Scores:
        files = {
            ref.sha256
            for one in (reference, variant)
            for ref in variant_files(self._folder, manifest, one).values()
        }
        tokenizer = manifest.tokenizers[variant.tokenizer].sha256
        key = digest(files=sorted(files), tokenizer=tokenizer, data=data, engine=self._engine)
        try:
            found = _SCORES.validate_json(self._file(variant).read_bytes())
        except (OSError, ValidationError):
            return Scores(key)
        return found if found.key == key else Scores(key)

    def _save(self, variant: Variant, scores: Scores) -> None:
        file = self._file(variant)
        file.parent.mkdir(exist_ok=True)
        partial = file.with_name(file.name + ".partial")
        partial.write_bytes(_SCORES.dump_json(scores))
        partial.replace(file)

    def _file(self, variant: Variant) -> Path:
        return self._folder / FOLDER / f"{variant.name}.{POPULATION}.json"


def _log_softmax(logits: Floats) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def _interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of windows with its 95 % interval."""
    mean = fmean(values)
    half = _Z * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return mean, mean - half, mean + half


def _exponential(metric: str, of: tuple[float, float, float], n: int) -> QualityEvidence:
    value, low, high = (math.exp(x) for x in of)
    return QualityEvidence(POPULATION, metric, value, n, low, high)
