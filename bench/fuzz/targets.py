"""What is fuzzed: each reader of bytes from outside, with valid messages to change.

A target reads a message as its process does. It may refuse it by a domain error of its own;
anything else it raises would be an INTERNAL, or the end of a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from bench.fuzz import mutate, seeds
from bench.fuzz.house import House, house
from controlplane.errors import ControlPlaneError
from controlplane.generation.checks import check_ask
from controlplane.rpc import native, oip_request
from controlplane.rpc.asks import Ask
from controlplane.rpc.generate import read_ask
from controlplane.rpc.generate_worker import read_event
from controlplane.rpc.status import INTERNAL, status_of
from controlplane.rpc.wire import read_done, read_hello, read_load, read_models
from controlplane.security.identities import IdentityFault, read_identities
from protos import codec
from protos.orchid.v1 import fleet_pb2, inference_pb2, worker_pb2
from worker.errors import WorkerError
from worker.models.errors import ModelError
from worker.models.external_data import external_files
from worker.models.manifest import read_manifest
from worker.rpc.convert import batch_from
from worker.rpc.generation import call_from

_NOW = 1


@dataclass(frozen=True, slots=True)
class Target:
    """`read` takes a message and returns, or raises one of `refusals`."""

    name: str
    seeds: tuple[bytes, ...]
    change: Callable[[mutate.Dice, Sequence[bytes]], bytes]
    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]


class Undecodable(Exception):
    """The bytes are no message of this kind; every process answers INVALID_ARGUMENT itself."""


def targets() -> tuple[Target, ...]:
    """Everything that is fuzzed."""
    here = house()
    callers = (Undecodable, ControlPlaneError)
    wire, text = mutate.protobuf, mutate.document
    return (
        Target("oip", seeds.oip(), wire, lambda d: _oip(here, d), callers),
        Target("native", seeds.native(), wire, lambda d: _native(here, d), callers),
        Target("generate", seeds.generate(), wire, lambda d: _generate(here, d), callers),
        *_http(),
        Target("worker-result", seeds.results(), wire, _results, callers),
        Target("worker-report", seeds.reports(), wire, _report, callers),
        Target("worker-event", seeds.events(), wire, _event, callers),
        Target("execute", seeds.executes(), wire, _execute, (Undecodable, WorkerError)),
        Target("generate-call", seeds.calls(), wire, _call, (Undecodable, WorkerError)),
        Target("manifest", seeds.manifests(), text, _manifest, (ModelError,)),
        Target("graph", seeds.graphs(), wire, external_files, (ValueError,)),
        Target("identities", seeds.identities(), mutate.raw, read_identities, (IdentityFault,)),
    )


def _http() -> tuple[Target, ...]:
    """The bodies of the HTTP door, where its packages are."""
    try:
        from bench.fuzz import http_bodies
    except ModuleNotFoundError:
        return ()
    callers = (ControlPlaneError,)
    bodies = http_bodies.Bodies(house())
    return (
        Target("http-chat", seeds.chats(), mutate.document, bodies.chat, callers),
        Target("http-completion", seeds.completions(), mutate.document, bodies.completion, callers),
        Target("http-embedding", seeds.embeddings(), mutate.document, bodies.embedding, callers),
        Target("http-infer", seeds.inferences(), mutate.document, bodies.infer, callers),
        Target("http-binary", seeds.binary_inferences(), mutate.raw, bodies.infer, callers),
    )


def _decoded(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise Undecodable from None


def _told(error: ControlPlaneError) -> None:
    """An error must have a status that says it; raises AssertionError otherwise."""
    if status_of(error) is INTERNAL:
        raise AssertionError(f"{type(error).__name__} is answered as INTERNAL") from error


def _asked(here: House, read: Callable[[], Ask]) -> None:
    try:
        ask = read()
        here.intake.request_now(ask, _NOW, _NOW + 1_000_000_000, None)
    except ControlPlaneError as error:
        _told(error)
        raise


def _oip(here: House, data: bytes) -> None:
    message = here.reader.read(data)
    if isinstance(message, codec.Undecodable):
        raise Undecodable

    def read() -> Ask:
        view = here.catalogue.view(message.head.model, message.head.version)
        return oip_request.read_message(message, view)[0]

    _asked(here, read)
    # Another request of the same head is read by what is known of it now.
    _asked(here, read)


def _native(here: House, data: bytes) -> None:
    message = _decoded(inference_pb2.InferRequest, data)
    _asked(here, lambda: native.read_infer(message, here.catalogue.view(message.model)))


def _generate(here: House, data: bytes) -> None:
    message = _decoded(inference_pb2.GenerateRequest, data)
    check_ask(read_ask(message), here.catalogue.view("writer").info)


def _results(data: bytes) -> None:
    message = _decoded(worker_pb2.ExecuteResponse, data)
    if message.HasField("load"):
        read_load(message.load)
    for result in message.results:
        read_done(result)


def _report(data: bytes) -> None:
    message = _decoded(fleet_pb2.WorkerReport, data)
    kind = message.WhichOneof("report")
    if kind == "hello":
        read_hello(message.hello)
    elif kind == "load":
        read_load(message.load)
    elif kind == "models":
        read_models(message.models.models)


def _event(data: bytes) -> None:
    read_event(_decoded(worker_pb2.GenerateEvent, data), "w1")


def _execute(data: bytes) -> None:
    for batch in _decoded(worker_pb2.ExecuteRequest, data).batches:
        batch_from(batch, _NOW)


def _call(data: bytes) -> None:
    call_from(_decoded(worker_pb2.GenerateCall, data), "q4", _NOW).sampling.check()


def _manifest(data: bytes) -> None:
    read_manifest(data, "manifest.json")
