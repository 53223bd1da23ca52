"""What a driver saw of generations, and which of them met their targets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.generation.plan import GenerationPlan

OK = 0
CUT = -1


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """One generation; times in ns after the run's start, 0 for what did not happen.

    `code` is the gRPC status, CUT when the driver stopped waiting. `gap_ns` is the longest time
    between two messages with tokens.
    """

    due_ns: int
    wanted_tokens: int
    code: int
    first_ns: int = 0
    last_ns: int = 0
    done_ns: int = 0
    tokens: int = 0
    gap_ns: int = 0
    cached_tokens: int = 0
    preemptions: int = 0

    @property
    def first_token_ms(self) -> float:
        """From when it was due to its first token."""
        return (self.first_ns - self.due_ns) / 1e6

    @property
    def token_ms(self) -> float:
        """Mean time of the tokens after the first."""
        return (self.last_ns - self.first_ns) / 1e6 / max(1, self.tokens - 1)

    @property
    def complete(self) -> bool:
        """Whether every token came."""
        return self.code == OK and self.tokens >= self.wanted_tokens

    def attained(self, plan: GenerationPlan) -> bool:
        """Whether it is complete and met both targets."""
        return (
            self.complete
            and self.first_token_ms <= plan.first_token_ms
            and self.token_ms <= plan.token_ms
        )


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """Figures of one run over what was offered inside the measured window.

    `first_token_ms` and `token_ms` are p50, p95 and p99 of those that got that far; None without
    any. `codes` counts gRPC statuses.
    """

    offered: int
    slo_attainment: float
    complete: float
    completed_per_s: float
    tokens_per_s: float
    first_token_ms: tuple[float, float, float] | None
    token_ms: tuple[float, float, float] | None
    largest_gap_ms: float
    preemptions: int
    codes: Mapping[int, int]

    def as_point(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {**asdict(self), "codes": {str(code): n for code, n in self.codes.items()}}


def reduce_generations(
    plan: GenerationPlan, records: Sequence[GenerationRecord]
) -> GenerationResult:
    """The figures of a run; a closed loop counts what ended inside the window."""
    begin, end = int(plan.warmup_s * 1e9), int((plan.warmup_s + plan.seconds) * 1e9)
    open_loop = plan.rate_per_s > 0
    inside = [r for r in records if begin <= (r.due_ns if open_loop else r.done_ns) < end]
    offered = len(inside)
    complete = [r for r in inside if r.complete]
    started = [r for r in inside if r.first_ns]
    codes: dict[int, int] = {}
    for record in inside:
        codes[record.code] = codes.get(record.code, 0) + 1
    return GenerationResult(
        offered=offered,
        slo_attainment=sum(r.attained(plan) for r in inside) / max(1, offered),
        complete=len(complete) / max(1, offered),
        completed_per_s=len(complete) / plan.seconds,
        tokens_per_s=sum(r.tokens for r in complete) / plan.seconds,
        first_token_ms=_percentiles([r.first_token_ms for r in started]),
        token_ms=_percentiles([r.token_ms for r in complete]),
        largest_gap_ms=max((r.gap_ns for r in complete), default=0) / 1e6,
        preemptions=sum(r.preemptions for r in inside),
        codes=codes,
    )


def _percentiles(values: Sequence[float]) -> tuple[float, float, float] | None:
    if not values:
        return None
    p50, p95, p99 = np.percentile(np.array(values), (50, 95, 99)).tolist()
    return p50, p95, p99


def save_generations(path: Path, records: Sequence[GenerationRecord]) -> None:
    """Writes one JSON file."""
    path.write_text(json.dumps([asdict(record) for record in records]))


def load_generations(path: Path) -> list[GenerationRecord]:
    """Reads what `save_generations` wrote."""
    return [GenerationRecord(**row) for row in json.loads(path.read_bytes())]
