"""Configuration of the control plane: frozen values, checked once when they are made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from controlplane.tenants import TenantsConfig
from protos.audit import AuditConfig
from protos.exposure import check_listener, host_port_fault
from protos.tls import TlsConfig
from protos.tracing.endpoint import endpoint_fault

PolicyName = Literal[
    "price",
    "orchid-cascade",
    "orchid",
    "accurate",
    "cheap",
    "early",
    "cascade-fixed",
    "published-adaptive",
    "published-accurate",
]


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Bounds of each pool's queue; a request that would break one is refused.

    `max_items` is exact. `max_predicted_work_ms` bounds the time the live workers
    need for everything queued, each request on its fastest eligible variant.
    """

    max_items: int = 10_000
    max_predicted_work_ms: int = 60_000

    def __post_init__(self) -> None:
        if self.max_items < 1:
            raise ValueError(f"queue.max_items must be at least 1, got {self.max_items}")
        if self.max_predicted_work_ms < 1:
            raise ValueError(
                f"queue.max_predicted_work_ms must be at least 1, got {self.max_predicted_work_ms}"
            )


@dataclass(frozen=True, slots=True)
class ClassConfig:
    """What holds for every request that names this class, on top of what it asks itself.

    `minimum_quality` is a floor on the measured quality (0 to 1) of the answering
    variant, `prohibited` lists variants that never answer, `deadline_ms` is the
    deadline of requests that bring none, `generation_deadline_ms` that of generations;
    `first_token_target_ms` and `token_target_ms` are the targets of generations that name
    none. 0 leaves the general default. `deferrable` requests are kept out first under overload.
    Answers of generations may be cut to `overload_output_tokens` then (0: they may not), which
    leaves the measured quality `overload_output_quality` (0 to 1): below a floor they are not cut.
    Without `approximation` only the most accurate variant that may answer does, and no cascade.
    `population` names what the requests are like: cascades rest on evidence measured on that, and
    by default on what the model was measured on first.
    """

    minimum_quality: float = 0.0
    prohibited: tuple[str, ...] = ()
    deadline_ms: int = 0
    generation_deadline_ms: int = 0
    first_token_target_ms: int = 0
    token_target_ms: int = 0
    deferrable: bool = False
    overload_output_tokens: int = 0
    overload_output_quality: float = 0.0
    approximation: bool = True
    population: str = ""

    def __post_init__(self) -> None:
        if not 0.0 <= self.minimum_quality <= 1.0:
            raise ValueError(f"minimum_quality must be in [0, 1], got {self.minimum_quality}")
        if not 0.0 <= self.overload_output_quality <= 1.0:
            raise ValueError(
                f"overload_output_quality must be in [0, 1], got {self.overload_output_quality}"
            )
        if self.overload_output_tokens and not self.overload_output_quality:
            raise ValueError(
                "overload_output_tokens needs overload_output_quality, the measured quality of "
                "answers that are cut to it"
            )
        times = {
            "deadline_ms": self.deadline_ms,
            "generation_deadline_ms": self.generation_deadline_ms,
            "first_token_target_ms": self.first_token_target_ms,
            "token_target_ms": self.token_target_ms,
            "overload_output_tokens": self.overload_output_tokens,
        }
        for name, value in times.items():
            if value < 0:
                raise ValueError(f"{name} must not be negative, got {value}")


_NO_CLASS = ClassConfig()


@dataclass(frozen=True, slots=True)
class GenerationTimes:
    """Deadline and targets of a generation in ms, each above 0."""

    deadline_ms: int
    first_token_ms: int
    token_ms: int


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    """Where spans go and which requests get some.

    `otlp_endpoint` is a collector's `host:port`, with `https://` before it for TLS; `directory`
    is where spans are kept as files, of `directory_mib` at most for this process; without both
    nothing is recorded. Requests that arrive with a sampled trace context are, and those
    without a context with probability `sample_ratio`, at most `traces_per_s` a second of each.
    Of the others, those that are late, refused, failed or took `slow_ms` (generations: to their
    first token) are kept, `slow_per_s` a second at most.
    """

    otlp_endpoint: str = ""
    directory: str = ""
    directory_mib: int = 64
    sample_ratio: float = 0.0
    traces_per_s: float = 100.0
    slow_ms: int = 1000
    slow_per_s: float = 1.0
    service_name: str = "orchid-controlplane"

    def __post_init__(self) -> None:
        if not 0.0 <= self.sample_ratio <= 1.0:
            raise ValueError(f"telemetry.sample_ratio must be in [0, 1], got {self.sample_ratio}")
        rates = {"traces_per_s": self.traces_per_s, "slow_per_s": self.slow_per_s}
        for name, rate in rates.items():
            if not 0.0 <= rate < math.inf:
                raise ValueError(f"telemetry.{name} must be finite, 0 or more, got {rate}")
        for name, value in (("slow_ms", self.slow_ms), ("directory_mib", self.directory_mib)):
            if value < 1:
                raise ValueError(f"telemetry.{name} must be at least 1, got {value}")
        fault = endpoint_fault(self.otlp_endpoint)
        if fault:
            raise ValueError(f"telemetry.otlp_endpoint {fault}")


@dataclass(frozen=True, slots=True)
class RecordsConfig:
    """Where the records of requests are kept: what each was estimated to need, and what it took.

    Without a `file` none are. It is bounded by `rows` records and by `mib`; the oldest give way.
    `share` of the requests are recorded, each for as many as it stands for.
    """

    file: str = ""
    rows: int = 1_000_000
    mib: int = 256
    share: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("rows", self.rows), ("mib", self.mib)):
            if value < 1:
                raise ValueError(f"records.{name} must be at least 1, got {value}")
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"records.share must be above 0 and at most 1, got {self.share}")


@dataclass(frozen=True, slots=True)
class ControlPlaneConfig:
    """Everything the control plane can be told.

    `http_listen` is where HTTP is served, `metrics_listen` where Prometheus finds metrics,
    `status_listen` where the status page is, all empty for nowhere. `health_listen` is a port that
    answers grpc health and nothing else, in plain text whatever `tls` says, for probes.
    `metrics_push_ms` above 0 pushes metrics to `telemetry.otlp_endpoint` that often.
    `reserve_fraction` is the share of a deadline that waiting work may take before
    upgrades stop, at moderate load (it is larger with much room and smaller near
    capacity); `confidence_z` the standard deviations kept free at dispatch (1.645
    is P(on time) >= 0.95); `prefetch` the most batches a worker may hold besides the
    running one; `max_batch` the most requests in one run. Requests that come fast on one stream
    wait up to `stream_gather_ms` for those behind them. A variant whose measured quality is
    within `quality_resolution` of a faster one's is not routed to. `default_deadline_ms` is for
    requests that bring no deadline; where it is 0 too, `deadline_cap_ms` holds.
    `response_reserve_ms` of every deadline are left to the answer's way to its caller.
    Generations that bring no deadline have `default_generation_deadline_ms`; their targets
    are the time to the first token and between tokens, and `max_generations` is how many
    may be open. `insecure` allows plain text to and from other machines.
    `identities` is the file of who may call, empty lets everybody. `max_concurrent_streams` are the
    calls of one gRPC connection, `max_metadata_bytes` what their headers hold; an HTTP connection
    must send each head within `http_head_timeout_ms`.
    """

    listen: str = "127.0.0.1:8900"
    http_listen: str = ""
    metrics_listen: str = ""
    metrics_push_ms: int = 0
    status_listen: str = ""
    health_listen: str = ""
    policy: PolicyName = "orchid-cascade"
    queue: QueueConfig = field(default_factory=QueueConfig)
    reserve_fraction: float = 0.35
    response_reserve_ms: float = 1.5
    confidence_z: float = 1.645
    prefetch: int = 1
    max_batch: int = 16
    stream_gather_ms: int = 3
    quality_resolution: float = 0.002
    default_deadline_ms: int = 0
    deadline_cap_ms: int = 10_000
    default_generation_deadline_ms: int = 120_000
    default_first_token_target_ms: int = 500
    default_token_target_ms: int = 50
    max_generations: int = 1024
    preprocess_threads: int = 1
    preprocess_queue: int = 256
    report_interval_ms: int = 50
    max_message_bytes: int = 64 * 1024 * 1024
    max_metadata_bytes: int = 16 * 1024
    max_concurrent_streams: int = 4096
    http_max_connections: int = 1024
    http_head_timeout_ms: int = 10_000
    insecure: bool = False
    tls: TlsConfig = field(default_factory=TlsConfig)
    identities: str = ""
    audit: AuditConfig = field(default_factory=AuditConfig)
    classes: Mapping[str, ClassConfig] = field(default_factory=dict)
    tenants: TenantsConfig = field(default_factory=TenantsConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    records: RecordsConfig = field(default_factory=RecordsConfig)
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        if not 0.0 < self.reserve_fraction <= 1.0:
            raise ValueError(f"reserve_fraction must be in (0, 1], got {self.reserve_fraction}")
        if not 0.0 <= self.response_reserve_ms < math.inf:
            raise ValueError(
                f"response_reserve_ms must be finite, 0 or more, got {self.response_reserve_ms}"
            )
        if not 0.0 <= self.confidence_z < math.inf:
            raise ValueError(f"confidence_z must be finite, 0 or more, got {self.confidence_z}")
        port = self.listen.rpartition(":")[2]
        if not self.listen.startswith("unix:") and port.isdigit() and int(port) > 65535:
            # The transport would take the port modulo 65536.
            raise ValueError(f"listen: a port is at most 65535, got {self.listen!r}")
        for name in ("http_listen", "metrics_listen", "status_listen", "health_listen"):
            _check_host_port(name, getattr(self, name))
        if self.metrics_push_ms and not self.telemetry.otlp_endpoint:
            raise ValueError("metrics_push_ms needs telemetry.otlp_endpoint, where to push them")
        for name in ("listen", "http_listen", "metrics_listen", "status_listen"):
            address = getattr(self, name)
            check_listener(name, address, encrypted=self.tls.serves, insecure=self.insecure)
        if not 0.0 <= self.quality_resolution < 1.0:
            raise ValueError(f"quality_resolution must be in [0, 1), got {self.quality_resolution}")
        at_least = {
            "prefetch": (self.prefetch, 0),
            "max_batch": (self.max_batch, 1),
            "stream_gather_ms": (self.stream_gather_ms, 0),
            "default_deadline_ms": (self.default_deadline_ms, 0),
            "deadline_cap_ms": (self.deadline_cap_ms, 1),
            "default_generation_deadline_ms": (self.default_generation_deadline_ms, 1),
            "default_first_token_target_ms": (self.default_first_token_target_ms, 1),
            "default_token_target_ms": (self.default_token_target_ms, 1),
            "max_generations": (self.max_generations, 1),
            "metrics_push_ms": (self.metrics_push_ms, 0),
            "preprocess_threads": (self.preprocess_threads, 1),
            "preprocess_queue": (self.preprocess_queue, 0),
            "report_interval_ms": (self.report_interval_ms, 1),
            "max_message_bytes": (self.max_message_bytes, 1024),
            "max_metadata_bytes": (self.max_metadata_bytes, 4096),
            "max_concurrent_streams": (self.max_concurrent_streams, 1),
            "http_max_connections": (self.http_max_connections, 1),
            "http_head_timeout_ms": (self.http_head_timeout_ms, 1),
        }
        for name, (value, least) in at_least.items():
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")

    def deadline_ms(self, class_name: str, asked_ms: int) -> int:
        """Deadline of a request in ms: its own, its class's, the default, then the cap."""
        if asked_ms > 0:
            return asked_ms
        named = self.classes.get(class_name)
        if named is not None and named.deadline_ms > 0:
            return named.deadline_ms
        return self.default_deadline_ms or self.deadline_cap_ms

    def generation_times(self, class_name: str) -> GenerationTimes:
        """What generations of a class get that name no times themselves."""
        named = self.classes.get(class_name, _NO_CLASS)
        return GenerationTimes(
            deadline_ms=named.generation_deadline_ms or self.default_generation_deadline_ms,
            first_token_ms=named.first_token_target_ms or self.default_first_token_target_ms,
            token_ms=named.token_target_ms or self.default_token_target_ms,
        )


def _check_host_port(name: str, value: str) -> None:
    fault = host_port_fault(value) if value else ""
    if fault:
        raise ValueError(f"{name} {fault}")
