"""Runs one service in this process: configuration in, serving until it is told to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.config import ConfigError, load_config
from worker.cpu_plan import OversubscribedError, check_threads, read_cpu_plan

if TYPE_CHECKING:
    from worker.config import WorkerConfig

SERVICES = ("controlplane", "worker")


def worker_config(
    config: Path | None, env: Mapping[str, str], overrides: Mapping[str, Any]
) -> WorkerConfig:
    """The settings a worker would start with; raises ConfigError."""
    from worker.config import WorkerConfig

    return load_config(WorkerConfig, "worker", config, env, overrides)


def served_models(config: WorkerConfig) -> frozenset[str]:
    """Names of the models that a worker with these settings serves."""
    if config.models:
        return frozenset(config.models)
    return repository_models(config)


def repository_models(config: WorkerConfig) -> frozenset[str]:
    """Names of the models that the repository of these settings holds."""
    return frozenset(path.parent.name for path in config.repository.glob("*/manifest.json"))


def serve(
    service: str,
    *,
    config: Path | None,
    env: Mapping[str, str],
    overrides: Mapping[str, Any],
    ready: Callable[[str], None],
    http_ready: Callable[[str], None] | None = None,
) -> None:
    """Runs "controlplane" or "worker" until a signal ends it.

    `ready` is called once with the address that was bound, before it `http_ready` with
    that of HTTP when it is served. Raises ConfigError (also for
    more threads than there are granted cores), and SystemExit(1) when the service cannot
    start.
    """
    if service == "controlplane":
        from controlplane.__main__ import main as run_controlplane
        from controlplane.config import ControlPlaneConfig

        chosen = load_config(ControlPlaneConfig, service, config, env, overrides)
        run_controlplane(chosen, ready=ready, http_ready=http_ready)
    else:
        from worker.__main__ import main as run_worker

        settings = worker_config(config, env, overrides)
        try:
            check_threads(read_cpu_plan(), 1, settings.intra_op_threads)
        except OversubscribedError as error:
            raise ConfigError(f"worker.intra_op_threads: {error}") from None
        run_worker(settings, ready=ready)
