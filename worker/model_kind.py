"""What a class of worker does for the models that its host holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from worker.hosted import HostedModel, LoadedVariant
from worker.models.manifest import FileRef, Manifest, Variant


class ModelKind(Protocol):
    """What a class of worker loads and how; called by one thread at a time.

    Every method may raise WorkerError.
    """

    def refusal(self, manifest: Manifest) -> str:
        """Why a model is not for this kind of worker; empty when it is."""

    def choose(
        self, manifest: Manifest, names: Sequence[str], held: Collection[str]
    ) -> tuple[Variant, ...]:
        """The variants to hold; `names` exist, `held` are those loaded already."""

    def reserve(self, manifest: Manifest, variant: Variant, room: int) -> int:
        """Bytes that a variant takes beside its weights, when `room` bytes are left for them."""

    def open(self, model: HostedModel, variant: Variant, weights: int, extra: int) -> LoadedVariant:
        """Opens a variant of `weights` bytes with the `extra` bytes that were reserved."""

    def measure(
        self,
        model: HostedModel,
        loaded: LoadedVariant,
        files: Mapping[str, FileRef],
        progress: Callable[[float], None],
        *,
        again: bool,
    ) -> LoadedVariant:
        """Warms a variant and returns it with its profile; `again` measures in any case."""

    def serve(self, model: HostedModel, loaded: LoadedVariant, *, again: bool) -> None:
        """Makes a warm variant take work; `again`: go on by what was measured now."""

    def release(self, model: HostedModel, function: Callable[[], None]) -> None:
        """Runs `function` on the engine thread once what was accepted for the model is done."""
