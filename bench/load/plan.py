"""What a load run sends and when: plain values, the same for every driver process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Protocol = Literal["native", "oip", "echo"]
Mode = Literal["open", "closed"]
Payload = Literal["text", "ids"]


@dataclass(frozen=True, slots=True)
class Workload:
    """Texts to send and, for each, the right label index (-1 when nobody knows)."""

    texts: tuple[str, ...]
    labels: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.texts or len(self.texts) != len(self.labels):
            raise ValueError(
                f"expected as many labels as texts and at least one, "
                f"got {len(self.texts)} texts and {len(self.labels)} labels"
            )


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One run against one target.

    mode "open": Poisson arrivals at `rate_per_s`, whatever the answers do. mode "closed":
    `concurrency` requests in flight, each followed by the next (to find a capacity or a
    cost at saturation). The first `warmup_s` are sent but not counted. `deadline_ms` 0
    asks without a deadline. `watch` names processes whose CPU time is read at both ends
    of the measured window. `stream` sends over one bidirectional stream. payload "ids": the
    texts are decimal token ids with spaces between them, and are sent as ids.
    """

    target: str
    model: str
    duration_s: float
    mode: Mode = "open"
    rate_per_s: float = 0.0
    concurrency: int = 1
    warmup_s: float = 1.0
    deadline_ms: float = 0.0
    seed: int = 1
    protocol: Protocol = "native"
    stream: bool = False
    payload: Payload = "text"
    variant: str = ""
    request_class: str = ""
    tenant: str = ""
    minimum_quality: float = 0.0
    drain_s: float = 10.0
    watch: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode == "open" and self.rate_per_s <= 0:
            raise ValueError(f"rate_per_s: expected more than 0, got {self.rate_per_s}")
        if self.mode == "closed" and self.concurrency < 1:
            raise ValueError(f"concurrency: expected at least 1, got {self.concurrency}")
        if self.duration_s <= 0 or self.warmup_s < 0:
            raise ValueError(
                f"expected duration_s > 0 and warmup_s >= 0, got {self.duration_s}, {self.warmup_s}"
            )


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When each request is due, in ns after the start, and which text it carries."""

    due_ns: NDArray[np.int64]
    text: NDArray[np.int64]


def poisson_arrivals(
    generator: np.random.Generator, rate_per_s: float, span_s: float, texts: int
) -> Arrivals:
    """A Poisson process over `span_s`, texts drawn uniformly with replacement.

    Splitting a rate over independent generators gives again a Poisson process of the
    whole rate, which is how several driver processes share one run.
    """
    due: list[NDArray[np.float64]] = []
    last = 0.0
    while last < span_s:
        chunk = last + np.cumsum(
            generator.exponential(1.0 / rate_per_s, max(64, int(rate_per_s * span_s * 1.1)))
        )
        due.append(chunk)
        last = float(chunk[-1])
    times = np.concatenate(due)
    times = times[times < span_s]
    return Arrivals(
        due_ns=(times * 1e9).astype(np.int64),
        text=generator.integers(0, texts, len(times)),
    )


def shard_generator(seed: int, shard: int) -> np.random.Generator:
    """The generator of one driver process; independent of every other shard's."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(shard,)))
