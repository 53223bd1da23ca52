"""gRPC channels of commands and benches, as `deploy.access` says."""

from __future__ import annotations

import os
from collections.abc import Sequence

import grpc

from deploy.access import Access, AccessError, access_from
from deploy.interceptors import Recorder, Telling, Tracing, telling_aio, tracing_aio
from protos.exposure import is_local

Options = Sequence[tuple[str, int | str]]


def channel(
    address: str,
    options: Options = (),
    access: Access | None = None,
    recorder: Recorder | None = None,
) -> grpc.Channel:
    """A channel to a control plane or worker; raises AccessError.

    A `recorder` makes spans of its calls.
    """
    chosen = _checked(address, access or access_from(os.environ))
    if chosen.encrypted:
        made = grpc.secure_channel(
            address, _credentials(chosen), options=(*options, *_named(chosen))
        )
    else:
        made = grpc.insecure_channel(address, options=tuple(options))
    interceptors: list[Telling | Tracing] = []
    if recorder is not None:
        interceptors.append(Tracing(recorder))
    if chosen.token:
        interceptors.append(Telling(chosen.metadata))
    return grpc.intercept_channel(made, *interceptors) if interceptors else made


def aio_channel(
    address: str, options: Options = (), recorder: Recorder | None = None
) -> grpc.aio.Channel:
    """The same for asyncio; raises AccessError."""
    chosen = _checked(address, access_from(os.environ))
    interceptors = [] if recorder is None else tracing_aio(recorder)
    if chosen.token:
        interceptors += telling_aio(chosen.metadata)
    if chosen.encrypted:
        return grpc.aio.secure_channel(
            address,
            _credentials(chosen),
            options=(*options, *_named(chosen)),
            interceptors=interceptors or None,
        )
    return grpc.aio.insecure_channel(
        address, options=tuple(options), interceptors=interceptors or None
    )


def unreachable(target: str, text: str) -> str:
    """The fault of a connection to a control plane, in short where nobody listens."""
    refused = "connection refused" in text.lower()
    return f"nothing serves on {target}" if refused else f"{target}: {text}"


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
