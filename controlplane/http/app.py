"""The routes of the HTTP front door."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from controlplane.errors import ControlPlaneError
from controlplane.http.calls import TRACEPARENT, Call, Endpoint, Handler, Settings
from controlplane.http.chat import Chat
from controlplane.http.completions import Completions
from controlplane.http.embeddings import Embeddings
from controlplane.http.models import Models
from controlplane.http.problems import NoRoute, WrongMethod, problem_of
from controlplane.security.guard import ANYBODY, INFER, READ
from controlplane.telemetry.timeline import GENERATION, REQUEST
from controlplane.wording import shown


@dataclass(frozen=True, slots=True)
class Handlers:
    """Whoever answers."""

    models: Models
    embeddings: Embeddings
    completions: Completions
    chat: Chat


def application(settings: Settings, handlers: Handlers) -> Starlette:
    """The ASGI application; everything it answers is JSON or server-sent events."""

    def reads(path: str, handler: Handler, span: str) -> Route:
        endpoint = Endpoint(path, handler, settings, accepted=INFER, reads=True, span=span)
        return Route(path, endpoint, methods=["POST"])

    def shows(path: str, handler: Handler, accepted: frozenset[str]) -> Route:
        return Route(path, Endpoint(path, handler, settings, accepted=accepted), methods=["GET"])

    async def refused(request: Request, error: Exception) -> Response:
        problem = problem_of(_refusal(request, error))
        call = Call(request.scope, request.receive, settings)
        _record(call, problem.status, settings)
        headers = {"x-request-id": call.id, "content-type": "application/json"}
        return Response(problem.body(), problem.status, {**headers, **problem.headers()})

    return Starlette(
        routes=[
            shows("/health", handlers.models.health, ANYBODY),
            shows("/health/live", handlers.models.live, ANYBODY),
            shows("/v1/models", handlers.models.index, READ),
            shows("/v1/models/{model:path}", handlers.models.one, READ),
            reads("/v1/completions", handlers.completions.create, GENERATION),
            reads("/v1/chat/completions", handlers.chat.create, GENERATION),
            reads("/v1/embeddings", handlers.embeddings.create, REQUEST),
        ],
        exception_handlers={HTTPException: refused},
    )


def _record(call: Call, status: int, settings: Settings) -> None:
    """A call that has no handler; its path is the caller's own text, and not recorded."""
    if settings.telemetry is None:
        return
    header = call.headers.get(TRACEPARENT, "")
    trace = settings.telemetry.begin("orchid.call", header, call.arrived_ns, head=False)
    if trace is not None:
        trace.attributes["http.response.status_code"] = status
        trace.failed("not-found")
        settings.telemetry.finish(trace, call.now_ns)


def _refusal(request: Request, error: Exception) -> ControlPlaneError:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {shown(request.url.path)}"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return WrongMethod(f"{what} is not supported; allowed: {allowed}", allowed)
    return NoRoute(f"{what} is not here; docs/openai-http.md lists what is")
