"""Running a control plane: from its configuration until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import uvloop

from controlplane.composition import ControlPlane, MissingExtra
from controlplane.config import ControlPlaneConfig
from controlplane.security.house import make_security

log = logging.getLogger("controlplane")

# Threads that write out spans or a scrape let the event loop go on this soon; Python's default is
# 5 ms.
_SWITCH_INTERVAL_S = 0.0005


def _wall_s() -> float:
    return time.time_ns() / 1e9


async def run(
    config: ControlPlaneConfig,
    *,
    ready: Callable[[str], None] | None = None,
    http_ready: Callable[[str], None] | None = None,
    metrics_ready: Callable[[str], None] | None = None,
    page_ready: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
    read: Callable[[], ControlPlaneConfig] | None = None,
) -> None:
    """Serve until `stop` is set, then finish what was accepted.

    `ready` is called once with the bound address, before it `http_ready`, `metrics_ready` and
    `page_ready` with those of HTTP, metrics and the status page where they are served. SIGHUP
    puts in force what `read` reads then. Raises OSError when an address of the configuration
    cannot be bound or a file of it cannot be used, MissingExtra when HTTP is asked for without
    its packages.
    """
    security = make_security(config, now_ns=time.monotonic_ns, wall_s=_wall_s)
    loop = asyncio.get_running_loop()
    control_plane = ControlPlane(config, loop, security, read)
    address, http_address = await control_plane.start()
    # What exists by now lives as long as the process; the collector need not look at it.
    gc.collect()
    gc.freeze()
    log.info("serving on %s with policy %s", address, config.policy)
    if http_address:
        log.info("serving HTTP on %s", http_address)
        if http_ready is not None:
            http_ready(http_address)
    if control_plane.metrics_address:
        log.info("serving metrics on %s", control_plane.metrics_address)
        if metrics_ready is not None:
            metrics_ready(control_plane.metrics_address)
    if control_plane.page_url:
        log.info("serving the status page on %s/", control_plane.page_url)
        if page_ready is not None:
            page_ready(control_plane.page_url)
    control_plane.reloads.on_signal(loop)
    if ready is not None:
        ready(address)
    try:
        await (stop or asyncio.Event()).wait()
    finally:
        await control_plane.stop()
        log.info("stopped")


async def _run_until_signal(serve: Callable[..., Coroutine[Any, Any, None]]) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve(stop=stop)


def main(
    config: ControlPlaneConfig,
    *,
    ready: Callable[[str], None] | None = None,
    http_ready: Callable[[str], None] | None = None,
    metrics_ready: Callable[[str], None] | None = None,
    page_ready: Callable[[str], None] | None = None,
    read: Callable[[], ControlPlaneConfig] | None = None,
) -> None:
    """Run a control plane until SIGTERM or SIGINT; SIGHUP reads its configuration again.

    Exits with status 1 and one line of explanation when it cannot start.
    """
    logging.basicConfig(
        level=config.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    serve = partial(
        run,
        config,
        ready=ready,
        http_ready=http_ready,
        metrics_ready=metrics_ready,
        page_ready=page_ready,
        read=read,
    )
    with contextlib.suppress(KeyboardInterrupt):
        try:
            uvloop.run(_run_until_signal(serve))
        except (OSError, MissingExtra) as error:
            log.error("cannot serve: %s", error)
            raise SystemExit(1) from None


if __name__ == "__main__":
    main(ControlPlaneConfig())
