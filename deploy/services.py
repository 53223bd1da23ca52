"""Runs one service in this process: configuration in, an event loop until it is told to stop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import uvloop

from deploy.config import load_config

Ready = Callable[[str], None]
SERVICES = ("controlplane", "worker")


def serve(
    service: str,
    *,
    config: Path | None,
    env: Mapping[str, str],
    overrides: Mapping[str, Any],
    ready: Ready,
) -> None:
    """Runs "controlplane" or "worker" until a signal ends it.

    `ready` is called once with the address that was bound. Raises ConfigError.
    """
    uvloop.run(_service(service, config, env, overrides, ready))


def _service(
    service: str,
    config: Path | None,
    env: Mapping[str, str],
    overrides: Mapping[str, Any],
    ready: Ready,
) -> Coroutine[Any, Any, None]:
    if service == "controlplane":
        from controlplane import __main__ as controlplane
        from controlplane.config import ControlPlaneConfig

        return controlplane.run(
            load_config(ControlPlaneConfig, service, config, env, overrides), ready=ready
        )
    from worker import __main__ as worker
    from worker.config import WorkerConfig

    return worker.run(load_config(WorkerConfig, service, config, env, overrides), ready=ready)
