"""What a profiling keeps while it goes on, and how its runs become a variant's profile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from worker.models.manifest import Variant
from worker.profile import Sample, fit, reference_length, warm_plan
from worker.profile_file import CrossCheck, MeasuredVariant, PassNote, ShapeTime

LARGEST_DIFFERENCE = 0.10
# Two builds of the same kernels round alike; another graph or other weights do not.
LARGEST_ANSWER_DIFFERENCE = 1e-3

_STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One run: its shape, the time it is charged, and the time on the clock, in microseconds."""

    __pydantic_config__ = _STRICT

    lengths: tuple[int, ...]
    service_us: float
    wall_us: float


@dataclass(frozen=True, slots=True)
class PassRuns:
    """One pass over one variant; `pairs` are times here and of the independent session, in us."""

    __pydantic_config__ = _STRICT

    runs: tuple[TimedRun, ...]
    neighbours: float
    pairs: tuple[tuple[float, float], ...]
    answers_differ: float


@dataclass(frozen=True, slots=True)
class VariantRuns:
    """The finished passes of one variant, and the content that was run."""

    __pydantic_config__ = _STRICT

    content: str
    passes: tuple[PassRuns, ...] = ()


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A profiling under way; `key` says by what settings and on what machine."""

    __pydantic_config__ = _STRICT

    key: str
    variants: dict[str, VariantRuns] = field(default_factory=dict)

    def of(self, variant: str, content: str) -> VariantRuns:
        """What was kept of a variant, if its content is still the same."""
        kept = self.variants.get(variant)
        return kept if kept is not None and kept.content == content else VariantRuns(content)

    def added(self, variant: str, kept: VariantRuns, one: PassRuns) -> Unfinished:
        """With one more pass of a variant."""
        more = replace(kept, passes=(*kept.passes, one))
        return replace(self, variants={**self.variants, variant: more})


_ADAPTER: TypeAdapter[Unfinished] = TypeAdapter(Unfinished)


def load_unfinished(path: Path, key: str) -> Unfinished:
    """What an interrupted profiling with the same key left, or an empty one."""
    try:
        found = _ADAPTER.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return Unfinished(key)
    return found if found.key == key else Unfinished(key)


def save_unfinished(path: Path, unfinished: Unfinished) -> None:
    """Keep a profiling, whole or as it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(_ADAPTER.dump_python(unfinished, mode="json")))
    partial.replace(path)


def measured_variant(variant: Variant, kept: VariantRuns) -> MeasuredVariant:
    """Fit a variant's profile to all its passes, and judge them.

    Raises ValueError without passes.
    """
    runs = [run for one in kept.passes for run in one.runs]
    measured = tuple(dict.fromkeys(run.lengths for run in runs))
    reference = reference_of(variant, measured)
    profile = fit(
        variant.name,
        [Sample(run.lengths, run.service_us) for run in runs],
        reference,
        quadratic=variant.layout != "tensor",
    )
    shapes = []
    for lengths in measured:
        times = [run.service_us for run in runs if run.lengths == lengths]
        p50, p95, p99 = (float(value) for value in np.percentile(times, (50, 95, 99)))
        predicted = profile.predict_us(lengths)
        shapes.append(ShapeTime(lengths, len(times), p50, p95, p99, predicted))
    notes = tuple(
        PassNote(
            ratio=median(run.service_us / profile.predict_us(run.lengths) for run in one.runs),
            neighbours=one.neighbours,
            wall_over_cpu=median(run.wall_us / run.service_us for run in one.runs),
        )
        for one in kept.passes
    )
    ratios = [note.ratio for note in notes]
    pairs = [pair for one in kept.passes for pair in one.pairs]
    return MeasuredVariant(
        content=kept.content,
        profile=profile,
        shapes=tuple(sorted(shapes, key=lambda s: (len(s.lengths), sum(s.lengths)))),
        passes=notes,
        spread=(max(ratios) - min(ratios)) / median(ratios),
        fit_error=max(abs(shape.predicted_us / shape.p50_us - 1.0) for shape in shapes),
        check=CrossCheck(
            lengths=check_shape(measured, reference),
            runs=len(pairs),
            ours_us=median(ours for ours, _ in pairs),
            theirs_us=median(theirs for _, theirs in pairs),
            ratio=median(ours / theirs for ours, theirs in pairs),
            answers_differ=max(one.answers_differ for one in kept.passes),
        ),
    )


def objections(name: str, check: CrossCheck, slack_us: float) -> list[str]:
    """Why a profile must not be used, from its cross-check; empty when both sides agree.

    Within `slack_us`, what a call from Python costs by itself, times are not told apart.
    """
    found = []
    apart = abs(check.ratio - 1.0) > LARGEST_DIFFERENCE
    if apart and abs(check.ours_us - check.theirs_us) > slack_us:
        found.append(
            f"{name}: {check.ours_us / 1e3:.3f} ms here, {check.theirs_us / 1e3:.3f} ms in an "
            f"independent session ({check.ratio - 1:+.1%}, accepted ±{LARGEST_DIFFERENCE:.0%})"
        )
    if not check.answers_differ <= LARGEST_ANSWER_DIFFERENCE:
        found.append(
            f"{name}: answers differ from an independent session's by {check.answers_differ:.2g}"
        )
    return found


def reference_of(variant: Variant, shapes: Sequence[tuple[int, ...]]) -> int:
    """The length that percentiles are of: the one that a worker's warm-up takes, too."""
    if variant.layout == "tensor":
        return reference_length(shapes)
    return reference_length(warm_plan(variant.warm_lengths, variant.max_tokens).shapes)


def check_shape(shapes: Sequence[tuple[int, ...]], reference: int) -> tuple[int, ...]:
    """The shape that both sides run: one sequence of the reference length if there is one."""
    return (reference,) if (reference,) in shapes else shapes[0]
