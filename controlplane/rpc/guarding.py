"""The guard at the gRPC services: which method takes which role, and whose tenant a request is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

import grpc
from google.protobuf.descriptor import MethodDescriptor

from controlplane.errors import ControlPlaneError
from controlplane.rpc.status import status_of
from controlplane.security.guard import (
    ANYBODY,
    INFER,
    OPERATE,
    READ,
    WORKER,
    Guard,
    Standing,
    tenant_of,
)
from controlplane.security.identities import Identity
from protos.audit import Audit
from protos.dialling import AUTHORIZATION
from protos.inference import oip_pb2
from protos.orchid.v1 import inference_pb2

_TENANT = "tenant"
_ALTERNATIVE_NAMES, _COMMON_NAME = "x509_subject_alternative_name", "x509_common_name"

# Methods that are not named here take the role operate.
_ROLES: Mapping[str, frozenset[str]] = {
    "Check": ANYBODY,
    "Watch": ANYBODY,
    "ServerLive": ANYBODY,
    "ServerReady": ANYBODY,
    "ServerMetadata": READ,
    "ModelReady": READ,
    "ModelMetadata": READ,
    "ModelConfig": READ,
    "ModelStatistics": READ,
    "RepositoryIndex": READ,
    "ServerReflectionInfo": READ,
    "SystemSharedMemoryStatus": READ,
    "SystemSharedMemoryUnregister": READ,
    "CudaSharedMemoryStatus": READ,
    "CudaSharedMemoryUnregister": READ,
    "ModelInfer": INFER,
    "ModelStreamInfer": INFER,
    "Infer": INFER,
    "StreamInfer": INFER,
    "Generate": INFER,
    "Register": WORKER,
}

_AUDITED = {"RepositoryModelLoad": "model.load", "RepositoryModelUnload": "model.unload"}

Method = Callable[[Any, Any], Awaitable[Any]]


def caller_of(context: object) -> str:
    """The name of a call's identity, empty where nobody is asked."""
    identity = getattr(context, "identity", None)
    return identity.name if identity is not None else ""


def peer_of(context: object) -> str:
    """Where a call comes from, for the audit log."""
    peer = getattr(context, "peer", None)
    return str(peer()) if peer is not None else ""


def protected(method: MethodDescriptor, behaviour: Method, guard: Guard) -> Method:
    """`behaviour` for callers who may; its context then knows their identity.

    Requests that name a tenant get the caller's, or are refused when it is another's. A stream ends
    once its caller is known no more: at its next message, from the caller or, where only answers
    are streamed, to it.
    """
    accepted = _ROLES.get(method.name, OPERATE)
    if accepted is ANYBODY:
        return behaviour
    path = f"{method.containing_service.full_name}/{method.name}"
    counted = accepted is INFER
    streams = method.client_streaming
    stands = streams or method.server_streaming
    joins = accepted is WORKER

    async def guarded(request: Any, context: Any) -> Any:
        ask = partial(_admitted, guard, path, accepted, context)
        standing = Standing(guard, ask) if stands else None
        identity = ask() if standing is None else standing.identity
        if counted and not streams:
            guard.spend(identity)
            claim(identity, request)
        if joins:
            guard.audit.record(
                "worker.register", who=identity.name, outcome="admitted", peer=context.peer()
            )
        if standing is None:
            return await behaviour(request, _Call(context, identity))
        if streams:
            return await behaviour(request, _Stream(context, standing, guard, counted=counted))
        return await behaviour(request, _Answers(context, standing))

    return guarded


def audited(method: MethodDescriptor, behaviour: Method, audit: Audit | None) -> Method:
    """`behaviour` with an audit line for each call, where it changes what is served."""
    event = _AUDITED.get(method.name)
    if event is None or audit is None:
        return behaviour

    async def recorded(request: Any, context: Any) -> Any:
        outcome = "failed"
        try:
            answer = await behaviour(request, context)
            outcome = "ok"
            return answer
        except ControlPlaneError as error:
            outcome = status_of(error).code.name.lower()
            raise
        finally:
            audit.record(
                event,
                who=caller_of(context),
                outcome=outcome,
                model=request.model_name,
                peer=peer_of(context),
            )

    return recorded


def _admitted(guard: Guard, path: str, accepted: frozenset[str], context: Any) -> Identity:
    authorization = ""
    for key, value in context.invocation_metadata() or ():
        if key == AUTHORIZATION and isinstance(value, str):
            authorization = value
            break
    return guard.admit(
        path, accepted, authorization, lambda: certificate_names(context), context.peer()
    )


def certificate_names(context: Any) -> Iterable[str]:
    """Names in the certificate of a caller, alternative names first; none without one."""
    found = context.auth_context()
    for key in (_ALTERNATIVE_NAMES, _COMMON_NAME):
        for name in found.get(key, ()):
            yield name.decode("utf-8", "replace")


def claim(identity: Identity, message: Any) -> None:
    """Make a request its caller's; raises Forbidden when it names another tenant."""
    if isinstance(message, oip_pb2.ModelInferRequest):
        parameter = message.parameters.get(_TENANT)
        named = parameter.string_param if parameter is not None else ""
        tenant = tenant_of(identity, named)
        if tenant:
            message.parameters[_TENANT].string_param = tenant
    elif isinstance(message, inference_pb2.InferRequest | inference_pb2.GenerateRequest):
        tenant = tenant_of(identity, message.request_class.tenant)
        if tenant:
            message.request_class.tenant = tenant


class _Call:
    """A call with its caller's identity."""

    def __init__(self, context: Any, identity: Identity) -> None:
        self.identity = identity
        self.abort = context.abort
        self.time_remaining = context.time_remaining
        self.invocation_metadata = context.invocation_metadata
        self.peer = context.peer


class _Stream(_Call):
    """A stream of messages, each of which is made the caller's when it is read."""

    def __init__(self, context: Any, standing: Standing, guard: Guard, *, counted: bool) -> None:
        super().__init__(context, standing.identity)
        self._context = context
        self._standing = standing
        self._guard = guard
        self._counted = counted
        self.write = context.write

    async def read(self) -> Any:
        """The next message; the error that it gets instead of an answer, when it may not be.

        Raises Unauthenticated or Forbidden when the caller may not go on.
        """
        message = await self._context.read()
        if message is grpc.aio.EOF:
            return message
        self._standing.check()
        self.identity = self._standing.identity
        if self._counted:
            try:
                self._guard.spend(self.identity)
                claim(self.identity, message)
            except ControlPlaneError as error:
                return error
        return message


class _Answers(_Call):
    """One request and a stream of answers, which ends when its caller may not go on."""

    def __init__(self, context: Any, standing: Standing) -> None:
        super().__init__(context, standing.identity)
        self._write = context.write
        self._standing = standing

    async def write(self, message: Any) -> None:
        """One more; raises Unauthenticated or Forbidden instead."""
        self._standing.check()
        await self._write(message)


class ProtectedHandler(grpc.GenericRpcHandler):
    """A generic handler of somebody else's streaming service, for callers who may."""

    def __init__(self, inner: grpc.GenericRpcHandler, guard: Guard) -> None:
        self._inner = inner
        self._guard = guard

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The handler of a call, None when it is not one of this service."""
        found = cast(Any, self._inner.service(handler_call_details))
        if found is None:
            return None
        path = handler_call_details.method.lstrip("/")
        accepted = _ROLES.get(path.rpartition("/")[2], OPERATE)
        stream = found.stream_stream

        async def guarded(requests: Any, context: Any) -> Any:
            try:
                ask = partial(_admitted, self._guard, path, accepted, context)
                standing = Standing(self._guard, ask)
                async for response in stream(requests, context):
                    standing.check()
                    yield response
            except ControlPlaneError as error:
                status = status_of(error)
                await context.abort(status.code, status.message, status.trailers)

        return grpc.stream_stream_rpc_method_handler(
            cast(Any, guarded), found.request_deserializer, found.response_serializer
        )
