"""A port for probes, whatever the other ports speak: health and nothing else, in plain text.

Those that run containers ask without a certificate. They are told one word: whether what they
name serves; never which names there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import grpc
from grpc_health.v1 import health_pb2

from protos.binding import bind
from protos.codec import Undecodable, decoder, encode

log = logging.getLogger(__name__)

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
_CHECK = _HEALTH.methods_by_name["Check"]
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
# A probe is small, comes alone, and goes again.
_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 4096),
    ("grpc.max_metadata_size", 4096),
    ("grpc.absolute_max_metadata_size", 4096),
    ("grpc.max_concurrent_streams", 16),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 60_000),
)


class ProbePort:
    """Answers `grpc.health.v1.Health/Check` at one address; lives on the running event loop.

    `status` has the serving status of a service or model, SERVICE_UNKNOWN where there is none of
    that name. `address` is what was bound, once it was.
    """

    def __init__(self, listen: str, status: Callable[[str], int]) -> None:
        self.address = ""
        self._listen = listen
        self._server = grpc.aio.server(options=_OPTIONS)

        async def check(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            if type(request) is Undecodable:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(request))
            found = status(request.service)
            if found == _UNKNOWN:
                await context.abort(grpc.StatusCode.NOT_FOUND, "no service of that name here")
            return health_pb2.HealthCheckResponse(status=found)

        method: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
            cast(Any, check), decoder(_CHECK), encode
        )
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(_HEALTH.full_name, {_CHECK.name: method})]
        )

    async def start(self) -> None:
        """Binds and serves; raises OSError when the address cannot be had."""
        self.address = bind(self._server, self._listen)
        await self._server.start()
        log.info("serving probes on %s", self.address)

    async def stop(self) -> None:
        """Ends at once."""
        await self._server.stop(None)
