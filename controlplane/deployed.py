"""What workers say of themselves and of their models, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from controlplane.errors import NotFound
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
    """One variant of a model as its workers describe it."""

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
