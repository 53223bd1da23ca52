"""Runtimes in turns on the same measures, and what their ratios are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.decode.peers.protocol import Subject

# The first step after another runtime had the caches and the cores is not counted.
_WARM_STEPS = 1


@dataclass(frozen=True, slots=True)
class Measure:
    """A prefill of `tokens`, or decode steps of `batch` sequences with `tokens` cached."""

    name: str
    batch: int
    tokens: int

    @property
    def is_prefill(self) -> bool:
        """Whether it measures prompts."""
        return self.batch == 0


MEASURES = (
    Measure("prefill256", 0, 256),
    Measure("decode_b1_128", 1, 128),
    Measure("decode_b1_900", 1, 900),
    Measure("decode_b8_128", 8, 128),
    Measure("decode_b8_900", 8, 900),
)


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens a second of every subject in every round."""

    measure: Measure
    by_subject: Mapping[str, tuple[float, ...]]

    def typical(self, subject: str) -> float:
        """The median over the rounds."""
        return median(self.by_subject[subject])

    def ratio(self, subject: str, other: str) -> float:
        """The median over the rounds of `subject` over `other` within a round."""
        pairs = zip(self.by_subject[subject], self.by_subject[other], strict=True)
        return median(ours / theirs for ours, theirs in pairs)

    def points(self) -> list[dict[str, Any]]:
        """One point a subject."""
        return [
            {
                "name": self.measure.name,
                "subject": subject,
                "tok_s": self.typical(subject),
                "rounds_tok_s": list(rates),
            }
            for subject, rates in self.by_subject.items()
        ]


def compare(
    subjects: Mapping[str, Subject],
    measures: Sequence[Measure],
    *,
    rounds: int,
    steps: int,
    notify: Callable[[str], None],
) -> list[Rates]:
    """Measure all subjects on each measure, in turns whose order changes from round to round."""
    found = []
    for measure in measures:
        rates: dict[str, list[float]] = {name: [] for name in subjects}
        for name, subject in subjects.items():
            notify(f"{measure.name}: preparing {name}")
            if measure.is_prefill:
                subject.prefill(measure.tokens)
            else:
                subject.open(measure.batch, measure.tokens)
                subject.steps(_WARM_STEPS)
        for number in range(rounds):
            notify(f"{measure.name}: round {number + 1} of {rounds}")
            order = list(subjects) if number % 2 else list(subjects)[::-1]
            for name in order:
                rates[name].append(_rate(subjects[name], measure, steps))
        for subject in subjects.values():
            subject.close()
        found.append(Rates(measure, {name: tuple(each) for name, each in rates.items()}))
    return found


def agreement(
    subjects: Mapping[str, Subject], reference: str, *, prompts: int, tokens: int
) -> list[dict[str, Any]]:
    """Whether all run the same model: shares of prompts after which a subject's most likely token
    is that of `reference`, one point a subject.
    """
    expected = [subjects[reference].first_token(number, tokens) for number in range(prompts)]
    points = []
    for name, subject in subjects.items():
        found = [subject.first_token(number, tokens) for number in range(prompts)]
        same = sum(a == b for a, b in zip(found, expected, strict=True))
        points.append(
            {"name": "agreement", "subject": name, "prompts": prompts, "share": same / prompts}
        )
    return points


def _rate(subject: Subject, measure: Measure, steps: int) -> float:
    if measure.is_prefill:
        return measure.tokens / subject.prefill(measure.tokens)
    subject.steps(_WARM_STEPS)
    return measure.batch / median(subject.steps(steps))


def ratios(rates: Sequence[Rates], ours: str, peers: Sequence[str]) -> dict[str, float]:
    """`<measure>_vs_<peer>` for each peer, and `_vs_best`: against the fastest on that measure."""
    summary: dict[str, float] = {}
    for each in rates:
        against = {peer: each.ratio(ours, peer) for peer in peers}
        summary |= {f"{each.measure.name}_vs_{peer}": value for peer, value in against.items()}
        if against:
            summary[f"{each.measure.name}_vs_best"] = min(against.values())
    return summary
