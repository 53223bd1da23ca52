"""Callers that keep a small cluster busy, in threads of their own."""

from __future__ import annotations

import threading
from types import TracebackType

import grpc

from protos.orchid.v1 import common_pb2, inference_pb2, inference_pb2_grpc

_TEXT = "the movie was good and the story moving"
# More than the most accurate variant carries, so that both answer and some are refused.
_CALLERS = 6


class Traffic:
    """`answered` and `refused` count what came of the calls so far."""

    def __init__(self, address: str, *, requests: str, generations: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)
        self._models = requests, generations
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.answered = 0
        self.failed = 0
        callers = [self._ask] * _CALLERS + [self._generate]
        self._threads = [threading.Thread(target=caller) for caller in callers]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """No more calls; may be repeated."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._channel.close()

    def _ask(self) -> None:
        request = inference_pb2.InferRequest(
            model=self._models[0],
            text=inference_pb2.TextInput(texts=[_TEXT]),
            request_class=inference_pb2.RequestClass(tenant="<b>tenant</b>"),
        )
        while not self._stopping.is_set():
            self._count(lambda: self._stub.Infer(request, timeout=0.08))

    def _generate(self) -> None:
        request = inference_pb2.GenerateRequest(
            model=self._models[1],
            text="once upon a time there was a page that showed everything " * 3,
            limits=common_pb2.GenerationLimits(max_tokens=200, ignore_end=True),
            first_token_target_ms=60_000,
            token_target_ms=60_000,
        )
        while not self._stopping.is_set():
            self._count(lambda: list(self._stub.Generate(request, timeout=30)))

    def _count(self, call: object) -> None:
        assert callable(call)
        try:
            call()
        except grpc.RpcError:
            with self._lock:
                self.failed += 1
            # What is refused at once would otherwise be asked again at once.
            self._stopping.wait(0.02)
        else:
            with self._lock:
                self.answered += 1
