"""What a load run sends and when: plain values, the same for every driver process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Protocol = Literal["native", "oip", "echo"]
Mode = Literal["open", "closed"]
Payload = Literal["text", "ids"]
Process = Literal["poisson", "mmpp", "flash", "trace"]


@dataclass(frozen=True, slots=True)
class Workload:
    """Texts to send and, for each, the right label index (-1 when nobody knows).

    `tokens` are the texts' lengths by the model's default tokenizer, special tokens included;
    empty when they are not known. `qualities` are the measured qualities of the model's
    variants by name, as far as they are known.
    """

    texts: tuple[str, ...]
    labels: tuple[int, ...]
    tokens: tuple[int, ...] = ()
    qualities: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.texts or len(self.texts) != len(self.labels):
            raise ValueError(
                f"expected as many labels as texts and at least one, "
                f"got {len(self.texts)} texts and {len(self.labels)} labels"
            )
        if self.tokens and len(self.tokens) != len(self.texts):
            raise ValueError(f"{len(self.texts)} texts have {len(self.tokens)} lengths")


@dataclass(frozen=True, slots=True)
class Tenant:
    """One of those who send: their share of the requests is `weight` over all weights."""

    name: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not (self.weight > 0 and math.isfinite(self.weight)):
            raise ValueError(f"tenant {self.name}: expected a weight above 0, got {self.weight}")


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One run against one target.

    mode "open": arrivals of the process at `rate_per_s` (or as the `trace` file says),
    whatever the answers do. mode "closed": `concurrency` requests in flight, each followed
    by the next (to find a capacity or a cost at saturation). The first `warmup_s` are sent
    but not counted. `deadline_ms` 0 asks without a deadline (under a trace: with the
    recorded ones); each request gets it times one of `deadline_factors`, each as likely, and
    belongs to one of `tenants`. `watch` names processes whose CPU time is read at both ends
    of the measured window. `stream` sends over one bidirectional stream. payload "ids": the
    texts are decimal token ids with spaces between them, and are sent as ids. Of the calls a
    `trace_share` (0 to 1) are traced by the driver as their caller; its spans go into the folder
    `trace_directory`, empty for nowhere.
    """

    target: str
    model: str
    duration_s: float
    mode: Mode = "open"
    rate_per_s: float = 0.0
    arrivals: Process = "poisson"
    trace: str = ""
    concurrency: int = 1
    warmup_s: float = 1.0
    deadline_ms: float = 0.0
    deadline_factors: tuple[float, ...] = (1.0,)
    seed: int = 1
    protocol: Protocol = "native"
    stream: bool = False
    payload: Payload = "text"
    variant: str = ""
    request_class: str = ""
    tenants: tuple[Tenant, ...] = ()
    minimum_quality: float = 0.0
    drain_s: float = 10.0
    watch: Mapping[str, int] = field(default_factory=dict)
    trace_share: float = 0.0
    trace_directory: str = ""

    def __post_init__(self) -> None:
        numbers = (self.rate_per_s, self.duration_s, self.warmup_s, self.deadline_ms)
        if not all(map(math.isfinite, numbers)) or self.deadline_ms < 0:
            raise ValueError(f"expected numbers of at least 0 for rate and times, got {numbers}")
        if self.mode == "open" and self.arrivals != "trace" and self.rate_per_s <= 0:
            raise ValueError(f"rate_per_s: expected more than 0, got {self.rate_per_s}")
        if (self.arrivals == "trace") != bool(self.trace):
            raise ValueError("arrivals 'trace' and a trace file belong together")
        if not 0.0 <= self.trace_share <= 1.0:
            raise ValueError(f"trace_share: expected 0 to 1, got {self.trace_share}")
        wrong = [f for f in self.deadline_factors if not (f > 0 and math.isfinite(f))]
        if wrong or not self.deadline_factors:
            raise ValueError(f"deadline_factors: expected numbers above 0, got {wrong}")
        if self.mode == "closed" and self.concurrency < 1:
            raise ValueError(f"concurrency: expected at least 1, got {self.concurrency}")
        if self.duration_s <= 0 or self.warmup_s < 0:
            raise ValueError(
                f"expected duration_s > 0 and warmup_s >= 0, got {self.duration_s}, {self.warmup_s}"
            )
