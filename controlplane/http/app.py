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
from controlplane.http.oip import Inference
from controlplane.http.oip_models import InferenceModels
from controlplane.http.problems import NoRoute, Problem, WrongMethod, problem_of
from controlplane.http.tokens import Tokens
from controlplane.security.guard import ANYBODY, INFER, OPERATE, READ
from controlplane.telemetry.timeline import GENERATION, REQUEST
from controlplane.wording import shown

_OIP = "/v2"
# What is looked for elsewhere, and where it is.
_OPENAI = ("/chat/completions", "/completions", "/embeddings", "/models")
_GENERATES = ("/generate", "/generate_stream")
_MOVED = {
    "/v1/responses": "conversations are POST /v1/chat/completions",
    "/metrics": "each process serves metrics on a port of its own, which `orchid status` shows",
}
_MODEL = "/v2/models/{model}"
_VERSION = "/v2/models/{model}/versions/{version}"


@dataclass(frozen=True, slots=True)
class Handlers:
    """Whoever answers."""

    models: Models
    embeddings: Embeddings
    completions: Completions
    chat: Chat
    tokens: Tokens
    inference: Inference
    served: InferenceModels


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
        body = problem.brief() if _is_oip(request) else problem.body()
        return Response(body, problem.status, {**headers, **problem.headers()})

    return Starlette(
        routes=[
            shows("/health", handlers.models.health, ANYBODY),
            shows("/health/live", handlers.models.live, ANYBODY),
            shows("/v1/models", handlers.models.index, READ),
            shows("/v1/models/{model:path}", handlers.models.one, READ),
            reads("/v1/completions", handlers.completions.create, GENERATION),
            reads("/v1/chat/completions", handlers.chat.create, GENERATION),
            reads("/v1/embeddings", handlers.embeddings.create, REQUEST),
            reads("/tokenize", handlers.tokens.create, ""),
            *_inference(settings, handlers),
        ],
        exception_handlers={HTTPException: refused},
    )


def _inference(settings: Settings, handlers: Handlers) -> list[Route]:
    """The routes of the Open Inference Protocol."""
    served = handlers.served

    def get(path: str, handler: Handler, accepted: frozenset[str] = READ) -> Route:
        endpoint = Endpoint(path, handler, settings, accepted=accepted, form=Problem.brief)
        return Route(path, endpoint, methods=["GET"])

    def post(path: str, handler: Handler, accepted: frozenset[str], span: str = "") -> Route:
        endpoint = Endpoint(
            path, handler, settings, accepted=accepted, reads=True, span=span, form=Problem.brief
        )
        return Route(path, endpoint, methods=["POST"])

    routes = [
        get(_OIP, served.server),
        get("/v2/health/live", served.live, ANYBODY),
        get("/v2/health/ready", served.server_ready, ANYBODY),
        # Before models, of which one would be called so.
        get("/v2/models/stats", served.statistics),
        post("/v2/repository/index", served.index, READ),
        post("/v2/repository/models/{model}/load", served.load, OPERATE),
        post("/v2/repository/models/{model}/unload", served.unload, OPERATE),
    ]
    for path in (_MODEL, _VERSION):
        routes += [
            get(path, served.metadata),
            get(f"{path}/ready", served.model_ready),
            get(f"{path}/config", served.configuration),
            get(f"{path}/stats", served.statistics),
            post(f"{path}/infer", handlers.inference.infer, INFER, REQUEST),
        ]
    return routes


def _is_oip(request: Request) -> bool:
    return f"{request.url.path}/".startswith(f"{_OIP}/")


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
    page = "docs/inference-http.md" if _is_oip(request) else "docs/openai-http.md"
    path = request.url.path
    hint = _MOVED.get(path, f"{page} lists what is")
    if path.endswith(_OPENAI):
        hint = "OpenAI's routes are below /v1, which a client's base URL ends with"
    if path.endswith(_GENERATES):
        hint = "text is generated by POST /v1/chat/completions and /v1/completions"
    return NoRoute(f"{what} is not here; {hint}")
