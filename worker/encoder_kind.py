"""What an encoder worker does with a variant: one session, measured over lengths of inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from worker.execution import Session
from worker.hosted import HostedModel, LoadedVariant, listed, vocabulary_size
from worker.models.manifest import GENERATION, FileRef, Manifest, Variant
from worker.profile import VariantProfile
from worker.profile_file import ProfileOf, content_digest, no_profile
from worker.refusals import NotFound
from worker.warm_profiles import NoWarmProfiles, WarmProfiles, warm_profile
from worker.warmup import Warmup

log = logging.getLogger(__name__)

# Runs this many times as long, or short, as a measured profile says are worth a line in the log.
_LARGE_RATIO = 1.25


class EncoderKind:
    """Loads what answers a request in one run.

    `variants` empty allows all. `release` runs a function on the engine thread after the work
    queued before it, and waits. `profile_of` gives the profile that was measured for a variant of
    a folder from these files on this class of machine, if any; it stands in for what the warm-up
    would measure. `warm_profiles` are what warm-ups of this host measured before.
    """

    def __init__(
        self,
        *,
        variants: Collection[str],
        open_session: Callable[[Path], Session],
        warmup: Warmup,
        release: Callable[[Callable[[], None]], None],
        profile_of: ProfileOf = no_profile,
        warm_profiles: WarmProfiles[VariantProfile] | None = None,
    ) -> None:
        self._allowed = frozenset(variants)
        self._open_session = open_session
        self._warmup = warmup
        self._release = release
        self._profile_of = profile_of
        self._warm_profiles = warm_profiles or NoWarmProfiles()

    def refusal(self, manifest: Manifest) -> str:
        """Why a model is not for this kind of worker; empty when it is."""
        return "generates text, which an encoder worker does not" * (manifest.task == GENERATION)

    def choose(
        self, manifest: Manifest, names: Sequence[str], held: Collection[str]
    ) -> tuple[Variant, ...]:
        """The variants to hold: those named, or all that the configuration allows."""
        known = [variant.name for variant in manifest.variants]
        chosen = names or [n for n in known if not self._allowed or n in self._allowed]
        if not chosen:
            raise NotFound(
                f"model {manifest.name!r} has {listed(known)}; "
                f"the configuration allows {listed(sorted(self._allowed))}"
            )
        return tuple(variant for variant in manifest.variants if variant.name in chosen)

    def reserve(self, manifest: Manifest, variant: Variant, room: int) -> int:
        """Nothing is held beside the weights."""
        return 0

    def open(self, model: HostedModel, variant: Variant, weights: int, extra: int) -> LoadedVariant:
        """A session that can run."""
        vocabulary = vocabulary_size(model.folder, model.manifest, variant)
        session = self._open_session(model.folder / variant.graph)
        return LoadedVariant(variant, session, vocabulary, weights)

    def measure(
        self,
        model: HostedModel,
        loaded: LoadedVariant,
        files: Mapping[str, FileRef],
        progress: Callable[[float], None],
        *,
        again: bool,
    ) -> LoadedVariant:
        """The variant with its profile: a stored one, one kept from before, or measured now."""
        stored = self._profile_of(model.folder, loaded.variant.name, files.values())
        if stored is None:
            kept, content = self._warm_profiles, content_digest(files.values())
            profile = warm_profile(kept, self._warmup, loaded, content, progress, again=again)
        else:
            profile = stored
            ratio = self._warmup.compare(loaded, stored)
            if not 1 / _LARGE_RATIO < ratio < _LARGE_RATIO:
                log.warning(
                    "model=%s variant=%s runs take %.2f of what its measured profile says",
                    *(model.manifest.name, loaded.variant.name, ratio),
                )
        if profile is not None:
            log.info(
                "model=%s variant=%s warm p50_us=%.0f sigma=%.3f runs=%d",
                *(model.manifest.name, loaded.variant.name),
                *(profile.p50_us, profile.sigma, profile.samples),
            )
        return replace(loaded, profile=profile)

    def serve(self, model: HostedModel, loaded: LoadedVariant, *, again: bool) -> None:
        """Sessions serve as soon as the host runs them."""

    def release(self, model: HostedModel, function: Callable[[], None]) -> None:
        """Runs `function` on the engine thread once what was accepted for the model is done."""
        self._release(function)
