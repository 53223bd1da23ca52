"""Models and the server as the Open Inference Protocol tells of them over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from controlplane.errors import ControlPlaneError
from controlplane.http.calls import Answer, Call
from controlplane.http.fields import Reader
from controlplane.http.problems import InvalidField
from controlplane.registry import Registry
from controlplane.rpc.catalogue import Catalogue, ModelView
from controlplane.rpc.oip import Repository
from controlplane.rpc.oip_describe import (
    EXTENSIONS,
    PLATFORM,
    SERVER_NAME,
    Described,
    configuration_document,
    inputs_of,
    outputs_of,
    standing,
)
from controlplane.rpc.statistics import BatchCounters, Duration, ModelCounters
from controlplane.rpc.status import status_of
from controlplane.wording import shown
from protos.audit import Audit


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexBody:
    """POST /v2/repository/index."""

    ready: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBody:
    """POST /v2/repository/models/NAME/load."""

    parameters: dict[str, Any] | None = None


class InferenceModels:
    """Tells of the server and its models, loads and unloads them.

    `ready` says whether any model can be asked now.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        registry: Registry,
        repository: Repository,
        *,
        version: str,
        ready: Callable[[], bool],
        audit: Audit | None,
    ) -> None:
        self._catalogue = catalogue
        self._registry = registry
        self._repository = repository
        self._version = version
        self._ready = ready
        self._audit = audit
        self._index, self._load = Reader(IndexBody), Reader(LoadBody)

    async def server(self, call: Call, raw: bytes, answer: Answer) -> None:
        """Name, version and the protocol extensions that work here."""
        document = {"name": SERVER_NAME, "version": self._version, "extensions": EXTENSIONS}
        await answer.whole(to_json(document))

    async def live(self, call: Call, raw: bytes, answer: Answer) -> None:
        """That the process answers."""
        await answer.whole(to_json({"live": True}))

    async def server_ready(self, call: Call, raw: bytes, answer: Answer) -> None:
        """Whether any model can be asked now; 503 when none can."""
        await _said_ready(answer, self._ready())

    async def model_ready(self, call: Call, raw: bytes, answer: Answer) -> None:
        """Whether the model can be asked now; 503 when it cannot."""
        view = self._view(call)
        await _said_ready(answer, view.info.ready, name=view.info.name)

    async def metadata(self, call: Call, raw: bytes, answer: Answer) -> None:
        """Inputs and outputs of the model."""
        view = self._view(call)
        document = {
            "name": view.info.name,
            "versions": [view.info.version],
            "platform": PLATFORM,
            "inputs": _tensors(inputs_of(view)),
            "outputs": _tensors(outputs_of(view)),
        }
        await answer.whole(to_json(document))

    async def configuration(self, call: Call, raw: bytes, answer: Answer) -> None:
        """Configuration of the model, with the live workers as instances."""
        view = self._view(call)
        membership = self._registry.membership(view.info.name)
        instances = len(membership.workers) if membership is not None else 0
        await answer.whole(to_json(configuration_document(view, instances)))

    async def statistics(self, call: Call, raw: bytes, answer: Answer) -> None:
        """Counters of the model that the path names, or of all."""
        views = [self._view(call)] if "model" in call.path_params else self._catalogue.views()
        document = {"model_stats": [_statistics(view.counters) for view in views]}
        await answer.whole(to_json(document))

    async def index(self, call: Call, raw: bytes, answer: Answer) -> None:
        """Models that are loaded, and without `ready` those that could be."""
        body: IndexBody = self._index.read(raw or b"{}")
        entries = [_entry(view) for view in self._catalogue.views()]
        if body.ready:
            entries = [entry for entry in entries if entry["state"] == "READY"]
        else:
            await self._repository.look()
            loaded = {entry["name"] for entry in entries}
            entries += [
                {"name": name, "version": "", "state": "UNAVAILABLE", "reason": "not loaded"}
                for name in sorted(set(self._repository.available()) - loaded)
            ]
        await answer.whole(to_json(entries))

    async def load(self, call: Call, raw: bytes, answer: Answer) -> None:
        """Load the model on the workers; answers when it is ready."""
        name = call.path_params["model"]

        async def load() -> None:
            body: LoadBody = self._load.read(raw or b"{}")
            for parameter in body.parameters or ():
                raise InvalidField(
                    "parameters",
                    f"{shown(parameter)} is not accepted: a model is loaded as its manifest says",
                )
            await self._repository.load(name)

        await self._operate("model.load", call, name, load())
        await answer.whole(b"{}")

    async def unload(self, call: Call, raw: bytes, answer: Answer) -> None:
        """Take the model off the workers."""
        name = call.path_params["model"]

        async def unload() -> None:
            self._catalogue.view(name)
            await self._repository.unload(name)

        await self._operate("model.unload", call, name, unload())
        await answer.whole(b"{}")

    async def _operate(self, event: str, call: Call, model: str, action: Awaitable[None]) -> None:
        """Does it, and leaves an audit line with the outcome as gRPC would name it."""
        outcome = "failed"
        try:
            await action
            outcome = "ok"
        except ControlPlaneError as error:
            outcome = status_of(error).code.name.lower()
            raise
        finally:
            if self._audit is not None:
                who = call.identity.name if call.identity is not None else ""
                self._audit.record(event, who=who, outcome=outcome, model=model, peer=call.peer)

    def _view(self, call: Call) -> ModelView:
        names = call.path_params
        return self._catalogue.view(names["model"], names.get("version", ""))


async def _said_ready(answer: Answer, ready: bool, **more: str) -> None:
    await answer.whole(to_json({**more, "ready": ready}), status=200 if ready else 503)


def _entry(view: ModelView) -> dict[str, str]:
    state, reason = standing(view)
    return {
        "name": view.info.name,
        "version": view.info.version,
        "state": state,
        "reason": reason,
    }


def _tensors(tensors: Iterable[Described]) -> list[dict[str, object]]:
    return [
        {"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape in tensors
    ]


def _statistics(counters: ModelCounters) -> dict[str, object]:
    """A model's counters since the process started, as Triton's clients know them."""
    return {
        "name": counters.name,
        "version": counters.version,
        "last_inference": counters.last_inference_ms,
        "inference_count": counters.inferences,
        "execution_count": counters.executions,
        "inference_stats": {
            "success": _duration(counters.success),
            "fail": _duration(counters.fail),
            "queue": _duration(counters.queue),
            "compute_input": _duration(counters.compute_input),
            "compute_infer": _duration(counters.compute_infer),
            "compute_output": _duration(counters.compute_output),
            # No answer is ever given twice.
            "cache_hit": _duration(Duration()),
            "cache_miss": _duration(Duration()),
        },
        "batch_stats": [_batch(counters.batches[size]) for size in sorted(counters.batches)],
    }


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}


def _batch(batch: BatchCounters) -> dict[str, object]:
    """Runs of one batch size; a run's time is the mean over its members."""

    def runs(ns: int) -> dict[str, int]:
        return {"count": batch.runs, "ns": ns // batch.size}

    return {
        "batch_size": batch.size,
        "compute_input": runs(batch.input_ns),
        "compute_infer": runs(batch.infer_ns),
        "compute_output": runs(batch.output_ns),
    }
