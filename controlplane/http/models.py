"""GET /v1/models and /health: what can be asked, and whether it can be asked now."""

from __future__ import annotations

from pydantic_core import to_json

from controlplane.http.asks import find
from controlplane.http.calls import Answer, Call
from controlplane.registry import ModelInfo, Registry
from controlplane.rpc.catalogue import Catalogue

OWNER = "orchid"


class Models:
    """Lists models and tells of the process's health.

    `created_s` dates every model: the wall clock, in seconds, when the process started.
    """

    def __init__(self, catalogue: Catalogue, registry: Registry, created_s: int) -> None:
        self._catalogue = catalogue
        self._registry = registry
        self._created_s = created_s
        self._draining = False

    def drain(self) -> None:
        """The process is going down: send callers elsewhere."""
        self._draining = True

    def ready(self) -> bool:
        """Whether any model can be asked now."""
        return not self._draining and any(info.ready for info in self._registry.models())

    async def index(self, call: Call, raw: bytes, answer: Answer) -> None:
        """Every model, ready or not."""
        models = [self._document(info) for info in self._registry.models()]
        await answer.whole(to_json({"object": "list", "data": models}))

    async def one(self, call: Call, raw: bytes, answer: Answer) -> None:
        """The model that the path names; raises ModelNotFound."""
        view = find(self._catalogue, call.path_params["model"])
        await answer.whole(to_json(self._document(view.info)))

    async def live(self, call: Call, raw: bytes, answer: Answer) -> None:
        """That the process answers."""
        await answer.whole(to_json({"status": "live"}))

    async def health(self, call: Call, raw: bytes, answer: Answer) -> None:
        """Whether any model can be asked now, and the state of each; 503 when none can."""
        models = self._registry.models()
        ready = self.ready()
        status = "draining" if self._draining else "ready" if ready else "not ready"
        document = {
            "status": status,
            "models": {
                info.name: {"state": info.state.value, "progress": round(info.progress, 3)}
                for info in models
            },
        }
        await answer.whole(to_json(document), status=200 if ready else 503)

    def _document(self, info: ModelInfo) -> dict[str, object]:
        # Also under the name by which clients of vLLM look for it.
        context = {}
        if info.generation is not None:
            context = dict.fromkeys(("context", "max_model_len"), info.generation.context)
        return {
            "id": info.name,
            "object": "model",
            "created": self._created_s,
            "owned_by": OWNER,
            "task": info.task,
            "state": info.state.value,
            "version": info.version,
            "manifest_digest": info.manifest_digest,
            "variants": [variant.name for variant in info.variants if variant.ready],
            **context,
        }
