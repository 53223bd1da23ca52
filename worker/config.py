"""Settings of a worker process."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from protos.audit import AuditConfig
from protos.exposure import check_listener, check_peer, host_port_fault
from protos.tls import TlsConfig
from protos.tracing.endpoint import endpoint_fault
from worker.scheduling.policies import policy_named


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Everything a worker can be told.

    `worker_id` empty takes `<host name>-<pid>`. `listen` is `host:port` (port 0 lets the system
    choose) or `unix:path`; `advertise` is what the control plane is told to dial when that
    differs. `controlplane` empty serves alone. `models` and `variants` empty take all.
    `metrics_listen` is where Prometheus finds metrics, host:port, empty for nowhere;
    `metrics_push_ms` above 0 pushes them to `otlp_endpoint` that often. `health_listen` is a port
    that answers grpc health and nothing else, in plain text whatever `tls` says, for probes.
    `max_message_bytes` must equal the control plane's. `insecure` allows plain text to
    and from other machines. `token_file` holds the bearer token to register with. `callers` are the
    names of which a caller's certificate must hold one where `tls` asks for certificates; empty
    takes the name by which the control plane is dialled. `trace_sample` is the share, 0 to 1, of
    the caller's sampled items that get spans here; these go to the collector `otlp_endpoint`
    (`host:port`, with `https://` before it for TLS) and to a file in `trace_directory`, of
    `trace_directory_mib` at most for this process.

    A worker of class "decode" serves the models that generate text and no others, one variant of
    each: of `variants` the fastest that the model has. `arena_mib` is the memory of keys and
    values of each model, 0 lets the available memory decide; `kv_precision` is what they are kept
    in. `max_queued_items` bounds its waiting answers, `scheduling` names its policy. `cpus` are
    the CPUs this process keeps to, empty all. `spinning` lets threads of a run wait busily for
    each other; None does on decode workers with more than one thread, whose steps are short.

    `memory_mib` is the most memory the process shall take: a load that would exceed it is refused;
    0 leaves that to control groups and the host.
    """

    worker_id: str = ""
    worker_class: str = "encoder"
    listen: str = "127.0.0.1:0"
    advertise: str = ""
    metrics_listen: str = ""
    metrics_push_ms: int = 0
    health_listen: str = ""
    controlplane: str = ""
    repository: Path = field(
        default_factory=lambda: Path(os.environ.get("ORCHID_REPOSITORY", "models"))
    )
    models: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    intra_op_threads: int = 1
    spinning: bool | None = None
    cpus: tuple[int, ...] = ()
    arena_mib: int = 0
    memory_mib: int = 0
    kv_precision: str = "fp16"
    scheduling: str = "slo"
    report_interval_ms: int = 50
    max_queued_items: int = 256
    max_message_bytes: int = 64 * 1024 * 1024
    insecure: bool = False
    tls: TlsConfig = field(default_factory=TlsConfig)
    token_file: str = ""
    callers: tuple[str, ...] = ()
    audit: AuditConfig = field(default_factory=AuditConfig)
    drain_timeout_ms: int = 10_000
    warm_budget_ms: int = 1_000
    otlp_endpoint: str = ""
    trace_directory: str = ""
    trace_directory_mib: int = 64
    trace_sample: float = 1.0
    log_level: str = "info"
    log_format: str = "text"

    def __post_init__(self) -> None:
        """Raises ValueError naming the key, the value that came and what is accepted."""
        for name in (
            "intra_op_threads",
            "report_interval_ms",
            "max_queued_items",
            "max_message_bytes",
            "warm_budget_ms",
            "trace_directory_mib",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("drain_timeout_ms", "arena_mib", "memory_mib", "metrics_push_ms"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: expected at least 0, got {getattr(self, name)}")
        if self.report_interval_ms > 50:
            raise ValueError(
                f"report_interval_ms: expected at most 50, got {self.report_interval_ms}"
            )
        if not 0.0 <= self.trace_sample <= 1.0:
            raise ValueError(f"trace_sample: expected 0 to 1, got {self.trace_sample}")
        fault = endpoint_fault(self.otlp_endpoint)
        if fault:
            raise ValueError(f"otlp_endpoint: {fault}")
        _check_choice("worker_class", self.worker_class, ("encoder", "decode"))
        _check_choice("kv_precision", self.kv_precision, ("fp16", "fp32"))
        try:
            policy_named(self.scheduling)
        except ValueError as error:
            raise ValueError(f"scheduling: {error}") from None
        _check_choice("log_level", self.log_level, ("debug", "info", "warning", "error"))
        _check_choice("log_format", self.log_format, ("text", "json"))
        if self.metrics_push_ms and not self.otlp_endpoint:
            raise ValueError("metrics_push_ms: needs otlp_endpoint, where to push them")
        fault = host_port_fault(self.metrics_listen) if self.metrics_listen else ""
        if fault:
            raise ValueError(f"metrics_listen: {fault}")
        _check_address("listen", self.listen)
        for name in ("advertise", "controlplane", "health_listen"):
            if getattr(self, name):
                _check_address(name, getattr(self, name))
        for name in ("listen", "metrics_listen"):
            address = getattr(self, name)
            check_listener(name, address, encrypted=self.tls.serves, insecure=self.insecure)
        check_peer(
            "controlplane", self.controlplane, encrypted=self.tls.dials, insecure=self.insecure
        )

    @property
    def own_id(self) -> str:
        """`worker_id`, or what it is when it is empty."""
        return self.worker_id or f"{socket.gethostname()}-{os.getpid()}"

    @property
    def spins(self) -> bool:
        """Whether the threads of a run wait busily for each other."""
        if self.spinning is None:
            return self.worker_class == "decode" and self.intra_op_threads > 1
        return self.spinning


def _check_choice(name: str, value: str, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        raise ValueError(f"{name}: expected one of {', '.join(accepted)}, got {value!r}")


def _check_address(name: str, value: str) -> None:
    """`host:port`, `[v6]:port` or `unix:path`."""
    if value.startswith("unix:"):
        if len(value) > len("unix:"):
            return
    else:
        host, _, port = value.rpartition(":")
        if host and port.isdigit() and int(port) <= 65535:
            return
    raise ValueError(f"{name}: expected host:port or unix:path, got {value!r}")
