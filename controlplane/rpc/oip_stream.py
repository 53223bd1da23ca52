"""ModelStreamInfer: requests of the Open Inference Protocol on one stream."""

from __future__ import annotations

from controlplane.policy.records import Answer
from controlplane.rpc.asks import Ask
from controlplane.rpc.catalogue import Catalogue
from controlplane.rpc.oip_message import InferMessage, Wanted, whole
from controlplane.rpc.oip_request import read_message
from controlplane.rpc.oip_response import OipWriter, write_stream_error
from controlplane.rpc.status import Status
from protos.inference.oip_pb2 import ModelInferRequest, ModelStreamInferResponse


class OipDialect:
    """Reads and writes the messages of ModelStreamInfer."""

    def __init__(self, catalogue: Catalogue, writer: OipWriter) -> None:
        self._catalogue = catalogue
        self._writer = writer

    def identify(self, message: InferMessage | ModelInferRequest) -> str:
        """The id that the answer echoes."""
        return message.id

    def open(self, message: InferMessage | ModelInferRequest) -> tuple[Ask, Wanted]:
        """Check a request; raises ControlPlaneError."""
        if not isinstance(message, InferMessage):
            message = whole(message)
        view = self._catalogue.view(message.head.model, message.head.version)
        return read_message(message, view)

    def answered(
        self, answer: Answer, request_id: str, extra: Wanted
    ) -> ModelStreamInferResponse | bytes:
        """The answer with its id and the mark that nothing follows it."""
        return self._writer.streamed(answer, request_id, extra)

    def failed(self, status: Status, request_id: str) -> ModelStreamInferResponse:
        """The reason with the id; the stream goes on."""
        return write_stream_error(status, request_id)
