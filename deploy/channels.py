"""gRPC channels of commands and benches, as `deploy.access` says."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import grpc

from deploy.access import Access, AccessError, access_from
from protos.exposure import is_local

Options = Sequence[tuple[str, int | str]]


def channel(address: str, options: Options = (), access: Access | None = None) -> grpc.Channel:
    """A channel to a control plane or worker; raises AccessError."""
    chosen = _checked(address, access or access_from(os.environ))
    if chosen.encrypted:
        made = grpc.secure_channel(
            address, _credentials(chosen), options=(*options, *_named(chosen))
        )
    else:
        made = grpc.insecure_channel(address, options=tuple(options))
    return grpc.intercept_channel(made, _Telling(chosen.metadata)) if chosen.token else made


def aio_channel(address: str, options: Options = ()) -> grpc.aio.Channel:
    """The same for asyncio; raises AccessError."""
    chosen = _checked(address, access_from(os.environ))
    telling = _telling_aio(chosen.metadata) if chosen.token else None
    if chosen.encrypted:
        return grpc.aio.secure_channel(
            address,
            _credentials(chosen),
            options=(*options, *_named(chosen)),
            interceptors=telling,
        )
    return grpc.aio.insecure_channel(address, options=tuple(options), interceptors=telling)


def _checked(address: str, access: Access) -> Access:
    if access.token and not (access.encrypted or access.insecure or is_local(address)):
        raise AccessError(
            f"the token would go to {address} in plain text: name the authorities to trust "
            "(--tls-ca), or set ORCHID_INSECURE=1 where the network is trusted"
        )
    return access


def _credentials(access: Access) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(*access.files())


def _named(access: Access) -> tuple[tuple[str, str], ...]:
    name = access.server_name
    return (("grpc.ssl_target_name_override", name),) if name else ()


class _Details(NamedTuple):
    """A call that also says who makes it."""

    method: Any
    timeout: Any
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any


class _Telling(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds metadata to every call."""

    def __init__(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self._metadata = metadata

    def _told(self, details: Any) -> _Details:
        return _Details(
            details.method,
            details.timeout,
            (*(details.metadata or ()), *self._metadata),
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )

    def intercept_unary_unary(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        """A unary call."""
        return continuation(self._told(client_call_details), request)

    def intercept_unary_stream(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        """A call with a stream of answers."""
        return continuation(self._told(client_call_details), request)

    def intercept_stream_stream(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        """A call with streams both ways."""
        return continuation(self._told(client_call_details), request_iterator)


def _telling_aio(metadata: tuple[tuple[str, str], ...]) -> list[grpc.aio.ClientInterceptor]:
    async def tell(
        self: object, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        told = grpc.aio.ClientCallDetails(
            method=details.method,
            timeout=details.timeout,
            metadata=grpc.aio.Metadata(*(details.metadata or ()), *metadata),
            credentials=details.credentials,
            wait_for_ready=details.wait_for_ready,
        )
        return await continuation(told, request)

    kinds: dict[str, Any] = {
        "intercept_unary_unary": grpc.aio.UnaryUnaryClientInterceptor,
        "intercept_unary_stream": grpc.aio.UnaryStreamClientInterceptor,
        "intercept_stream_stream": grpc.aio.StreamStreamClientInterceptor,
    }
    # One class for each kind of call: the library takes an interceptor for one kind only.
    return [type("Telling", (kind,), {name: tell})() for name, kind in kinds.items()]
