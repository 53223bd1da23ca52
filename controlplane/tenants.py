"""What tenants are promised and bound by: the section `tenants` of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_MOST_TENANTS = 256
_MOST_CLASSES = 16
_NAME = 64


@dataclass(frozen=True, slots=True)
class TenantConfig:
    """One tenant; 0 is no bound unless said otherwise.

    `cpu_ms_per_s` is reserved in the encoder lane, `classes` parts of it by request class;
    `borrow_cpu_ms_per_s` bounds what may be used beyond it (-1: whatever is free).
    `kv_block_s_per_s` is reserved in the decode lane: that many KV blocks held on average.
    `borrow_kv_block_s_per_s` bounds what may be held beyond it (-1: whatever others leave).
    `max_queued` and `max_queued_ms` bound waiting requests and their predicted work;
    `max_generations` those open at a time, `max_context_tokens` prompt and answer together,
    `max_output_tokens` the answer. `models` are those it may use (empty: all), `privacy` is the
    privacy class of requests that name none.
    """

    cpu_ms_per_s: int = 0
    borrow_cpu_ms_per_s: int = -1
    classes: Mapping[str, int] = field(default_factory=dict)
    kv_block_s_per_s: int = 0
    borrow_kv_block_s_per_s: int = -1
    max_queued: int = 0
    max_queued_ms: int = 0
    max_generations: int = 0
    max_context_tokens: int = 0
    max_output_tokens: int = 0
    models: tuple[str, ...] = ()
    privacy: str = ""

    def __post_init__(self) -> None:
        least = {
            "cpu_ms_per_s": (self.cpu_ms_per_s, 0),
            "borrow_cpu_ms_per_s": (self.borrow_cpu_ms_per_s, -1),
            "kv_block_s_per_s": (self.kv_block_s_per_s, 0),
            "borrow_kv_block_s_per_s": (self.borrow_kv_block_s_per_s, -1),
            "max_queued": (self.max_queued, 0),
            "max_queued_ms": (self.max_queued_ms, 0),
            "max_generations": (self.max_generations, 0),
            "max_context_tokens": (self.max_context_tokens, 0),
            "max_output_tokens": (self.max_output_tokens, 0),
        }
        for name, (value, bound) in least.items():
            if value < bound:
                raise ValueError(f"{name} must be at least {bound}, got {value}")
        if len(self.classes) > _MOST_CLASSES:
            raise ValueError(f"classes: {len(self.classes)} of one tenant; at most {_MOST_CLASSES}")
        for name, share in self.classes.items():
            if share < 1:
                raise ValueError(f"classes: {name!r} must reserve at least 1, got {share}")
        total = sum(self.classes.values())
        if total > self.cpu_ms_per_s:
            raise ValueError(
                f"classes reserve {total} CPU-ms a second, the tenant has {self.cpu_ms_per_s}"
            )


@dataclass(frozen=True, slots=True)
class PrivacyConfig:
    """What requests of a privacy class may share with others.

    `batch` and `prefix` are "all" (with everybody; prefixes never leave a tenant), "class"
    (only with the same tenant's requests of the same privacy class) or "none".
    """

    batch: str = "class"
    prefix: str = "class"

    def __post_init__(self) -> None:
        for name, value in (("batch", self.batch), ("prefix", self.prefix)):
            if value not in ("all", "class", "none"):
                raise ValueError(f"{name} is {value!r}; accepted: all, class, none")


@dataclass(frozen=True, slots=True)
class TenantsConfig:
    """Every tenant by name; without `named` there are no tenants and nothing of this holds.

    `others` holds for all names that are not in `named`, together, as if they were one tenant.
    `bound_ms` is how far a waiting tenant may be served ahead of another for the sake of an
    earlier deadline, in ms of its reservation.
    """

    named: Mapping[str, TenantConfig] = field(default_factory=dict)
    others: TenantConfig = field(default_factory=TenantConfig)
    privacy: Mapping[str, PrivacyConfig] = field(default_factory=dict)
    bound_ms: float = 5.0

    def __post_init__(self) -> None:
        if len(self.named) > _MOST_TENANTS:
            raise ValueError(f"{len(self.named)} tenants are named; at most {_MOST_TENANTS}")
        if not 0.0 <= self.bound_ms <= 60_000.0:
            raise ValueError(f"bound_ms must be in [0, 60000], got {self.bound_ms}")
        for name in self.named:
            if not 0 < len(name) <= _NAME:
                raise ValueError(f"a tenant's name has 1 to {_NAME} characters, got {name!r}")
        for name, tenant in (*self.named.items(), ("others", self.others)):
            if tenant.privacy and tenant.privacy not in self.privacy:
                known = ", ".join(sorted(self.privacy)) or "none"
                raise ValueError(
                    f"{name}: unknown privacy class {tenant.privacy!r}; configured: {known}"
                )

    def __bool__(self) -> bool:
        return bool(self.named)
