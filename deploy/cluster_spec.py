"""What a local cluster runs, and what each of its workers is told."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.restart import RestartPolicy

# What is said of encoders' CPUs and variants is not said of decode workers.
_ENCODERS_ALONE = ("cpus", "variants")


class ClusterError(Exception):
    """The cluster could not do what was asked; the text holds the end of the log."""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """What to run.

    `listen` of the control plane may end in ":0" for a free port, which restarts then
    keep; None leaves it to the configuration; `http` and `page` are the same for HTTP and the
    status page, where "" is nowhere. `metrics` is where the control plane serves metrics (its
    workers on ports that follow), empty for nowhere; unless `metrics_exact`, the next free port
    does as well. `controlplane`, `worker` and `decode` override configuration keys, `env` adds
    variables. `supervise` restarts what dies. `workers` are encoder workers; `decode_threads`
    above 0 adds a decode worker for the models that generate.
    """

    workers: int
    directory: Path
    config: Path | None = None
    listen: str | None = None
    http: str | None = None
    metrics: str | None = None
    metrics_exact: bool = False
    page: str | None = None
    policy: str | None = None
    repository: Path | None = None
    models: tuple[str, ...] = ()
    controlplane: Mapping[str, Any] = field(default_factory=dict)
    worker: Mapping[str, Any] = field(default_factory=dict)
    decode_threads: int = 0
    decode: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    supervise: bool = False
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    stop_timeout_s: float = 10.0


def worker_overrides(spec: ClusterSpec, models: Collection[str]) -> dict[str, Any]:
    """Configuration keys of an encoder worker; no models are all of the repository."""
    overrides: dict[str, Any] = {"listen": "127.0.0.1:0"}
    if spec.repository is not None:
        overrides["repository"] = str(spec.repository.absolute())
    if models:
        overrides["models"] = list(models)
    return overrides | dict(spec.worker)


def decode_overrides(spec: ClusterSpec, models: Collection[str]) -> dict[str, Any]:
    """Configuration keys of a decode worker."""
    common = worker_overrides(spec, models)
    return {
        **{key: value for key, value in common.items() if key not in _ENCODERS_ALONE},
        "worker_class": "decode",
        "intra_op_threads": spec.decode_threads,
        **spec.decode,
    }
