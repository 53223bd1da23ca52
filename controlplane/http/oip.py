"""The Open Inference Protocol over HTTP: inference as the clients of other servers ask for it."""

from __future__ import annotations

from controlplane.http.calls import Answer, Call
from controlplane.http.large_bodies import LargeBodies
from controlplane.http.oip_answer import write
from controlplane.http.oip_request import InferReader, asked, json_bytes
from controlplane.rpc.catalogue import Catalogue
from controlplane.rpc.intake import Intake


class Inference:
    """Answers POST /v2/models/NAME/infer."""

    def __init__(self, intake: Intake, catalogue: Catalogue, bodies: LargeBodies) -> None:
        self._intake = intake
        self._catalogue = catalogue
        self._bodies = bodies
        self._reader = InferReader()

    async def infer(self, call: Call, raw: bytes, sent: Answer) -> None:
        """Answer one call; raises ControlPlaneError."""
        at_ns = call.now_ns
        names = call.path_params
        view = self._catalogue.view(names["model"], names.get("version", ""))
        try:
            size = json_bytes(call, raw)
            body, tensors = await self._bodies.read(size, lambda: self._reader.read(raw, size))
            ask, form = asked(call, body, tensors, view)
            answer = await self._intake.answer(ask, at_ns, call)
            answered_ns = call.now_ns
            document, headers = write(answer, form)
            await sent.whole(document, headers)
        except BaseException:
            view.counters.failed(call.now_ns - at_ns)
            raise
        view.counters.succeeded(answer.outcome, call.now_ns - answered_ns)
