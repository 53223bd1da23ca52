"""What `orchid infer` tells of a call that its own clock ended."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import grpc
import pytest

from deploy import ask as ask_module
from deploy.ask import Question, ask
from deploy.interceptors import CallSpan
from protos.orchid.v1 import inference_pb2, inference_pb2_grpc


class NoSpans:
    """Records nothing."""

    def begin(self, method: str) -> CallSpan | None:
        return None


class Mute(inference_pb2_grpc.InferenceServicer):
    """A control plane that is asked and does not answer."""

    def __init__(self) -> None:
        self.deadlines: list[int] = []
        self.over = threading.Event()

    def Infer(
        self, request: inference_pb2.InferRequest, context: grpc.ServicerContext
    ) -> inference_pb2.InferResponse:
        self.deadlines.append(request.deadline_ms)
        self.over.wait(30.0)
        return inference_pb2.InferResponse()

    def StreamInfer(self, request_iterator: object, context: grpc.ServicerContext) -> NoReturn:
        raise NotImplementedError

    def Generate(self, request: object, context: grpc.ServicerContext) -> NoReturn:
        raise NotImplementedError


def test_a_deadline_is_told_and_silence_beyond_it_is_called_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ask_module, "_SPARE_S", 1.0)
    mute = Mute()
    server = grpc.server(ThreadPoolExecutor(1))
    inference_pb2_grpc.add_InferenceServicer_to_server(mute, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        (reply,) = ask(f"127.0.0.1:{port}", Question("m", deadline_ms=250), ["x"], NoSpans())
    finally:
        mute.over.set()
        server.stop(None).wait()
    assert reply.code == "DEADLINE_EXCEEDED"
    assert reply.error == "the control plane said nothing within 1.25 s"
    assert mute.deadlines == [250]
