"""The Open Inference Protocol service: the front door for stock clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from controlplane.errors import InvalidRequest, NotFound, Unavailable
from controlplane.registry import Registry
from controlplane.rpc.catalogue import Catalogue, ModelView
from controlplane.rpc.intake import Intake
from controlplane.rpc.oip_describe import (
    EXTENSIONS,
    SERVER_NAME,
    configuration,
    index_entry,
    metadata,
    statistics,
)
from controlplane.rpc.oip_message import InferMessage, MessageReader, whole
from controlplane.rpc.oip_request import read_message
from controlplane.rpc.oip_response import OipWriter
from controlplane.rpc.oip_stream import OipDialect
from controlplane.rpc.services import Context, unimplemented
from controlplane.rpc.status import shown
from controlplane.rpc.streams import OpenStreams
from protos.inference import oip_pb2

_NO_SHARED_MEMORY = (
    "shared memory is not supported: send tensors as raw_input_contents or typed contents"
)
_STATIC_SETTINGS = "{} is not supported: it is set in the control plane's configuration"


class Repository(Protocol):
    """What the front door needs of the workers' model repositories."""

    async def look(self) -> None:
        """Bring `available` up to date."""

    def available(self) -> Iterable[str]:
        """Names of models that some live worker could load."""

    async def load(self, model: str) -> None:
        """Load a model on every worker that has it; raises ControlPlaneError."""

    async def unload(self, model: str) -> None:
        """Take a model off every worker; raises ControlPlaneError."""


class OipServicer:
    """Implements `inference.GRPCInferenceService`, coroutine by coroutine.

    Domain errors that leave a method become statuses in `rpc/services.py`.
    """

    def __init__(
        self,
        intake: Intake,
        streams: OpenStreams,
        catalogue: Catalogue,
        registry: Registry,
        repository: Repository,
        version: str,
    ) -> None:
        self._intake = intake
        self._streams = streams
        self._catalogue = catalogue
        self._registry = registry
        self._repository = repository
        self._version = version
        self._writer = OipWriter()
        self._dialect = OipDialect(catalogue, self._writer)
        read = MessageReader().read
        # How requests are read where nobody changes them on the way here.
        self.decoders: Mapping[str, Callable[[bytes], object]] = {
            "ModelInfer": read,
            "ModelStreamInfer": read,
        }

    async def ModelInfer(
        self, request: InferMessage | oip_pb2.ModelInferRequest, context: Context
    ) -> oip_pb2.ModelInferResponse | bytes:
        """Answer one request."""
        now_ns = self._intake.now_ns
        arrived_ns = now_ns()
        message = request if isinstance(request, InferMessage) else whole(request)
        view = self._catalogue.view(message.head.model, message.head.version)
        try:
            ask, wanted = read_message(message, view)
            answer = await self._intake.answer(ask, arrived_ns, context)
            answered_ns = now_ns()
            response = self._writer.unary(answer, message.id, wanted)
        except BaseException:
            view.counters.failed(now_ns() - arrived_ns)
            raise
        view.counters.succeeded(answer.outcome, now_ns() - answered_ns)
        return response

    async def ModelStreamInfer(self, requests: object, context: Context) -> None:
        """Answer many requests on one stream, each as it finishes."""
        await self._streams.serve(self._dialect, context)

    async def ServerLive(
        self, request: oip_pb2.ServerLiveRequest, context: Context
    ) -> oip_pb2.ServerLiveResponse:
        """True: whoever answers is alive."""
        return oip_pb2.ServerLiveResponse(live=True)

    async def ServerReady(
        self, request: oip_pb2.ServerReadyRequest, context: Context
    ) -> oip_pb2.ServerReadyResponse:
        """True when at least one model can be asked."""
        return oip_pb2.ServerReadyResponse(ready=any(m.ready for m in self._registry.models()))

    async def ModelReady(
        self, request: oip_pb2.ModelReadyRequest, context: Context
    ) -> oip_pb2.ModelReadyResponse:
        """Readiness of one model; a model that no worker has is not ready."""
        try:
            view = self._catalogue.view(request.name, request.version)
        except (NotFound, Unavailable):
            return oip_pb2.ModelReadyResponse(ready=False)
        return oip_pb2.ModelReadyResponse(ready=view.info.ready)

    async def ServerMetadata(
        self, request: oip_pb2.ServerMetadataRequest, context: Context
    ) -> oip_pb2.ServerMetadataResponse:
        """Name, version and the protocol extensions that work here."""
        return oip_pb2.ServerMetadataResponse(
            name=SERVER_NAME, version=self._version, extensions=EXTENSIONS
        )

    async def ModelMetadata(
        self, request: oip_pb2.ModelMetadataRequest, context: Context
    ) -> oip_pb2.ModelMetadataResponse:
        """Inputs and outputs of a model."""
        return metadata(self._catalogue.view(request.name, request.version))

    async def ModelConfig(
        self, request: oip_pb2.ModelConfigRequest, context: Context
    ) -> oip_pb2.ModelConfigResponse:
        """Configuration of a model, with the live workers as instances."""
        view = self._catalogue.view(request.name, request.version)
        membership = self._registry.membership(view.info.name)
        instances = len(membership.workers) if membership is not None else 0
        return oip_pb2.ModelConfigResponse(config=configuration(view, instances))

    async def ModelStatistics(
        self, request: oip_pb2.ModelStatisticsRequest, context: Context
    ) -> oip_pb2.ModelStatisticsResponse:
        """Counters of one model, or of all."""
        views: Iterable[ModelView] = (
            (self._catalogue.view(request.name, request.version),)
            if request.name
            else self._catalogue.views()
        )
        return oip_pb2.ModelStatisticsResponse(
            model_stats=[statistics(view.counters) for view in views]
        )

    async def RepositoryIndex(
        self, request: oip_pb2.RepositoryIndexRequest, context: Context
    ) -> oip_pb2.RepositoryIndexResponse:
        """Models that are loaded, and without `ready` those that could be."""
        _check_repository(request.repository_name)
        entries = [index_entry(view) for view in self._catalogue.views()]
        if request.ready:
            entries = [entry for entry in entries if entry.state == "READY"]
        else:
            await self._repository.look()
            loaded = {entry.name for entry in entries}
            entries += [
                oip_pb2.RepositoryIndexResponse.ModelIndex(
                    name=name, state="UNAVAILABLE", reason="not loaded"
                )
                for name in sorted(set(self._repository.available()) - loaded)
            ]
        return oip_pb2.RepositoryIndexResponse(models=entries)

    async def RepositoryModelLoad(
        self, request: oip_pb2.RepositoryModelLoadRequest, context: Context
    ) -> oip_pb2.RepositoryModelLoadResponse:
        """Load a model on the workers; answers when it is ready."""
        _check_repository(request.repository_name)
        for name in request.parameters:
            raise InvalidRequest(
                f"parameter {shown(name)} is not accepted: a model is loaded as its manifest says"
            )
        await self._repository.load(request.model_name)
        return oip_pb2.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(
        self, request: oip_pb2.RepositoryModelUnloadRequest, context: Context
    ) -> oip_pb2.RepositoryModelUnloadResponse:
        """Take a model off the workers."""
        _check_repository(request.repository_name)
        self._catalogue.view(request.model_name)
        await self._repository.unload(request.model_name)
        return oip_pb2.RepositoryModelUnloadResponse()

    async def SystemSharedMemoryStatus(
        self, request: oip_pb2.SystemSharedMemoryStatusRequest, context: Context
    ) -> oip_pb2.SystemSharedMemoryStatusResponse:
        """No region is ever registered."""
        _check_no_region(request.name)
        return oip_pb2.SystemSharedMemoryStatusResponse()

    async def SystemSharedMemoryUnregister(
        self, request: oip_pb2.SystemSharedMemoryUnregisterRequest, context: Context
    ) -> oip_pb2.SystemSharedMemoryUnregisterResponse:
        """Clients unregister blindly before they start; there is nothing to do."""
        return oip_pb2.SystemSharedMemoryUnregisterResponse()

    async def CudaSharedMemoryStatus(
        self, request: oip_pb2.CudaSharedMemoryStatusRequest, context: Context
    ) -> oip_pb2.CudaSharedMemoryStatusResponse:
        """No region is ever registered."""
        _check_no_region(request.name)
        return oip_pb2.CudaSharedMemoryStatusResponse()

    async def CudaSharedMemoryUnregister(
        self, request: oip_pb2.CudaSharedMemoryUnregisterRequest, context: Context
    ) -> oip_pb2.CudaSharedMemoryUnregisterResponse:
        """Clients unregister blindly before they start; there is nothing to do."""
        return oip_pb2.CudaSharedMemoryUnregisterResponse()

    SystemSharedMemoryRegister = unimplemented(_NO_SHARED_MEMORY)
    CudaSharedMemoryRegister = unimplemented(_NO_SHARED_MEMORY)
    TraceSetting = unimplemented(_STATIC_SETTINGS.format("trace setting"))
    LogSettings = unimplemented(_STATIC_SETTINGS.format("log setting"))


def _check_repository(name: str) -> None:
    if name:
        raise NotFound(f"no repository {shown(name)} here; accepted: the empty name")


def _check_no_region(name: str) -> None:
    if name:
        raise NotFound(f"no shared memory region {shown(name)} is registered")
