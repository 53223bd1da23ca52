"""POST /v1/embeddings: the encoder lane as OpenAI's clients ask it."""

from __future__ import annotations

import base64
from array import array
from dataclasses import replace

import numpy as np
from pydantic_core import to_json

from controlplane.config import ControlPlaneConfig
from controlplane.errors import WorkerFault
from controlplane.http.asks import class_of, deadline_of, find, provenance_headers
from controlplane.http.calls import Answer as Sent
from controlplane.http.calls import Call
from controlplane.http.fields import EmbeddingsBody, Reader, content_list
from controlplane.http.large_bodies import LargeBodies
from controlplane.http.problems import InvalidField
from controlplane.policy.records import Answer, TensorValue
from controlplane.rpc.asks import LIMITS, Ask, TokenRows, check_texts, token_ask
from controlplane.rpc.catalogue import Catalogue, ModelView
from controlplane.rpc.convert import STRING, array_of
from controlplane.rpc.intake import Intake
from controlplane.wording import listed, shown

EMBEDDING = "embedding"
_FORMATS = ("float", "base64")

# Texts, or token ids.
Content = tuple[str, ...] | TokenRows


class Embeddings:
    """Turns texts and token ids into vectors."""

    def __init__(
        self,
        config: ControlPlaneConfig,
        intake: Intake,
        catalogue: Catalogue,
        bodies: LargeBodies,
    ) -> None:
        self._config = config
        self._bodies = bodies
        self._intake = intake
        self._catalogue = catalogue
        self._reader = Reader(EmbeddingsBody)

    async def create(self, call: Call, raw: bytes, sent: Sent) -> None:
        """Answer one call; raises ControlPlaneError."""
        at_ns = call.now_ns
        body, content = await self._bodies.read(len(raw), lambda: self.read(raw))
        view = find(self._catalogue, body.model)
        try:
            ask = self.ask(call, body, content, view)
            answer = await self._intake.answer(ask, at_ns, call)
            answered_ns = call.now_ns
            document = write(answer, view, packed=body.encoding_format == "base64")
            await sent.whole(document, _headers(answer))
        except BaseException:
            view.counters.failed(call.now_ns - at_ns)
            raise
        view.counters.succeeded(answer.outcome, call.now_ns - answered_ns)

    def read(self, raw: bytes) -> tuple[EmbeddingsBody, Content]:
        """A body without its input, and that; raises InvalidRequest. Safe on any thread."""
        body: EmbeddingsBody = self._reader.read(raw)
        content = content_list("input", body.input, LIMITS.items)
        body = replace(body, input=None)
        if isinstance(content[0], str):
            check_texts(content)
            return body, content
        lengths = tuple([len(row) for row in content])
        ids = array("i", [each for row in content for each in row])
        return body, TokenRows(ids.tobytes(), lengths, max(ids, default=-1))

    def ask(self, call: Call, body: EmbeddingsBody, content: Content, view: ModelView) -> Ask:
        """What a body asks for; raises ControlPlaneError."""
        info = view.info
        if info.task != EMBEDDING:
            names = [v.info.name for v in self._catalogue.views() if v.info.task == EMBEDDING]
            raise InvalidField(
                "model",
                f"model {shown(info.name)} is for {info.task}; models for embeddings: "
                f"{listed(names)}",
            )
        view.require_inputs()
        if body.encoding_format not in (None, *_FORMATS):
            raise InvalidField(
                "encoding_format",
                f"is {shown(body.encoding_format or '')}; accepted: {listed(_FORMATS)}",
            )
        size = _dimensions(view)
        if body.dimensions is not None and size > 0 and body.dimensions != size:
            raise InvalidField(
                "dimensions", f"is {body.dimensions}; model {shown(info.name)} gives {size}"
            )
        klass = class_of(call, body, view)
        deadline = deadline_of(call, body, self._config.deadline_ms(klass.name, 0))
        if isinstance(content, TokenRows):
            return token_ask(view, klass, deadline, tokenizer=view.tokenizer(""), rows=content)
        return Ask(view, klass, deadline, texts=content)


def _dimensions(view: ModelView) -> int:
    """Length of the model's vectors, -1 when it is not declared."""
    spec = view.outputs.get(view.info.primary_output)
    return spec.shape[-1] if spec is not None and spec.shape else -1


def write(answer: Answer, view: ModelView, *, packed: bool) -> bytes:
    """The answer's vectors, as numbers or as `packed` little-endian float32 in base64."""
    rows = _vectors(answer, view.info.primary_output)
    data: list[dict[str, object]] = []
    for index in range(len(rows)):
        row = rows[index]
        value = base64.b64encode(row.tobytes()).decode() if packed else row.tolist()
        data.append({"object": "embedding", "index": index, "embedding": value})
    tokens = answer.outcome.input_tokens
    document = {
        "object": "list",
        "data": data,
        "model": view.info.name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return to_json(document)


def _headers(answer: Answer) -> dict[str, str]:
    outcome = answer.outcome
    return provenance_headers(
        answer.provenance,
        queue_ms=f"{outcome.queue_ns / 1e6:.3f}",
        execute_ms=f"{outcome.execute_ns / 1e6:.3f}",
        charged_cpu_us=outcome.charged_cpu_ns // 1000,
    )


def _vectors(answer: Answer, name: str) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    tensor = _output(answer, name)
    rows = array_of(tensor).reshape(tensor.shape[0], -1).astype("<f4", copy=False)
    if not np.isfinite(rows).all():
        raise WorkerFault("an embedding holds numbers that are not finite")
    return rows


def _output(answer: Answer, name: str) -> TensorValue:
    for tensor in answer.outputs:
        if tensor.name == name and tensor.dtype != STRING and len(tensor.shape) > 1:
            return tensor
    raise WorkerFault(f"the answer holds no vectors called {shown(name)}")
