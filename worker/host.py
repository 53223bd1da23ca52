"""The model host: finds models, loads and unloads them, knows which can serve, and runs them.

Loading happens on the caller's thread while the engine thread goes on serving; only
warm-up runs and the end of a session happen on the engine thread.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from worker.errors import ModelLoadError, WorkerError
from worker.execution import not_measured, run_items
from worker.hosted import (
    HostedModel,
    LoadedVariant,
    ModelSnapshot,
    ModelState,
    listed,
    variant_files,
)
from worker.jobs import Token
from worker.ledger import MemoryLedger
from worker.memory import MemoryRoom
from worker.model_kind import ModelKind
from worker.models.manifest import Manifest, Variant
from worker.records import Execution, Item
from worker.refusals import InsufficientMemory, NotFound, Unavailable
from worker.repository import ModelRepository, check_files, check_unchanged

log = logging.getLogger(__name__)

# Shares of a variant's progress: its session, then its warm-up.
_SESSION_SHARE = 0.3


class ModelHost:
    """Owns the models of one worker. Thread-safe; `run` is for the engine thread.

    `kind` loads what this class of worker serves, `ledger` accounts for what it takes, `take_peak`
    is as in `run_items`. `on_change` is called, on any thread, whenever a snapshot would differ.
    """

    def __init__(
        self,
        repository: Path,
        *,
        kind: ModelKind,
        memory: Callable[[], MemoryRoom],
        on_change: Callable[[], None],
        ledger: MemoryLedger | None = None,
        take_peak: Callable[[], int] = not_measured,
    ) -> None:
        self._repository = ModelRepository(repository)
        self._kind = kind
        self._memory = memory
        self._on_change = on_change
        self._ledger = ledger
        self._take_peak = take_peak
        # One load, warm-up or unload at a time; held for as long as that takes.
        self._changing = threading.Lock()
        # Guards the models; held for moments only.
        self._lock = threading.Lock()
        self._models: dict[str, HostedModel] = {}
        # Models of the repository that could not even be read, by name, and why.
        self._unreadable: dict[str, str] = {}
        # Replaced, never changed, so that they are read without the lock. A model that
        # unloads takes no new work but still runs what was accepted.
        self._runnable: Mapping[tuple[str, str], LoadedVariant] = {}
        self._admitting: Mapping[tuple[str, str], LoadedVariant] = {}

    def available_models(self) -> tuple[str, ...]:
        """Names of the repository's models, sorted."""
        return self._repository.names()

    def serves(self, name: str) -> bool:
        """Whether a model of the repository is for workers of this kind; unreadable ones are."""
        manifest = self._repository.peek(name)
        return manifest is None or not self._kind.refusal(manifest)

    def describe(self, names: Collection[str] = ()) -> tuple[ModelSnapshot, ...]:
        """Snapshots of the named models, or of all that are held; raises NotFound."""
        with self._lock:
            for name in names:
                self._held(name)
            chosen = names or sorted(self._models)
            return tuple(self._models[name].snapshot() for name in chosen)

    def unreadable(self) -> Mapping[str, str]:
        """Models of the repository whose manifest could not be loaded, and why."""
        with self._lock:
            return dict(self._unreadable)

    def admit(self, model: str, variant: str) -> LoadedVariant:
        """What will run a batch; raises NotFound or Unavailable when it cannot run now."""
        if (loaded := self._admitting.get((model, variant))) is None:
            raise self._why_not(model, variant)
        return loaded

    def any_variant(self, model: str) -> str:
        """A variant of a model, one that serves if there is any; empty for unknown models."""
        serving = (variant for name, variant in self._runnable if name == model)
        with self._lock:
            held = self._models.get(model)
            return next(serving, held.wanted[0].name if held is not None else "")

    def run(self, model: str, variant: str, items: Collection[Item], token: Token) -> Execution:
        """Runs items of one variant; one outcome each, in order.

        Raises NotFound, Unavailable, RunTerminated or EngineFault for all of them.
        """
        loaded = self._runnable.get((model, variant))
        if loaded is None:
            raise self._why_not(model, variant)
        return run_items(
            loaded.session, loaded.variant, loaded.vocabulary, items, token, self._take_peak
        )

    def load(self, name: str, variants: Sequence[str] = ()) -> ModelSnapshot:
        """Loads and warms the variants of a model that are not loaded yet; blocks meanwhile.

        A variant serves as soon as it is warm; one that fails does not keep others from
        loading. Raises NotFound, ModelLoadError or InsufficientMemory.
        """
        with self._changing:
            model, wanted = self._opened(name, variants)
            missing = [v for v in wanted if v.name not in model.loaded]
            failures: list[WorkerError] = []
            for number, variant in enumerate(missing):
                try:
                    self._load_variant(model, variant, number / len(missing), 1 / len(missing))
                except WorkerError as error:
                    failures.append(error)
                    log.error("model=%s variant=%s load failed: %s", name, variant.name, error)
            with self._update():
                model.state = ModelState.READY if model.loaded else ModelState.FAILED
                model.progress = 1.0
                model.failure = "; ".join(str(error) for error in failures)
            if failures:
                raise failures[0]
            if missing:
                log.info("model=%s ready variants=%d", name, len(model.loaded))
            return model.snapshot()

    def warm(self, name: str) -> ModelSnapshot:
        """Measures every loaded variant of a model again; it goes on serving. Raises NotFound."""
        with self._changing:
            with self._lock:
                model = self._held(name)
                loaded = list(model.loaded.values())
            share = 1 / max(len(loaded), 1)
            for number, variant in enumerate(loaded):
                measured = self._measure(model, variant, number * share, share, again=True)
                self._kind.serve(model, measured, again=True)
                with self._update():
                    # Unless it was lost meanwhile.
                    if variant.variant.name in model.loaded:
                        model.loaded[variant.variant.name] = measured
            self._advance(model, 1.0)
            return model.snapshot()

    def unload(self, name: str) -> None:
        """Refuses new work for a model, lets what was accepted finish, then lets it go.

        Blocks until then. Raises NotFound.
        """
        with self._changing:
            with self._update():
                model = self._held(name)
                model.state = ModelState.UNLOADING
            # Work accepted before the state changed is queued before this.
            self._kind.release(model, lambda: self._drop(name, model))
            log.info("model=%s unloaded", name)

    def lose(self, name: str, variant: str, reason: str) -> None:
        """Notes that a variant has broken down and serves no more; `load` loads it anew.

        For the engine thread, where sessions end. Unknown variants change nothing.
        """
        with self._update():
            model = self._models.get(name)
            if model is None or model.loaded.pop(variant, None) is None:
                return
            model.failure = f"variant {variant!r} was lost: {reason}"
            if not model.loaded and model.state is not ModelState.UNLOADING:
                model.state = ModelState.FAILED
        if self._ledger is not None and not model.loaded:
            self._ledger.unloaded(name)
        log.error("model=%s %s", name, model.failure)

    def _drop(self, name: str, model: HostedModel) -> None:
        with self._update():
            model.loaded.clear()
            del self._models[name]
        if self._ledger is not None:
            self._ledger.unloaded(name)

    def _load_variant(
        self, model: HostedModel, variant: Variant, start: float, share: float
    ) -> None:
        with self._update():
            model.state, model.progress = ModelState.LOADING, start
        manifest = model.manifest
        named = [manifest.files[variant.graph]]
        if variant.tokenizer:
            named.append(manifest.tokenizers[variant.tokenizer])
        check_files(model, named)
        files = variant_files(model.folder, manifest, variant)
        weights = sum(ref.size for ref in files.values())
        room = self._memory()
        extra = self._kind.reserve(model.manifest, variant, max(0, room.available - weights))
        if weights + extra > room.available:
            raise InsufficientMemory(self._too_large(variant, weights, extra, room))
        check_files(model, files.values())
        with self._booked(model, variant, weights + extra):
            loaded = self._open(model, variant, weights, extra)
            with self._update():
                model.state, model.progress = ModelState.WARMING, start + share * _SESSION_SHARE
            session_share = share * _SESSION_SHARE
            loaded = self._measure(model, loaded, start + session_share, share - session_share)
        self._kind.serve(model, loaded, again=False)
        with self._update():
            model.loaded[variant.name] = loaded

    def _booked(
        self, model: HostedModel, variant: Variant, needed: int
    ) -> contextlib.AbstractContextManager[None]:
        if self._ledger is None:
            return contextlib.nullcontext()
        return self._ledger.loading(model.manifest.name, variant.name, needed)

    def _too_large(self, variant: Variant, weights: int, extra: int, room: MemoryRoom) -> str:
        more = f" and {extra} for keys and values" if extra else ""
        text = (
            f"variant {variant.name!r} needs {weights} bytes for its weights{more}; "
            f"{room.available} bytes are available ({room.limited_by})"
        )
        if self._ledger is None:
            return text
        return f"{text}; held now, in MiB:\n{self._ledger.refresh().text()}"

    def _measure(
        self,
        model: HostedModel,
        loaded: LoadedVariant,
        start: float,
        share: float,
        *,
        again: bool = False,
    ) -> LoadedVariant:
        def advance(part: float) -> None:
            self._advance(model, start + share * part)

        files = variant_files(model.folder, model.manifest, loaded.variant)
        return self._kind.measure(model, loaded, files, advance, again=again)

    def _open(
        self, model: HostedModel, variant: Variant, weights: int, extra: int
    ) -> LoadedVariant:
        try:
            return self._kind.open(model, variant, weights, extra)
        except WorkerError:
            raise
        except Exception as error:
            # Whatever a file does to the loader, the worker goes on with its other models.
            graph = model.folder / variant.graph
            raise ModelLoadError(f"cannot load {graph}: {type(error).__name__}: {error}") from None

    def _opened(
        self, name: str, variants: Sequence[str]
    ) -> tuple[HostedModel, tuple[Variant, ...]]:
        """The model to load into and the variants to hold; who looks on learns why not."""
        try:
            manifest = self._manifest(name)
            wanted = self._wanted(manifest, variants)
        except WorkerError as error:
            # A wrong name says nothing about a model that is here.
            if not variants and name in self.available_models():
                with self._update():
                    if name not in self._models:
                        self._unreadable[name] = str(error)
            raise
        return self._hold(manifest, wanted), wanted

    def _manifest(self, name: str) -> Manifest:
        """The manifest a held model was loaded with, or the one that lies in the repository."""
        with self._lock:
            held = self._models.get(name)
            if held is not None and held.loaded:
                check_unchanged(held)
                return held.manifest
        manifest = self._repository.manifest(name)
        if refusal := self._kind.refusal(manifest):
            raise ModelLoadError(f"model {name!r} {refusal}")
        return manifest

    def _wanted(self, manifest: Manifest, names: Sequence[str]) -> tuple[Variant, ...]:
        """The variants to hold: those named, or what the kind of worker takes."""
        known = [variant.name for variant in manifest.variants]
        for name in names:
            if name not in known:
                raise NotFound(
                    f"unknown variant {name!r} of model {manifest.name!r}; it has {listed(known)}"
                )
        with self._lock:
            model = self._models.get(manifest.name)
            held = () if model is None else tuple(model.loaded)
        return self._kind.choose(manifest, names, held)

    def _hold(self, manifest: Manifest, wanted: tuple[Variant, ...]) -> HostedModel:
        """The held model, made or widened to hold the wanted variants too."""
        with self._update():
            self._unreadable.pop(manifest.name, None)
            model = self._models.get(manifest.name)
            if model is None or not model.loaded:
                model = HostedModel(manifest, self._repository.folder(manifest.name), wanted)
                self._models[manifest.name] = model
            else:
                names = {variant.name for variant in (*model.wanted, *wanted)}
                model.wanted = tuple(v for v in manifest.variants if v.name in names)
                model.failure = ""
        return model

    def _held(self, name: str) -> HostedModel:
        model = self._models.get(name)
        if model is None:
            raise NotFound(f"model {name!r} is not loaded; loaded are {listed(self._models)}")
        return model

    def _why_not(self, model: str, variant: str) -> WorkerError:
        with self._lock:
            held = self._models.get(model)
            if held is None:
                names = listed(self._models)
                return NotFound(f"model {model!r} is not loaded here; loaded are {names}")
            names = listed(v.name for v in held.wanted)
            if all(v.name != variant for v in held.wanted):
                return NotFound(f"model {model!r} has no variant {variant!r} here; it has {names}")
            state = f"{held.state.value}, {held.progress:.0%} done"
            if held.state is ModelState.FAILED:
                state = f"failed, {held.failure}"
            return Unavailable(f"variant {variant!r} of model {model!r} is not ready: {state}")

    def _advance(self, model: HostedModel, progress: float) -> None:
        with self._update():
            model.progress = progress

    @contextlib.contextmanager
    def _update(self) -> Iterator[None]:
        """Holds the lock for a change, then publishes it."""
        with self._lock:
            yield
            self._runnable = {
                (name, variant): loaded
                for name, model in self._models.items()
                for variant, loaded in model.loaded.items()
            }
            self._admitting = {
                key: loaded
                for key, loaded in self._runnable.items()
                if self._models[key[0]].state is not ModelState.UNLOADING
            }
        self._on_change()
