"""Where the metrics of a control plane go, put together."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from controlplane.config import ControlPlaneConfig
from controlplane.metrics.source import MetricsSource

if TYPE_CHECKING:
    from protos.exposition import Exposition


def make_exposition(
    config: ControlPlaneConfig,
    source: MetricsSource,
    instance: str,
    *,
    loop: asyncio.AbstractEventLoop,
    context: ssl.SSLContext | None,
    now_ns: Callable[[], int],
    wall_ns: Callable[[], int],
) -> Exposition | None:
    """As configured; None where metrics go nowhere."""
    if not config.metrics_listen and not config.metrics_push_ms:
        return None
    from protos.exposition import Clocks, Exposition, Outlets

    endpoint = config.telemetry.otlp_endpoint if config.metrics_push_ms else ""
    return Exposition(
        Outlets(config.metrics_listen, endpoint, config.metrics_push_ms, context),
        source.read,
        resource={
            "service.name": config.telemetry.service_name,
            "service.version": source.version,
            "service.instance.id": instance,
        },
        loop=loop,
        clocks=Clocks(now_ns, wall_ns),
    )
