"""What workers say of themselves and of their models, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from controlplane.errors import NotFound
from controlplane.policy.cascade import Calibration, Escalation
from controlplane.policy.decode import DecodeLoad, DecodeProfile
from controlplane.policy.profiles import VariantProfile


class ModelState(Enum):
    """Readiness of a model on a worker, or merged over all of them."""

    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    FAILED = "failed"
    UNLOADING = "unloading"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, numpy dtype name ("string" for strings) and shape; -1 is a free dimension."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QualityEvidence:
    """A measured quality: `metric` was `value` on `n` items of `population`, with its interval."""

    population: str
    metric: str
    value: float
    n: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """A tokenizer by the hash of its document."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class VariantInfo:
    """One variant of a model as its workers describe it.

    `calibrations` and `escalations` are what cascades rest on, each with its population.
    """

    name: str
    layout: str
    precision: str
    tokenizer: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    quality: tuple[QualityEvidence, ...] = ()
    profile: VariantProfile | None = None
    max_tokens: int = 0
    ready: bool = False
    resident_bytes: int = 0
    decode: DecodeProfile | None = None
    calibrations: tuple[tuple[str, Calibration], ...] = ()
    escalations: tuple[tuple[str, Escalation], ...] = ()

    @property
    def serves(self) -> bool:
        """True when it is ready and its cost is known."""
        return self.ready and (self.profile is not None or self.decode is not None)

    @property
    def quality_value(self) -> float:
        """Quality on the first population of the evidence; 0 without evidence."""
        return self.quality[0].value if self.quality else 0.0


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """What prompts of a model are made with; see `orchid.v1.GenerationSettings`.

    `context` is the most tokens of a sequence, prompt and answer together.
    """

    chat_template: str
    end_tokens: tuple[int, ...]
    begin_token: int | None
    vocabulary: int
    context: int


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model as one worker serves it, or as all accepted workers together do."""

    name: str
    version: str
    task: str
    labels: tuple[str, ...]
    manifest_digest: str
    default_tokenizer: str
    primary_output: str
    tokenizers: tuple[TokenizerInfo, ...]
    variants: tuple[VariantInfo, ...]
    state: ModelState
    progress: float = 0.0
    failure: str = ""
    generation: GenerationSettings | None = None

    @property
    def ready(self) -> bool:
        """True when at least one variant can answer now."""
        return self.state is ModelState.READY and any(v.ready for v in self.variants)

    @property
    def generates(self) -> bool:
        """True for models that decode workers serve, by Generate."""
        return self.generation is not None

    def has_evidence(self, name: str) -> bool:
        """Whether the quality of the variant called `name` was measured."""
        return any(variant.name == name and variant.quality for variant in self.variants)

    def variant(self, name: str) -> VariantInfo:
        """The variant called `name`; NotFound names the ones that exist."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        known = ", ".join(v.name for v in self.variants)
        raise NotFound(f"model {self.name!r} has no variant {name!r}; it has: {known}")


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """What a worker says of itself when it registers; `decodes` is its class."""

    id: str
    address: str
    threads: int
    cpu_model: str
    simd: str
    engine_version: str = ""
    process_id: int = 0
    decodes: bool = False

    @property
    def machine_class(self) -> str:
        """Workers of one class share profiles; others are not mixed."""
        return f"{self.cpu_model}/{self.simd}/{self.threads}"


class MemoryLine(NamedTuple):
    """Memory of one owner in a worker, in bytes; `most` is what it may become, 0 unknown."""

    lifetime: str
    owner: str
    size: int
    most: int = 0


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """A worker's memory ledger as it last told it; see `orchid.v1.MemoryLedger`."""

    lines: tuple[MemoryLine, ...]
    accounted: int
    measured: int
    available: int
    limited_by: str
    budget: int = 0


class WorkerLoad(NamedTuple):
    """The last load report of a worker."""

    queued_items: int = 0
    running_items: int = 0
    process_cpu_percent: float = 0.0
    host_cpu_percent: float = 0.0
    resident_bytes: int = 0
    completed_items: int = 0
    draining: bool = False
    run_cpu_ns: int = 0
    expired_items_executed: int = 0
    throttled_periods: int = 0
    decode: tuple[DecodeLoad, ...] = ()
    process_cpu_ns: int = 0


@dataclass(slots=True)
class Tally:
    """What a worker has spent since it registered, as it says, and what of that was charged.

    `run_cpu_ns` is CPU time of its runs, `process_cpu_ns` that of its whole process,
    `live_token_ms` the integral of the tokens in its arenas over time. Callers were charged
    `charged_cpu_ns` of the first and `charged_token_ms` of the last; the rest belongs to nobody:
    answers that callers did not wait for, results that came when their run was given up.
    """

    run_cpu_ns: int = 0
    process_cpu_ns: int = 0
    live_token_ms: int = 0
    charged_cpu_ns: int = 0
    charged_token_ms: int = 0
    _reported: bool = False

    def report(self, before: WorkerLoad, now: WorkerLoad) -> None:
        """The worker's totals are `now`; the first report is where the tally begins."""
        if self._reported:
            self.run_cpu_ns += max(0, now.run_cpu_ns - before.run_cpu_ns)
            self.process_cpu_ns += max(0, now.process_cpu_ns - before.process_cpu_ns)
            if now.decode:
                # A model that is let go takes its total with it.
                self.live_token_ms += max(0, _live_token_ms(now) - _live_token_ms(before))
        self._reported = True

    def charge(self, cpu_ns: int, live_token_ms: int = 0) -> None:
        """Somebody was charged this."""
        self.charged_cpu_ns += cpu_ns
        self.charged_token_ms += live_token_ms


def _live_token_ms(load: WorkerLoad) -> int:
    return sum([each.live_token_ms for each in load.decode])
