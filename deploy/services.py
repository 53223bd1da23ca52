"""Runs one service in this process: configuration in, serving until it is told to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deploy.config import load_config

SERVICES = ("controlplane", "worker")


def worker_models(
    config: Path | None, env: Mapping[str, str], overrides: Mapping[str, Any]
) -> frozenset[str]:
    """The models a worker with these settings serves; raises ConfigError."""
    from worker.config import WorkerConfig

    chosen = load_config(WorkerConfig, "worker", config, env, overrides)
    if chosen.models:
        return frozenset(chosen.models)
    return frozenset(path.parent.name for path in chosen.repository.glob("*/manifest.json"))


def serve(
    service: str,
    *,
    config: Path | None,
    env: Mapping[str, str],
    overrides: Mapping[str, Any],
    ready: Callable[[str], None],
) -> None:
    """Runs "controlplane" or "worker" until a signal ends it.

    `ready` is called once with the address that was bound. Raises ConfigError, and
    SystemExit(1) when the service cannot start.
    """
    if service == "controlplane":
        from controlplane.__main__ import main as run_controlplane
        from controlplane.config import ControlPlaneConfig

        chosen = load_config(ControlPlaneConfig, service, config, env, overrides)
        run_controlplane(chosen, ready=ready)
    else:
        from worker.__main__ import main as run_worker
        from worker.config import WorkerConfig

        run_worker(load_config(WorkerConfig, service, config, env, overrides), ready=ready)
