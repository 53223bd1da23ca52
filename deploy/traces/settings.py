"""What a local cluster is told about tracing: files in its state directory, a small share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from deploy.traces.client import FOLDER

# Of the requests that bring no trace context; one that is slow or fails is kept besides.
USUAL_SHARE = 0.01


class TracingOverrides(NamedTuple):
    """Configuration keys of the control plane and of every worker."""

    controlplane: dict[str, Any]
    worker: dict[str, Any]


def tracing_overrides(
    config: Path | None,
    env: Mapping[str, str],
    state: Path,
    *,
    share: float | None = None,
    endpoint: str | None = None,
) -> TracingOverrides:
    """What to tell the processes beyond their configuration; raises ConfigError.

    `share` and `endpoint` are what the command line says, None for nothing. Where neither it
    nor the configuration speaks, spans are kept below `state`, and of a small share of requests.
    """
    from controlplane.config import ControlPlaneConfig
    from deploy.config import load_config
    from worker.config import WorkerConfig

    told = load_config(ControlPlaneConfig, "controlplane", config, env).telemetry
    worker_told = load_config(WorkerConfig, "worker", config, env)
    directory = str((state / FOLDER).absolute())
    telemetry: dict[str, Any] = {}
    worker: dict[str, Any] = {}
    if not told.directory:
        telemetry["directory"] = directory
    if not worker_told.trace_directory:
        worker["trace_directory"] = directory
    if share is not None or not told.sample_ratio:
        telemetry["sample_ratio"] = USUAL_SHARE if share is None else share
    if endpoint is not None:
        telemetry["otlp_endpoint"] = worker["otlp_endpoint"] = endpoint
    return TracingOverrides({"telemetry": telemetry}, worker)
