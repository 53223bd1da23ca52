"""What warm-ups of this host measured, kept for the workers and starts that come after.

Workers that start together would measure beside each other, and a variant measured beside
another looks slower than it is; measured anew at every start, two variants of like speed
would change places by chance. So one worker at a time measures, and the others take its
profile when their own runs agree with it (`warm_profile`). Like the prepared graphs it is a cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from worker.hosted import LoadedVariant
from worker.profile import VariantProfile
from worker.scheduling.cost import StepCost
from worker.warmup import Warmup

log = logging.getLogger(__name__)

P = TypeVar("P", VariantProfile, StepCost)

# A kept profile is measured anew when runs are this much faster, or this much slower: a
# neighbour only ever adds time, so one that is slower than it says is more often right.
_FASTER, _SLOWER = 1 / 1.1, 1.5
# A worker that was stopped while it measures must not keep others from starting for ever.
_PATIENCE_S = 30.0
_POLL_S = 0.02


class WarmProfiles(Protocol[P]):
    """Where profiles are kept by content: the digest of a variant's files and engine."""

    def turn(self) -> AbstractContextManager[None]:
        """Held while one worker of the host measures."""

    def get(self, content: str) -> P | None:
        """The profile that was kept for this content."""

    def put(self, content: str, profile: P) -> None:
        """Keep a profile; one that cannot be kept is only not there later."""


class NoWarmProfiles(Generic[P]):
    """Keeps nothing and waits for nobody."""

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Begins at once."""
        yield

    def get(self, content: str) -> P | None:
        """Nothing."""
        return None

    def put(self, content: str, profile: P) -> None:
        """Forgets it."""


@dataclass(frozen=True, slots=True)
class HostProfiles(Generic[P]):
    """Profiles in a folder of this host.

    `kind` names everything besides the content that makes a profile fit: machine class,
    threads, how long is measured. `wait` passes some seconds. `read` makes a profile of the
    values that were kept.
    """

    folder: Path
    kind: str
    wait: Callable[[float], None]
    read: Callable[..., P]

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Waits for the worker that measures now, for half a minute at most."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("w")
        except OSError as error:
            log.warning("profiles are measured without turns: %s", error.strerror)
            yield
            return
        with lock:
            left_s = _PATIENCE_S
            while left_s > 0 and not _locked(lock.fileno()):
                self.wait(_POLL_S)
                left_s -= _POLL_S
            yield

    def get(self, content: str) -> P | None:
        """The profile that was kept for this content; a damaged one is none."""
        try:
            return self.read(**json.loads(self._path(content).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def put(self, content: str, profile: P) -> None:
        """Keep a profile, whole or not at all."""
        path = self._path(content)
        partial = path.with_suffix(f".{os.getpid()}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(asdict(profile)))
            partial.replace(path)
        except OSError as error:
            log.warning("a profile is not kept: %s", error.strerror)

    def _path(self, content: str) -> Path:
        key = hashlib.sha256(f"{self.kind}\0{content}".encode()).hexdigest()[:32]
        return self.folder / f"{key}.json"


def warm_profile(
    kept: WarmProfiles[VariantProfile],
    warmup: Warmup,
    loaded: LoadedVariant,
    content: str,
    progress: Callable[[float], None],
    *,
    again: bool,
) -> VariantProfile | None:
    """The profile that this host measured before, if runs agree with it, else one measured now.

    `again` measures in any case. Raises like `Warmup.measure`.
    """
    return kept_or_measured(
        kept,
        content,
        compare=lambda known: warmup.compare(loaded, known),
        measure=lambda: warmup.measure(loaded, progress),
        again=again or loaded.variant.layout == "tensor",
    )


def kept_or_measured(
    kept: WarmProfiles[P],
    content: str,
    *,
    compare: Callable[[P], float],
    measure: Callable[[], P | None],
    again: bool,
) -> P | None:
    """The kept profile of a content, if `compare` (measured over predicted) agrees with it.

    Otherwise, and `again` in any case, what `measure` gives, which is kept.
    """
    with kept.turn():
        known = None if again else kept.get(content)
        if known is not None and _FASTER < compare(known) < _SLOWER:
            return known
        profile = measure()
        if profile is not None:
            kept.put(content, profile)
        return profile


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
