"""The worker's service as gRPC method handlers that always end with a status."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

import grpc
from google.protobuf.descriptor import MethodDescriptor

from protos.codec import Undecodable, decoder, encode
from protos.orchid.v1 import worker_pb2
from worker.errors import EngineFault, InvalidInput, WorkerError, where_raised
from worker.rpc.status import status_of, trailers_of
from worker.security import Callers

log = logging.getLogger(__name__)

SERVICE = worker_pb2.DESCRIPTOR.services_by_name["Worker"]

Context = grpc.aio.ServicerContext[Any, Any]
Method = Callable[[Any, Context], Awaitable[Any]]


def worker_handler(servicer: object, callers: Callers | None = None) -> grpc.GenericRpcHandler:
    """Handlers for the methods of `orchid.v1.Worker` that `servicer` has, each a coroutine.

    What it has not answers UNIMPLEMENTED: encoder and decode workers share the service.
    Answers may be messages or their bytes. Worker errors become statuses, bytes that do not
    decode INVALID_ARGUMENT, anything else INTERNAL without its text, which could hold content.
    A method that reads a stream meets such bytes as `Undecodable`. With
    `callers` only they may call.
    """
    handlers = {
        method.name: _handler(method, servicer, callers)
        for method in SERVICE.methods
        if hasattr(servicer, method.name)
    }
    return grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)


def _handler(
    method: MethodDescriptor, servicer: object, callers: Callers | None
) -> grpc.RpcMethodHandler[Any, Any]:
    behaviour: Method = getattr(servicer, method.name)
    if callers is not None and callers.concerns(method.name):
        behaviour = _checked(method.name, behaviour, callers)
    guarded = cast(Any, _guarded(behaviour))
    decode = decoder(method)
    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(guarded, decode, encode)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(guarded, decode, encode)
    return grpc.unary_unary_rpc_method_handler(guarded, decode, encode)


def _checked(name: str, method: Method, callers: Callers) -> Method:
    async def checked(request: Any, context: Any) -> Any:
        callers.check(name, context)
        outcome = "failed"
        try:
            answer = await method(request, context)
            outcome = "ok"
            return answer
        except WorkerError as error:
            outcome = status_of(error)[1].name.lower()
            raise
        finally:
            callers.tell(name, context, outcome, getattr(request, "model", ""))

    return checked


def _guarded(method: Method) -> Method:
    async def guarded(request: Any, context: Context) -> Any:
        try:
            return await method(decoded(request), context)
        except WorkerError as error:
            await context.abort(status_of(error)[1], str(error), trailers_of(error))
        except grpc.aio.BaseError:
            # The call has its status already, or the transport ended it.
            raise
        except Exception as raised:
            log.error("call failed with %s at\n%s", type(raised).__name__, where_raised(raised))
            fault = EngineFault(f"the worker failed with {type(raised).__name__}")
            await context.abort(status_of(fault)[1], str(fault))

    return guarded


def decoded(request: Any) -> Any:
    """The request itself; raises InvalidInput when its bytes were not a message."""
    if type(request) is Undecodable:
        raise InvalidInput(str(request))
    return request
