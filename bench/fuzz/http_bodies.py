"""Bodies of the HTTP door, read as it reads them; the only part that needs its packages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.fuzz.house import House
from controlplane.errors import ControlPlaneError
from controlplane.generation.checks import check_ask
from controlplane.http.calls import Call, Settings
from controlplane.http.embeddings import Embeddings
from controlplane.http.fields import ChatBody, CompletionBody, Reader
from controlplane.http.large_bodies import LargeBodies
from controlplane.http.oip_request import HEADER_LENGTH, InferReader, asked, json_bytes
from controlplane.http.problems import INTERNAL, problem_of
from controlplane.http.prompts import chat_ask, completion_asks

_NOW = 1


@contextmanager
def _told() -> Iterator[None]:
    """An error must have a problem that says it; raises AssertionError otherwise."""
    try:
        yield
    except ControlPlaneError as error:
        if problem_of(error) is INTERNAL:
            raise AssertionError(f"{type(error).__name__} is answered as INTERNAL") from error
        raise


class Bodies:
    """Bodies, with a deadline header taken from their end."""

    def __init__(self, here: House) -> None:
        self._here = here
        self._settings = Settings(
            max_body=1 << 26,
            body_timeout_s=1.0,
            now_ns=lambda: _NOW,
            wall_s=lambda: _NOW,
            new_id=lambda: "id",
        )
        self._chat, self._completion = Reader(ChatBody), Reader(CompletionBody)
        self._embeddings = Embeddings(
            here.config, here.intake, here.catalogue, LargeBodies(lambda: _NOW)
        )
        self._infer = InferReader()

    def chat(self, data: bytes) -> None:
        """POST /v1/chat/completions."""
        with _told():
            body = self._chat.read(data)
            check_ask(chat_ask(self._call(data), body, self._here.config), self._writer())

    def completion(self, data: bytes) -> None:
        """POST /v1/completions."""
        with _told():
            body = self._completion.read(data)
            for ask in completion_asks(self._call(data), body, self._here.config):
                check_ask(ask, self._writer())

    def embedding(self, data: bytes) -> None:
        """POST /v1/embeddings."""
        with _told():
            body, content = self._embeddings.read(data)
            view = self._here.catalogue.view("vectors")
            ask = self._embeddings.ask(self._call(data), body, content, view)
            self._here.intake.request_now(ask, _NOW, _NOW + 1_000_000_000, None)

    def infer(self, data: bytes) -> None:
        """POST /v2/models/NAME/infer; what follows the last brace are bytes of tensors."""
        named = b'"text"' in data or b'"input_ids"' in data
        model = "tiny" if named else "adder" if b'"a"' in data else "echo"
        size = data.rfind(b"}") + 1
        call = self._call(data, size if size < len(data) else 0)
        with _told():
            body, tensors = self._infer.read(data, json_bytes(call, data))
            ask, _ = asked(call, body, tensors, self._here.catalogue.view(model))
            self._here.intake.request_now(ask, _NOW, _NOW + 1_000_000_000, None)

    def _writer(self) -> Any:
        return self._here.catalogue.view("writer").info

    def _call(self, data: bytes, json_bytes: int = 0) -> Call:
        headers = [(b"x-orchid-deadline-ms", data[-4:])] if len(data) % 3 == 0 else []
        if json_bytes:
            headers.append((HEADER_LENGTH.encode(), str(json_bytes).encode()))

        async def receive() -> Any:
            raise NotImplementedError

        return Call({"type": "http", "headers": headers}, receive, self._settings)
