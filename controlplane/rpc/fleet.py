"""The Fleet service: a worker's Register stream is its membership; the control plane dials back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import grpc

from controlplane.config import ControlPlaneConfig
from controlplane.dispatcher import Dispatcher
from controlplane.errors import Forbidden, InvalidRequest, Unauthenticated
from controlplane.generation.lanes import LAST_WORDS_S
from controlplane.generation.service import Generations
from controlplane.registry import Registry, WorkerLoad, WorkerSession
from controlplane.rpc.describing import Describer
from controlplane.rpc.fleet_status import StatusSource, status_response
from controlplane.rpc.memory import read_memory
from controlplane.rpc.services import Context, log_fault
from controlplane.rpc.wire import read_hello, read_load, read_models
from controlplane.rpc.worker_client import WorkerClient
from controlplane.watch import silence_limit_ns
from protos.exposure import check_peer
from protos.orchid.v1 import fleet_pb2
from protos.tls import Certificates

_log = logging.getLogger(__name__)

# Ids and addresses are in every log line about a worker.
_LONGEST_NAME = 256
# A worker that has not described itself then may register anew, to be dialled anew.
_TRIES = 8


class _Link:
    """What the control plane holds of one registered worker: its session and the way back."""

    def __init__(self, session: WorkerSession, client: WorkerClient) -> None:
        self.session = session
        self.client = client
        self.tasks: set[asyncio.Task[None]] = set()
        self.ended = asyncio.Event()
        self.described = False
        self.learning = False
        # How often it has told which models it has.
        self.reports = 0

    def spawn(self, task: asyncio.Task[None]) -> None:
        """Keep a task until it ends or the link does."""
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


class FleetServicer:
    """Implements `orchid.v1.Fleet`: feeds registry and dispatcher from the workers' streams.

    An encoder worker is a member while its Register stream and its Execute stream both
    stand; the end of either is the end of the session, and a worker that comes back gets a
    new one. A decode worker has a call for each generation instead of an Execute stream.
    Everything lives on the event loop.
    """

    def __init__(
        self,
        config: ControlPlaneConfig,
        registry: Registry,
        dispatcher: Dispatcher,
        generations: Generations,
        *,
        status: StatusSource,
        now_ns: Callable[[], int],
        certificates: Certificates | None = None,
        describer: Describer | None = None,
    ) -> None:
        self._config = config
        self._registry = registry
        self._dispatcher = dispatcher
        self._generations = generations
        self._lanes = generations.lanes
        self._status = status
        self._certificates = certificates
        self._describer = describer or Describer(registry, status.preprocessor)
        self._now_ns = now_ns
        self._links: dict[int, _Link] = {}

    def clients(self) -> tuple[tuple[WorkerSession, WorkerClient], ...]:
        """The live workers and the ways to them."""
        return tuple((link.session, link.client) for link in self._links.values())

    def close(self) -> None:
        """End every membership: this process is going down, the workers may look elsewhere."""
        for link in self._links.values():
            link.ended.set()

    async def Register(self, request: object, context: Context) -> None:
        """One worker's membership, from its hello to the end of either stream."""
        first = await context.read()
        if not isinstance(first, fleet_pb2.WorkerReport) or not first.HasField("hello"):
            raise InvalidRequest("the first report of a worker must be its hello")
        reason = _obstacle(first.hello) or self._exposed(first.hello) or self._rival(first.hello)
        if reason:
            await context.write(fleet_pb2.FleetDirective(reject=fleet_pb2.Reject(reason=reason)))
            return
        link = self._join(first.hello)
        welcome = fleet_pb2.Welcome(
            controlplane_id=self._status.controlplane_id,
            report_interval_ms=self._config.report_interval_ms,
        )
        streams = {
            asyncio.create_task(self._reports(link, context)),
            asyncio.create_task(self._serve(link)),
            asyncio.create_task(_until(link.ended)),
        }
        try:
            await context.write(fleet_pb2.FleetDirective(welcome=welcome))
            await asyncio.wait(streams, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._leave(link)
            for task in (*streams, *link.tasks):
                task.cancel()
            ends = await asyncio.gather(*streams, *link.tasks, return_exceptions=True)
            refusals = [end for end in ends if isinstance(end, Unauthenticated | Forbidden)]
            for end in ends:
                if isinstance(end, Exception) and end not in refusals:
                    log_fault(end)
            await link.client.close(LAST_WORDS_S if link.session.load.draining else None)
        if refusals:
            # It is no member any more, and is told why.
            raise refusals[0]

    async def GetStatus(
        self, request: fleet_pb2.GetStatusRequest, context: Context
    ) -> fleet_pb2.GetStatusResponse:
        """Workers, pools, counters and gauges as they are now; broken invariants are logged."""
        for violation in self._dispatcher.violations():
            _log.error("broken invariant: %s", violation)
        return status_response(
            self._status, self._registry, self._dispatcher, self._generations, self._now_ns()
        )

    def _exposed(self, hello: fleet_pb2.WorkerHello) -> str:
        """Why a worker must not be dialled by plain text, empty when it may or is not."""
        tls, insecure = self._config.tls.dials, self._config.insecure
        try:
            check_peer("worker", hello.address, encrypted=tls, insecure=insecure)
        except ValueError as error:
            return str(error)
        return ""

    def _rival(self, hello: fleet_pb2.WorkerHello) -> str:
        """Why a live worker keeps its id from another, empty when none does.

        A worker at the same address is the one that came back; one that has been silent
        for long enough is given up for it.
        """
        old = self._registry.session_of(hello.worker_id)
        if old is None or old.identity.address == hello.address:
            return ""
        limit_ns = silence_limit_ns(None, self._config.report_interval_ms, last=True)
        if self._now_ns() - old.heard_ns >= limit_ns:
            return ""
        return (
            f"worker id {hello.worker_id!r} belongs to the live worker at {old.identity.address}; "
            f"the one at {hello.address} needs a worker_id of its own"
        )

    def _join(self, hello: fleet_pb2.WorkerHello) -> _Link:
        identity = read_hello(hello)
        old = self._registry.session_of(identity.id)
        if old is not None:
            stale = self._links[old.number]
            self._leave(stale)
            stale.ended.set()
        session = self._registry.join(identity, self._now_ns())
        client = WorkerClient(
            identity.address,
            controlplane_id=self._status.controlplane_id,
            now_ns=self._now_ns,
            max_message_bytes=self._config.max_message_bytes,
            certificates=self._certificates,
        )
        link = self._links[session.number] = _Link(session, client)
        _log.info("worker %s registered from %s", identity.id, identity.address)
        return link

    def _leave(self, link: _Link) -> None:
        """Forget a worker; calling it again does nothing."""
        if self._links.pop(link.session.number, None) is None:
            return
        changed = self._registry.leave(link.session)
        self._dispatcher.detach(link.session)
        self._lanes.detach(link.session)
        self._dispatcher.refresh(changed)
        _log.info("worker %s left", link.session.identity.id)

    async def _reports(self, link: _Link, context: Context) -> None:
        while isinstance(report := await context.read(), fleet_pb2.WorkerReport):
            kind = report.WhichOneof("report")
            if kind == "load":
                self._heard(link.session, read_load(report.load))
            elif kind == "memory":
                link.session.memory = read_memory(report.memory)
                self._heard(link.session, None)
            elif kind == "models":
                changed = self._registry.report_models(
                    link.session, read_models(report.models.models)
                )
                link.reports += 1
                self._heard(link.session, None)
                self._dispatcher.refresh(changed)
                missing = self._registry.missing_tokenizers(link.session)
                if link.described and missing and not link.learning:
                    link.spawn(asyncio.create_task(self._learn(link)))

    async def _serve(self, link: _Link) -> None:
        """Dial back, learn what the worker has, then give it work until its stream ends."""
        session = link.session
        await self._learn(link, tries=_TRIES)
        if not link.described:
            return
        if session.identity.decodes:
            self._lanes.attach(session, link.client)
            await link.ended.wait()
            return
        try:
            await link.client.execute(
                opened=lambda: self._dispatcher.attach(session, link.client),
                heard=lambda load: self._heard(session, load),
                completed=lambda done: self._dispatcher.completed(session, done),
            )
        except grpc.aio.AioRpcError as error:
            _log.warning(
                "worker %s at %s: %s: %s",
                session.identity.id,
                session.identity.address,
                error.code().name,
                error.details(),
            )

    async def _learn(self, link: _Link, *, tries: int = 0) -> None:
        """Have a worker describe itself, again when it had more to tell meanwhile."""
        session, link.learning = link.session, True
        reports = -1
        while reports < 0 or (
            reports != link.reports and self._registry.missing_tokenizers(session)
        ):
            reports = link.reports
            description = await self._describer.describe(session, link.client, tries=tries)
            if description is None:
                break
            session.available = description.available
            link.described = True
            # A report that came meanwhile is newer than this description.
            if session.number in self._links and not link.reports:
                changed = self._registry.report_models(session, description.models)
                self._dispatcher.refresh(changed)
        link.learning = False

    def _heard(self, session: WorkerSession, load: WorkerLoad | None) -> None:
        if load is not None:
            self._registry.report_load(session, load, self._now_ns())
        if session.identity.decodes:
            self._lanes.heard(session)
            self._generations.overload.refresh(self._now_ns())
        else:
            self._dispatcher.heard(session)


def _obstacle(hello: fleet_pb2.WorkerHello) -> str:
    """Why a worker cannot be a member, empty when it can."""
    if not hello.worker_id or not hello.address:
        return "a worker's hello needs worker_id and address"
    if len(hello.worker_id) > _LONGEST_NAME or len(hello.address) > _LONGEST_NAME:
        return f"worker_id and address have at most {_LONGEST_NAME} characters"
    if hello.worker_class not in (
        fleet_pb2.WORKER_CLASS_ENCODER,
        fleet_pb2.WORKER_CLASS_DECODE,
        fleet_pb2.WORKER_CLASS_UNSPECIFIED,
    ):
        name = f"of class {hello.worker_class}"
        return f"this control plane knows no workers {name}, which {hello.worker_id!r} is"
    return ""


async def _until(event: asyncio.Event) -> None:
    await event.wait()
