"""Variant profiles, the Pareto frontier and which variants may answer a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.errors import NotFound, Unsatisfiable
from controlplane.policy.cascade import Cascades, Evidence
from controlplane.policy.records import Request, RequestClass, Shape

# Callers choose floors and prohibitions freely, so the memory of answers is bounded.
_REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class VariantProfile:
    """Service time of one run: `s0 + s1 * tokens + s2 * squared_tokens`, in nanoseconds.

    `tokens` and `squared_tokens` are summed over every sequence of the run. `sigma` is
    the relative spread of measured over predicted, `reference_tokens` the length at
    which the percentiles were taken.
    """

    s0_ns: float
    s1_ns: float
    s2_ns: float = 0.0
    sigma: float = 0.0
    reference_tokens: int = 0
    p50_ns: float = 0.0
    p95_ns: float = 0.0
    p99_ns: float = 0.0
    samples: int = 0

    def predict(self, shape: Shape, batch: Sequence[Shape] = ()) -> int:
        """Nominal service time in ns of one run of `shape` together with `batch`."""
        tokens, squared = shape.tokens, shape.squared_tokens
        for other in batch:
            tokens += other.tokens
            squared += other.squared_tokens
        return int(self.s0_ns + self.s1_ns * tokens + self.s2_ns * squared + 0.5) or 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant as the policy sees it.

    `quality` is its measured quality (0 to 1), `max_tokens` bounds one sequence (0 when
    sequences have no length), `batchable` says whether one run may hold several requests.
    """

    name: str
    tokenizer: str
    quality: float
    profile: VariantProfile
    max_tokens: int = 0
    batchable: bool = False


def dominated(
    candidates: Sequence[Candidate], reference: Mapping[str, Shape], resolution: float = 0.0
) -> dict[str, str]:
    """Which candidates a faster one all but equals in quality.

    Maps each dominated name to the name that dominates it. From the fastest at the
    reference shape of its tokenizer to the slowest, a candidate stays when its quality is
    above the best so far by more than `resolution`, the least difference that the
    evidence can tell; of equals the earlier one stays.
    """
    costs = [c.profile.predict(reference[c.tokenizer]) for c in candidates]
    beaten: dict[str, str] = {}
    best: Candidate | None = None
    for i in sorted(range(len(candidates)), key=lambda i: (costs[i], -candidates[i].quality, i)):
        candidate = candidates[i]
        if best is not None and candidate.quality <= best.quality + resolution:
            beaten[candidate.name] = best.name
        else:
            best = candidate
    return beaten


_Key = tuple[frozenset[str], float, frozenset[str], str, bool]


@dataclass(frozen=True, slots=True)
class VariantTable:
    """The candidates of one pool, most accurate first; positions are the variant numbers.

    `deployment` identifies what the table describes, for whoever built it; `evidence` is that of
    cascades by population, "" for requests that name none, and `cascades` what follows from it.
    """

    candidates: tuple[Candidate, ...]
    numbers: Mapping[str, int]
    dominated: Mapping[str, str]
    reference: Mapping[str, Shape]
    shortest_limit: int
    resolution: float = 0.0
    deployment: Any = field(default=None, compare=False)
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    cascades: Cascades | None = field(default=None, compare=False)
    _remembered: dict[_Key, tuple[int, ...]] = field(default_factory=dict, compare=False)

    @staticmethod
    def build(
        candidates: Sequence[Candidate],
        reference_tokens: int = 0,
        deployment: object = None,
        *,
        resolution: float = 0.0,
        evidence: Mapping[str, Evidence] | None = None,
    ) -> VariantTable:
        """Order the candidates and find the frontier.

        `reference_tokens` is the sequence length at which variants are compared; 0 takes
        the length at which the profiles were measured. `resolution` is the
        difference in quality below which the slower of two variants is not worth its time.
        """
        length = reference_tokens or max(
            (c.profile.reference_tokens for c in candidates), default=0
        )
        reference = {c.tokenizer: Shape.of_lengths([length]) for c in candidates}
        ordered = tuple(
            sorted(
                candidates, key=lambda c: (-c.quality, c.profile.predict(reference[c.tokenizer]))
            )
        )
        numbers = {c.name: k for k, c in enumerate(ordered)}
        cascades = None
        if evidence:
            costs = [float(c.profile.predict(reference[c.tokenizer])) for c in ordered]
            qualities = [c.quality for c in ordered]
            cascades = Cascades(evidence, numbers, costs, qualities, resolution)
        return VariantTable(
            candidates=ordered,
            numbers=numbers,
            dominated=dominated(ordered, reference, resolution),
            reference=reference,
            shortest_limit=min((c.max_tokens for c in ordered if c.max_tokens), default=0),
            resolution=resolution,
            deployment=deployment,
            evidence=evidence or {},
            cascades=cascades,
        )

    def __len__(self) -> int:
        return len(self.candidates)

    def usual_ns(self, number: int) -> float:
        """A variant's p50 as profiled; its prediction at the reference where none was taken."""
        candidate = self.candidates[number]
        usual = candidate.profile.p50_ns
        return usual or float(candidate.profile.predict(self.reference[candidate.tokenizer]))

    def nominal_ns(self, request: Request, numbers: tuple[int, ...]) -> list[int]:
        """Uncorrected predictions of a request on these variants at its cohort's price, in ns."""
        candidates, shapes = self.candidates, request.shapes
        chosen = [candidates[number] for number in numbers]
        nominal = [c.profile.predict(shapes[c.tokenizer]) for c in chosen]
        if request.price != 1.0:
            return [int(each * request.price) for each in nominal]
        return nominal

    def eligible(self, klass: RequestClass, shapes: Mapping[str, Shape]) -> tuple[int, ...]:
        """Numbers of the variants that may answer, most accurate first, never empty.

        Dominated variants are left out, judged among those that the request allows, so a
        floor or a prohibition never leaves a request without its best remaining choice.
        Raises NotFound for an unknown pin, Unsatisfiable when nothing is left.
        """
        longest = max((s.longest_tokens for s in shapes.values()), default=0)
        if self.shortest_limit and longest > self.shortest_limit:
            return self._select(klass, shapes)
        key = (
            frozenset(shapes),
            klass.minimum_quality,
            klass.prohibited,
            klass.variant,
            klass.approximation,
        )
        found = self._remembered.get(key)
        if found is None:
            found = self._select(klass, shapes)
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = found
        return found

    def _select(self, klass: RequestClass, shapes: Mapping[str, Shape]) -> tuple[int, ...]:
        if klass.variant and klass.variant not in self.numbers:
            raise NotFound(f"no variant {klass.variant!r} here; variants: {self._names()}")
        unknown = sorted(name for name in klass.prohibited if name not in self.numbers)
        allowed = []
        reasons = []
        for candidate in self.candidates:
            reason = _obstacle(candidate, klass, shapes)
            if not reason:
                allowed.append(candidate)
            elif candidate.name == klass.variant or not klass.variant:
                # With a pin only the pinned one's obstacle tells anything.
                reasons.append(f"{candidate.name}: {reason}")
        if not allowed:
            hint = f" (prohibited but unknown: {', '.join(unknown)})" if unknown else ""
            raise Unsatisfiable("no variant may answer: " + "; ".join(reasons) + hint)
        beaten = dominated(allowed, self.reference, self.resolution)
        frontier = tuple(self.numbers[c.name] for c in allowed if c.name not in beaten)
        return frontier if klass.approximation else frontier[:1]

    def kept(
        self, klass: RequestClass, shapes: Mapping[str, Shape], before: set[str]
    ) -> tuple[int, ...]:
        """Numbers that may answer a request here, given the names that could in another table.

        What admission left of the variants stays left, as far as it still exists.
        """
        eligible = self.eligible(klass, shapes)
        kept = tuple(k for k in eligible if self.candidates[k].name in before)
        return kept or eligible

    def _names(self) -> str:
        return ", ".join(c.name for c in self.candidates)


def _obstacle(candidate: Candidate, klass: RequestClass, shapes: Mapping[str, Shape]) -> str:
    """Why a candidate may not answer, empty when it may."""
    if klass.variant and candidate.name != klass.variant:
        return f"the request is pinned to {klass.variant}"
    if candidate.name in klass.prohibited:
        return "prohibited"
    if candidate.quality < klass.minimum_quality:
        if not candidate.quality:
            return (
                f"no measured quality, so it meets no floor ({klass.minimum_quality:.4f} is asked)"
            )
        return f"quality {candidate.quality:.4f} is below the floor {klass.minimum_quality:.4f}"
    shape = shapes.get(candidate.tokenizer)
    if shape is None:
        return f"takes tokens of {candidate.tokenizer!r}, the request has {sorted(shapes)}"
    if candidate.max_tokens and shape.longest_tokens > candidate.max_tokens:
        return f"takes {candidate.max_tokens} tokens, the request has {shape.longest_tokens}"
    return ""


def mask_of(table: VariantTable, ready: frozenset[str]) -> int:
    """The ready variants of a worker as a bit mask over the table's numbers."""
    mask = 0
    for name, number in table.numbers.items():
        if name in ready:
            mask |= 1 << number
    return mask
