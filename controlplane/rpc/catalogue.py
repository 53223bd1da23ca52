"""What the front doors may be asked: each model's accepted names, ready for look-up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from controlplane.errors import InvalidRequest, NotFound, Unavailable
from controlplane.policy.records import RequestClass
from controlplane.registry import ModelInfo, Registry, TensorSpec
from controlplane.rpc.statistics import ModelCounters, Statistics
from controlplane.rpc.status import listed, shown

# About what a worker that was started again needs to be back.
_RETRY_AFTER_MS = 1000


@dataclass(frozen=True, slots=True)
class ModelView:
    """A model as requests are checked against it.

    `tokenizers` maps each tokenizer to the longest sequence, in tokens, that any of its
    variants takes (0: no bound); it is empty for models of plain tensors, whose inputs
    are `inputs` and for which `takes_text` is false. `outputs` are the outputs that every
    variant gives. `classes` remembers requirements that were checked before.
    """

    info: ModelInfo
    counters: ModelCounters
    variants: frozenset[str]
    tokenizers: Mapping[str, int]
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    takes_text: bool
    classes: dict[tuple[object, ...], RequestClass]

    def require_variant(self, name: str) -> None:
        """NotFound when the model has no such variant."""
        if name not in self.variants:
            raise NotFound(
                f"model {shown(self.info.name)} has no variant {shown(name)}; "
                f"variants: {listed(self.variants)}"
            )

    def require_inputs(self) -> None:
        """InvalidRequest when the model has an API of its own, Unavailable when none can read it.

        What no worker could read has no variants, and nothing is known of it.
        """
        if self.info.generates:
            raise InvalidRequest(
                f"model {shown(self.info.name)} generates text, which takes "
                "orchid.v1.Inference/Generate, POST /v1/chat/completions or, on the command line, "
                "orchid generate"
            )
        if not self.variants:
            raise Unavailable(
                f"model {shown(self.info.name)} is {self.info.state.value}: {self.info.failure}",
                _RETRY_AFTER_MS,
            )

    def tokenizer(self, name: str) -> str:
        """The tokenizer that `name` means, the default one when empty; else NotFound."""
        if not name:
            return self.info.default_tokenizer or next(iter(self.tokenizers))
        if name not in self.tokenizers:
            raise NotFound(
                f"model {shown(self.info.name)} has no tokenizer {shown(name)}; "
                f"tokenizers: {listed(self.tokenizers)}"
            )
        return name


class Catalogue:
    """Views of the registry's models, built again only when a model changed."""

    def __init__(self, registry: Registry, statistics: Statistics) -> None:
        self._registry = registry
        self._statistics = statistics
        self._views: dict[str, ModelView] = {}

    def view(self, name: str, version: str = "") -> ModelView:
        """The model called `name`; NotFound when it, or its version, is not here.

        Raises Unavailable while a worker that has it may yet come.
        """
        membership = self._registry.membership(name)
        if membership is None:
            models = listed(model.name for model in self._registry.models())
            if not name:
                raise InvalidRequest(f"the model name is empty; models: {models}")
            if self._registry.expects(name):
                raise Unavailable(f"no worker serves model {shown(name)} now", _RETRY_AFTER_MS)
            hint = ""
            if any(name in session.available for session in self._registry.workers()):
                hint = (
                    "; it is in a repository: `orchid models load` or RepositoryModelLoad loads it"
                )
            raise NotFound(f"no model {shown(name)} here; models: {models}{hint}")
        info = membership.model
        view = self._views.get(name)
        if view is None or view.info is not info:
            view = self._views[name] = view_of(info, self._statistics.counters)
        if version and version != info.version:
            raise NotFound(
                f"model {shown(name)} has no version {shown(version)}; "
                f"versions: {shown(info.version)}"
            )
        return view

    def views(self) -> tuple[ModelView, ...]:
        """Every model, by name."""
        return tuple(self.view(info.name) for info in self._registry.models())


def view_of(info: ModelInfo, counters: Callable[[str, str], ModelCounters]) -> ModelView:
    """The view of one model; `counters` gives the counters of a name and version."""
    tokenizers: dict[str, int] = {}
    for variant in info.variants:
        if variant.tokenizer:
            known = tokenizers.get(variant.tokenizer)
            unbounded = variant.max_tokens == 0 or known == 0
            longest = 0 if unbounded else max(known or 0, variant.max_tokens)
            tokenizers[variant.tokenizer] = longest
    shared = [frozenset(spec.name for spec in variant.outputs) for variant in info.variants]
    common = frozenset.intersection(*shared) if shared else frozenset()
    return ModelView(
        info=info,
        counters=counters(info.name, info.version),
        variants=frozenset(variant.name for variant in info.variants),
        tokenizers=tokenizers,
        inputs={spec.name: spec for v in info.variants[:1] for spec in v.inputs},
        outputs={
            spec.name: spec for v in info.variants[:1] for spec in v.outputs if spec.name in common
        },
        takes_text=bool(tokenizers),
        classes={},
    )
