"""A measured profile as a report: cost against quality, the frontier, and whether 8 bits pay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.report import HostFacts, Report, make_report
from controlplane.policy.profiles import Candidate, VariantProfile, VariantTable
from worker.models.evidence import tally_of
from worker.models.manifest import Manifest, QualityEvidence, Variant
from worker.models.pace import LARGEST_LOSS, LARGEST_RATIO
from worker.models.statistics import difference_interval, paired_difference
from worker.profile import VariantProfile as MeasuredProfile
from worker.profile_file import MeasuredVariant, ProfileFile

INT8 = "-int8"
# More than this is worth a warning: CPUs that others took, and the range of the passes.
MANY_NEIGHBOURS = 0.1
LARGE_SPREAD = 0.05


@dataclass(frozen=True, slots=True)
class Int8Verdict:
    """An 8-bit variant against its fp32 twin.

    `time` is the ratio of service times (geometric mean over single lengths), `difference`
    that of accuracies with its 95 % interval on `n` items; `paired` when both answers to each
    item are known.
    """

    variant: str
    twin: str
    time: float
    population: str
    n: int
    difference: float
    low: float
    high: float
    paired: bool

    @property
    def verdict(self) -> str:
        """Whether it pays, in words."""
        if self.time > LARGEST_RATIO:
            return "does not pay: hardly faster"
        if self.difference < -LARGEST_LOSS:
            return "does not pay: loses accuracy"
        if self.low < -LARGEST_LOSS:
            return "faster; a loss of accuracy is not ruled out"
        return "pays"


def policy_profile(measured: MeasuredProfile) -> VariantProfile:
    """A worker's profile in the control plane's terms, as it would read it from the wire."""
    return VariantProfile(
        s0_ns=measured.s0_us * 1e3,
        s1_ns=measured.s1_us_per_token * 1e3,
        s2_ns=measured.s2_us_per_token2 * 1e3,
        sigma=measured.sigma,
        reference_tokens=measured.reference_tokens,
        p50_ns=measured.p50_us * 1e3,
        p95_ns=measured.p95_us * 1e3,
        p99_ns=measured.p99_us * 1e3,
        samples=measured.samples,
    )


def candidates_of(
    manifest: Manifest, measured: Mapping[str, MeasuredVariant]
) -> tuple[Candidate, ...]:
    """The measured variants as the policy sees them."""
    return tuple(
        Candidate(
            name=variant.name,
            tokenizer=variant.tokenizer,
            quality=variant.quality[0].value if variant.quality else 0.0,
            profile=policy_profile(measured[variant.name].profile),
            max_tokens=variant.max_tokens,
            batchable=variant.layout == "ragged",
        )
        for variant in manifest.variants
        if variant.name in measured
    )


def reported_candidates(report: Report) -> tuple[Candidate, ...]:
    """The variants of a profile's report as the policy sees them.

    Raises ValueError for a report of something else.
    """
    points = [point for point in report.points if point.get("kind") == "variant"]
    if report.bench != "profile" or not points:
        raise ValueError(f"expected the report of a profile, got one of {report.bench!r}")
    return tuple(
        Candidate(
            name=point["variant"],
            tokenizer=point["tokenizer"],
            quality=point["quality"][0]["value"] if point["quality"] else 0.0,
            profile=policy_profile(MeasuredProfile(**point["profile"])),
            max_tokens=point["max_tokens"],
            batchable=point["batchable"],
        )
        for point in points
    )


def profile_report(
    file: ProfileFile,
    manifest: Manifest,
    folder: Path,
    resolution: float,
    host: HostFacts | None = None,
) -> Report:
    """The report of a profile: a point a variant, most accurate first, and one an 8-bit twin.

    `resolution` is the control plane's `quality_resolution`; the frontier is its own.
    """
    table = VariantTable.build(candidates_of(manifest, file.variants), resolution=resolution)
    points = [
        _point(manifest, file.variants[c.name], c.name, table.dominated) for c in table.candidates
    ]
    verdicts = list(int8_verdicts(manifest, file.variants, folder))
    points += [{"kind": "int8", **asdict(v), "verdict": v.verdict} for v in verdicts]
    return make_report(
        "profile",
        host=host,
        settings={
            "model": file.model,
            "machine": asdict(file.machine),
            "digest": manifest.digest,
            "quality_resolution": resolution,
            "warnings": warnings_of(file.variants),
            "measured": {"commit": file.commit, "command": file.command, "at": file.finished},
        },
        points=points,
        summary=_summary(points, verdicts, file),
    )


def int8_verdicts(
    manifest: Manifest, measured: Mapping[str, MeasuredVariant], folder: Path
) -> Iterator[Int8Verdict]:
    """Each 8-bit variant whose fp32 twin was measured too, on the first population of both."""
    for variant in manifest.variants:
        twin = manifest.variant(variant.name.removesuffix(INT8))
        both = variant.name in measured and twin is not None and twin.name in measured
        if not variant.name.endswith(INT8) or twin is None or not both:
            continue
        if not variant.quality or not twin.quality:
            continue
        own, other = variant.quality[0], twin.evidence(variant.quality[0].population)
        if other is None:
            continue
        difference, low, high, paired = _difference(folder, variant, own, twin, other)
        yield Int8Verdict(
            variant=variant.name,
            twin=twin.name,
            time=_time_ratio(measured[variant.name], measured[twin.name]),
            population=own.population,
            n=own.n,
            difference=difference,
            low=low,
            high=high,
            paired=paired,
        )


def warnings_of(measured: Mapping[str, MeasuredVariant]) -> list[str]:
    """What makes the measurements doubtful, in words; empty when nothing does."""
    found = []
    neighbours = fmean(one.neighbours for one in measured.values())
    if neighbours > MANY_NEIGHBOURS:
        found.append(
            f"other processes took {neighbours:.2f} CPUs meanwhile: times are CPU times, but "
            "caches and memory were shared; measure again on a quiet machine"
        )
    unsteady = [name for name, one in measured.items() if one.spread > LARGE_SPREAD]
    if unsteady:
        worst = max(measured[name].spread for name in unsteady)
        found.append(
            f"passes differ by more than {LARGE_SPREAD:.0%} (up to {worst:.0%}) for "
            + ", ".join(unsteady)
        )
    return found


def _difference(
    folder: Path, variant: Variant, own: QualityEvidence, twin: Variant, other: QualityEvidence
) -> tuple[float, float, float, bool]:
    mine = tally_of(folder, variant.name, own.population)
    theirs = tally_of(folder, twin.name, own.population)
    if mine is not None and theirs is not None:
        whole = mine.done == theirs.done == own.n == other.n and mine.source == theirs.source
        if whole:
            answers = [[c == "1" for c in tally.right] for tally in (mine, theirs)]
            return (*paired_difference(answers[0], answers[1]), True)
    return (own.value - other.value, *difference_interval(own, other), False)


def _time_ratio(one: MeasuredVariant, other: MeasuredVariant) -> float:
    base = {shape.lengths: shape.p50_us for shape in other.shapes}
    ratios = [
        shape.p50_us / base[shape.lengths]
        for shape in one.shapes
        if len(shape.lengths) == 1 and shape.lengths in base
    ]
    return math.exp(fmean(math.log(ratio) for ratio in ratios)) if ratios else float("nan")


def _point(
    manifest: Manifest, measured: MeasuredVariant, name: str, dominated: Mapping[str, str]
) -> dict[str, Any]:
    variant = manifest.variant(name)
    assert variant is not None
    return {
        "kind": "variant",
        "variant": name,
        "precision": variant.precision,
        "tokenizer": variant.tokenizer,
        "max_tokens": variant.max_tokens,
        "batchable": variant.layout == "ragged",
        "quality": [asdict(item) for item in variant.quality],
        "dominated_by": dominated.get(name, ""),
        "calibrations": [asdict(item) for item in variant.calibrations],
        # Cascades are between variants that are routed to.
        "escalations": [
            asdict(item)
            for item in variant.escalations
            if item.gains and name not in dominated and item.to not in dominated
        ],
        **asdict(measured),
    }


def _summary(
    points: Sequence[Mapping[str, Any]], verdicts: Sequence[Int8Verdict], file: ProfileFile
) -> dict[str, float]:
    measured = file.variants.values()
    summary = {
        "largest_spread": max(one.spread for one in measured),
        "largest_fit_error": max(one.fit_error for one in measured),
        "largest_check_difference": max(abs(one.check.ratio - 1.0) for one in measured),
        "neighbours": fmean(one.neighbours for one in measured),
        "routed": float(sum(point.get("dominated_by") == "" for point in points)),
    }
    for name, one in file.variants.items():
        summary[f"{name}.p50_ms"] = one.profile.p50_us / 1e3
        summary[f"{name}.s0_ms"] = one.profile.s0_us / 1e3
        summary[f"{name}.us_per_token"] = one.profile.s1_us_per_token
    for verdict in verdicts:
        summary[f"{verdict.variant}.time_of_fp32"] = verdict.time
        summary[f"{verdict.variant}.accuracy_gain"] = verdict.difference
    return summary
