"""Quality evidence for models that come with a file of labelled texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from worker.models.errors import CheckpointError
from worker.models.evaluate import Feeds, Runs, classify, tokenize
from worker.models.manifest import QualityEvidence, Variant
from worker.models.progress import Progress, Report
from worker.models.statistics import accuracy_evidence


@dataclass(frozen=True, slots=True)
class LabelledTexts:
    """A population: its name, texts and the index of each text's label."""

    population: str
    texts: tuple[str, ...]
    labels: tuple[int, ...]


def read_labelled(path: Path, labels: Sequence[str]) -> LabelledTexts:
    """Read lines of ``label<TAB>text``; a label is one of ``labels``. The file's stem is the name.

    Raises CheckpointError naming the first line of another form.
    """
    texts, indices = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        label, tab, text = line.removesuffix("\r").partition("\t")
        if not tab or label not in labels:
            raise CheckpointError(
                f"a label of {', '.join(labels)}, a tab and a text in line {number} of {path.name}",
                f"label {label[:40]!r}" if tab else "no tab",
                "correct the file",
            )
        texts.append(text)
        indices.append(list(labels).index(label))
    if not texts:
        raise CheckpointError(f"labelled texts in {path.name}", "none", "add some lines")
    return LabelledTexts(path.stem, tuple(texts), tuple(indices))


def measure(
    session: Runs,
    variant: Variant,
    tokenizer: Tokenizer,
    output: str,
    data: LabelledTexts,
    progress: Progress,
) -> QualityEvidence:
    """Return the accuracy of a ragged or padded classifier on a population."""
    ids = tokenize(tokenizer, data.texts, variant.max_tokens)
    with progress.step(f"measuring {variant.name}", len(ids), "items") as report:
        logits = answers(session, variant, ids, output, report)
    right = int((logits.argmax(axis=1) == np.asarray(data.labels)).sum())
    return accuracy_evidence(data.population, right, len(ids))


def answers(
    session: Runs,
    variant: Variant,
    ids: Sequence[Sequence[int]],
    output: str,
    report: Report,
) -> NDArray[np.float32]:
    """Return the logits of N sequences of token ids, float32 [N, classes], ragged or padded."""
    if variant.layout == "ragged":
        return classify(session, ids, output, report).astype(np.float32)
    rows = []
    for index, sequence in enumerate(ids, start=1):
        rows.append(session.run(padded_feeds(variant, sequence))[output])
        report(index)
    return np.concatenate(rows).astype(np.float32)


def padded_feeds(variant: Variant, sequence: Sequence[int]) -> Feeds:
    """Return the inputs of a padded graph for one sequence, which needs no padding."""
    ids = np.asarray([sequence], np.int64)
    made = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "token_type_ids": np.zeros_like(ids),
    }
    return {spec.name: made[spec.name].astype(spec.dtype) for spec in variant.inputs}
