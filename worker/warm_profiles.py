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
from typing import Protocol

from worker.hosted import LoadedVariant
from worker.profile import VariantProfile
from worker.warmup import Warmup

log = logging.getLogger(__name__)

# A kept profile is measured anew when runs are this much faster, or this much slower: a
# neighbour only ever adds time, so one that is slower than it says is more often right.
_FASTER, _SLOWER = 1 / 1.1, 1.5
# A worker that was stopped while it measures must not keep others from starting for ever.
_PATIENCE_S = 30.0
_POLL_S = 0.02


class WarmProfiles(Protocol):
    """Where profiles are kept by content: the digest of a variant's files and engine."""

    def turn(self) -> AbstractContextManager[None]:
        """Held while one worker of the host measures."""

    def get(self, content: str) -> VariantProfile | None:
        """The profile that was kept for this content."""

    def put(self, content: str, profile: VariantProfile) -> None:
        """Keep a profile; one that cannot be kept is only not there later."""


class NoWarmProfiles:
    """Keeps nothing and waits for nobody."""

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Begins at once."""
        yield

    def get(self, content: str) -> VariantProfile | None:
        """Nothing."""
        return None

    def put(self, content: str, profile: VariantProfile) -> None:
        """Forgets it."""


@dataclass(frozen=True, slots=True)
class HostProfiles:
    """Profiles in a folder of this host.

    `kind` names everything besides the content that makes a profile fit: machine class,
    threads, how long is measured. `wait` passes some seconds.
    """

    folder: Path
    kind: str
    wait: Callable[[float], None]

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

    def get(self, content: str) -> VariantProfile | None:
        """The profile that was kept for this content; a damaged one is none."""
        try:
            return VariantProfile(**json.loads(self._path(content).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def put(self, content: str, profile: VariantProfile) -> None:
        """Keep a profile, whole or not at all."""
        path = self._path(content)
        partial = path.with_suffix(f".{os.getpid()}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(asdict(profile)))
            partial.replace(path)
        except OSError as error:
            log.warning("the profile of %s is not kept: %s", profile.variant, error.strerror)

    def _path(self, content: str) -> Path:
        key = hashlib.sha256(f"{self.kind}\0{content}".encode()).hexdigest()[:32]
        return self.folder / f"{key}.json"


def warm_profile(
    kept: WarmProfiles,
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
    with kept.turn():
        known = None if again or loaded.variant.layout == "tensor" else kept.get(content)
        if known is not None and _FASTER < warmup.compare(loaded, known) < _SLOWER:
            return known
        profile = warmup.measure(loaded, progress)
        if profile is not None:
            kept.put(content, profile)
        return profile


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
