"""The model host: finds models, loads and unloads them, knows which can serve, and runs them.

Loading happens on the caller's thread while the engine thread goes on serving; only
warm-up runs and the end of a session happen on the engine thread.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from worker.errors import ModelLoadError, WorkerError
from worker.execution import Session, run_items
from worker.hosted import (
    HostedModel,
    LoadedVariant,
    ModelSnapshot,
    ModelState,
    variant_files,
    vocabulary_size,
)
from worker.jobs import Token
from worker.memory import MemoryRoom
from worker.models.errors import ManifestError
from worker.models.manifest import (
    GENERATION,
    MANIFEST_NAME,
    FileRef,
    Manifest,
    Variant,
    file_fault,
    load_manifest,
)
from worker.profile import VariantProfile
from worker.profile_file import ProfileOf, content_digest, no_profile
from worker.records import Execution, Item
from worker.refusals import InsufficientMemory, NotFound, Unavailable
from worker.warm_profiles import NoWarmProfiles, WarmProfiles, warm_profile
from worker.warmup import Warmup

log = logging.getLogger(__name__)

# Shares of a variant's progress: its session, then its warm-up.
_SESSION_SHARE = 0.3
# Runs this many times as long, or short, as a measured profile says are worth a line in the log.
_LARGE_RATIO = 1.25


class ModelHost:
    """Owns the models of one worker. Thread-safe; `run` is for the engine thread.

    `variants` empty allows all. `release` runs a function on the engine thread after the
    work queued before it, and waits. `profile_of` gives the profile that was measured for a
    variant of a folder from these files on this class of machine, if any; it stands in for
    what the warm-up would measure. `warm_profiles` are what warm-ups of this host measured
    before. `on_change` is called, on any thread, whenever a snapshot
    would differ.
    """

    def __init__(
        self,
        repository: Path,
        *,
        variants: Collection[str],
        open_session: Callable[[Path], Session],
        warmup: Warmup,
        release: Callable[[Callable[[], None]], None],
        memory: Callable[[], MemoryRoom],
        on_change: Callable[[], None],
        profile_of: ProfileOf = no_profile,
        warm_profiles: WarmProfiles | None = None,
    ) -> None:
        self._repository = repository
        self._allowed = frozenset(variants)
        self._open_session = open_session
        self._warmup = warmup
        self._release = release
        self._memory = memory
        self._on_change = on_change
        self._profile_of = profile_of
        self._warm_profiles = warm_profiles or NoWarmProfiles()
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
        self._admitting: frozenset[tuple[str, str]] = frozenset()

    def available_models(self) -> tuple[str, ...]:
        """Names of the repository's folders that hold a manifest, sorted."""
        if not self._repository.is_dir():
            return ()
        folders = self._repository.iterdir()
        return tuple(sorted(f.name for f in folders if (f / MANIFEST_NAME).is_file()))

    def serves(self, name: str) -> bool:
        """Whether a model of the repository is for workers of this kind; unreadable ones are."""
        try:
            return load_manifest(self._repository / name).task != GENERATION
        except ManifestError:
            return True

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

    def admit(self, model: str, variant: str) -> None:
        """Raises NotFound or Unavailable when a batch for the variant cannot run now."""
        if (model, variant) not in self._admitting:
            raise self._why_not(model, variant)

    def run(self, model: str, variant: str, items: Collection[Item], token: Token) -> Execution:
        """Runs items of one variant; one outcome each, in order.

        Raises NotFound, Unavailable, RunTerminated or EngineFault for all of them.
        """
        loaded = self._runnable.get((model, variant))
        if loaded is None:
            raise self._why_not(model, variant)
        return run_items(loaded.session, loaded.variant, loaded.vocabulary, items, token)

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
                profile = self._measure(model, variant, number * share, share, again=True)
                with self._update():
                    model.loaded[variant.variant.name] = replace(variant, profile=profile)
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
            self._release(lambda: self._drop(name, model))
            log.info("model=%s unloaded", name)

    def _drop(self, name: str, model: HostedModel) -> None:
        with self._update():
            model.loaded.clear()
            del self._models[name]

    def _load_variant(
        self, model: HostedModel, variant: Variant, start: float, share: float
    ) -> None:
        with self._update():
            model.state, model.progress = ModelState.LOADING, start
        files = variant_files(model.folder, model.manifest, variant)
        needed = sum(ref.size for ref in files.values())
        room = self._memory()
        if needed > room.available:
            raise InsufficientMemory(
                f"variant {variant.name!r} needs {needed} bytes for its weights; "
                f"{room.available} bytes are available ({room.limited_by})"
            )
        self._check_files(model, files.values())
        vocabulary = vocabulary_size(model.folder, model.manifest, variant)
        session = self._open(model.folder / variant.graph)
        loaded = LoadedVariant(variant, session, vocabulary, needed)
        with self._update():
            model.state, model.progress = ModelState.WARMING, start + share * _SESSION_SHARE
        session_share = share * _SESSION_SHARE
        profile = self._measure(model, loaded, start + session_share, share - session_share)
        with self._update():
            model.loaded[variant.name] = replace(loaded, profile=profile)
        if profile is not None:
            log.info(
                "model=%s variant=%s warm p50_us=%.0f sigma=%.3f runs=%d",
                *(model.manifest.name, variant.name),
                *(profile.p50_us, profile.sigma, profile.samples),
            )

    def _check_files(self, model: HostedModel, files: Iterable[FileRef]) -> None:
        """Files must be what the manifest's digest stands for; shared ones are read once."""
        for ref in files:
            if ref.path in model.checked:
                continue
            fault = file_fault(model.folder, ref)
            if fault is not None:
                raise ModelLoadError(
                    f"a file is not what the manifest records: {fault}; "
                    "build the model again or restore the file"
                )
            model.checked.add(ref.path)

    def _measure(
        self,
        model: HostedModel,
        loaded: LoadedVariant,
        start: float,
        share: float,
        *,
        again: bool = False,
    ) -> VariantProfile | None:
        def advance(part: float) -> None:
            self._advance(model, start + share * part)

        files = variant_files(model.folder, model.manifest, loaded.variant).values()
        stored = self._profile_of(model.folder, loaded.variant.name, files)
        if stored is None:
            kept, content = self._warm_profiles, content_digest(files)
            return warm_profile(kept, self._warmup, loaded, content, advance, again=again)
        ratio = self._warmup.compare(loaded, stored)
        if not 1 / _LARGE_RATIO < ratio < _LARGE_RATIO:
            log.warning(
                "model=%s variant=%s runs take %.2f of what its measured profile says",
                *(model.manifest.name, loaded.variant.name, ratio),
            )
        return stored

    def _open(self, graph: Path) -> Session:
        try:
            return self._open_session(graph)
        except WorkerError:
            raise
        except Exception as error:
            # Whatever a file does to the loader, the worker goes on with its other models.
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
                self._check_unchanged(held)
                return held.manifest
        available = self.available_models()
        if name not in available:
            raise NotFound(f"unknown model {name!r}; the repository has {_listed(available)}")
        try:
            manifest = load_manifest(self._repository / name)
        except ManifestError as error:
            raise ModelLoadError(str(error)) from None
        if manifest.task == GENERATION:
            raise ModelLoadError(f"model {name!r} generates text, which this worker does not serve")
        if manifest.name != name:
            raise ModelLoadError(
                f"expected a model called {name!r} in folder {name!r}, got {manifest.name!r}"
            )
        return manifest

    def _check_unchanged(self, held: HostedModel) -> None:
        """ModelLoadError when the repository holds another manifest than the model was loaded with.

        One that is gone or unreadable changes nothing for the model that serves.
        """
        with contextlib.suppress(ManifestError):
            if load_manifest(held.folder).digest != held.manifest.digest:
                raise ModelLoadError(
                    f"model {held.manifest.name!r} is loaded with another manifest than the "
                    "repository holds now; unload it first (`orchid models unload`)"
                )

    def _wanted(self, manifest: Manifest, names: Sequence[str]) -> tuple[Variant, ...]:
        """The variants to hold: those named, or all that the configuration allows."""
        known = [variant.name for variant in manifest.variants]
        for name in names:
            if name not in known:
                raise NotFound(
                    f"unknown variant {name!r} of model {manifest.name!r}; it has {_listed(known)}"
                )
        chosen = names or [n for n in known if not self._allowed or n in self._allowed]
        if not chosen:
            raise NotFound(
                f"model {manifest.name!r} has {_listed(known)}; "
                f"the configuration allows {_listed(sorted(self._allowed))}"
            )
        return tuple(variant for variant in manifest.variants if variant.name in chosen)

    def _hold(self, manifest: Manifest, wanted: tuple[Variant, ...]) -> HostedModel:
        """The held model, made or widened to hold the wanted variants too."""
        with self._update():
            self._unreadable.pop(manifest.name, None)
            model = self._models.get(manifest.name)
            if model is None or not model.loaded:
                model = HostedModel(manifest, self._repository / manifest.name, wanted)
                self._models[manifest.name] = model
            else:
                names = {variant.name for variant in (*model.wanted, *wanted)}
                model.wanted = tuple(v for v in manifest.variants if v.name in names)
                model.failure = ""
        return model

    def _held(self, name: str) -> HostedModel:
        model = self._models.get(name)
        if model is None:
            raise NotFound(f"model {name!r} is not loaded; loaded are {_listed(self._models)}")
        return model

    def _why_not(self, model: str, variant: str) -> WorkerError:
        with self._lock:
            held = self._models.get(model)
            if held is None:
                names = _listed(self._models)
                return NotFound(f"model {model!r} is not loaded here; loaded are {names}")
            names = _listed(v.name for v in held.wanted)
            if all(v.name != variant for v in held.wanted):
                return NotFound(f"model {model!r} has no variant {variant!r} here; it has {names}")
            return Unavailable(
                f"variant {variant!r} of model {model!r} is not ready: "
                f"{held.state.value}, {held.progress:.0%} done"
            )

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
            self._admitting = frozenset(
                (name, variant)
                for name, variant in self._runnable
                if self._models[name].state is not ModelState.UNLOADING
            )
        self._on_change()


def _listed(names: Collection[str] | Iterator[str]) -> str:
    return ", ".join(names) or "none"
