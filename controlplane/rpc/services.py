"""Turns a servicer object into gRPC method handlers that always end with a status."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn, Protocol, cast

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from controlplane import ends
from controlplane.errors import Cancelled, ControlPlaneError, InvalidRequest
from controlplane.rpc.guarding import audited, protected
from controlplane.rpc.status import Status, status_of
from controlplane.rpc.traced import TRACE_ID
from controlplane.security.house import OPEN, Security
from controlplane.telemetry.trace import CURRENT, CallTrace
from protos.codec import Undecodable, decoder, encode

_log = logging.getLogger(__name__)
_CODE = "rpc.grpc.status_code"
_CANCELLED: int = grpc.StatusCode.CANCELLED.value[0]


class Context(Protocol):
    """The part of grpc.aio's servicer context that the front doors use."""

    async def read(self) -> Any: ...

    async def write(self, message: Any) -> None: ...

    async def abort(
        self, code: grpc.StatusCode, details: str, trailing_metadata: tuple[tuple[str, str], ...]
    ) -> NoReturn: ...

    def time_remaining(self) -> float | None: ...

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...] | None: ...

    def set_trailing_metadata(self, trailing_metadata: tuple[tuple[str, str], ...]) -> None: ...


Method = Callable[[Any, Context], Awaitable[Any]]
Decoder = Callable[[bytes], Any]


def service_handler(
    service: ServiceDescriptor, servicer: object, security: Security = OPEN
) -> grpc.GenericRpcHandler:
    """Handlers for every method of `service`, each a coroutine of that name on `servicer`.

    Unary methods take `(request, context)` and return a message or its bytes; methods
    with a stream on either side take the same and use `context.read` and `write`. A
    method that the servicer lacks answers UNIMPLEMENTED. Domain errors become statuses,
    bytes that do not decode INVALID_ARGUMENT; for methods that read a stream, such bytes
    arrive as `Undecodable` so that one bad message need not end the stream. A servicer with
    `decoders` reads the requests of some methods in its own way while there is no guard.
    With a guard only callers that may reach the methods.
    """
    handlers = {method.name: _handler(method, servicer, security) for method in service.methods}
    # One generic handler, not registered methods: grpc.aio waits on a future for each
    # registered method at every call.
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _handler(
    method: MethodDescriptor, servicer: object, security: Security
) -> grpc.RpcMethodHandler[Any, Any]:
    behaviour = cast(
        Method,
        getattr(servicer, method.name, None) or unimplemented(f"{method.name} is not supported"),
    )
    behaviour = audited(method, behaviour, security.audit)
    if security.guard is not None:
        behaviour = protected(method, behaviour, security.guard)
    own: Mapping[str, Decoder] = getattr(servicer, "decoders", {})
    # A guard makes requests their caller's; it knows them as protobuf reads them.
    decode = own.get(method.name) if security.guard is None else None
    decode = decode or decoder(method)
    guarded = _guarded(behaviour)
    if method.client_streaming and method.server_streaming:
        return grpc.stream_stream_rpc_method_handler(cast(Any, guarded), decode, encode)
    if method.client_streaming:
        return grpc.stream_unary_rpc_method_handler(cast(Any, guarded), decode, encode)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(cast(Any, guarded), decode, encode)
    return grpc.unary_unary_rpc_method_handler(cast(Any, guarded), decode, encode)


def unimplemented(reason: str) -> Method:
    """A method that answers UNIMPLEMENTED and says why."""

    async def answer(request: object, context: Context) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, reason, ())

    return staticmethod(answer)


def _guarded(method: Method) -> Method:
    async def guarded(request: Any, context: Context) -> Any:
        trace = CURRENT.get()
        if trace is not None:
            _handle(trace, context)
        try:
            if type(request) is Undecodable:
                raise InvalidRequest(str(request))
            return await method(request, context)
        except ControlPlaneError as error:
            _failed(trace, error)
            await abort(context, status_of(error))
        except asyncio.CancelledError:
            _failed(trace, Cancelled())
            task = asyncio.current_task()
            if task is None or task.cancelling():
                if trace is not None and trace.recording:
                    trace.attributes[_CODE] = _CANCELLED
                raise
            # Nobody cancelled this call, something it waited for ended: the caller is
            # still there and must hear of it.
            await abort(context, status_of(Cancelled("the request was cancelled by the server")))
        except grpc.aio.BaseError:
            # The call has its status already, or the transport ended it.
            raise
        except Exception as error:
            _failed(trace, error)
            log_fault(error)
            await abort(context, status_of(error))

    return guarded


def _handle(trace: CallTrace, context: Context) -> None:
    """The message of a call that may be recorded was read; its caller is told the trace."""
    trace.handled = True
    if trace.recording:
        context.set_trailing_metadata(((TRACE_ID, trace.id),))
        trace.attributes[_CODE] = 0


def _failed(trace: CallTrace | None, error: BaseException) -> None:
    if trace is not None:
        trace.failed(ends.word_of(error))


def log_fault(error: BaseException) -> None:
    """Log a fault of ours: where it happened, without its text, which could hold content."""
    where = "".join(traceback.format_tb(error.__traceback__))
    _log.error("unexpected %s\n%s", type(error).__name__, where)


async def abort(context: Context, status: Status) -> NoReturn:
    """Ends the call with `status` and its retry guidance.

    Raises CancelledError when the call was lost meanwhile: nobody can be told any more.
    """
    trailers = status.trailers
    trace = CURRENT.get()
    if trace is not None and trace.recording:
        trace.attributes[_CODE] = status.number
        trailers = (*trailers, (TRACE_ID, trace.id))
    try:
        await context.abort(status.code, status.message, trailers)
    except grpc.aio.InternalError:
        _log.debug("a call was lost before its status %s could be sent", status.code.name)
        raise asyncio.CancelledError from None
