"""What is deployed: workers as they report themselves, models merged over them.

The registry belongs to the event loop of the control plane and holds no clock and no
connection; `rpc/fleet.py` feeds it and the dispatcher reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from controlplane.deployed import (
    GenerationSettings,
    ModelInfo,
    ModelState,
    QualityEvidence,
    Tally,
    TensorSpec,
    TokenizerInfo,
    VariantInfo,
    WorkerIdentity,
    WorkerLoad,
    WorkerMemory,
)
from controlplane.errors import NotFound

__all__ = [
    "GenerationSettings",
    "Membership",
    "ModelInfo",
    "ModelState",
    "QualityEvidence",
    "Registry",
    "Tally",
    "TensorSpec",
    "TokenizerInfo",
    "VariantInfo",
    "WorkerIdentity",
    "WorkerLoad",
    "WorkerMemory",
    "WorkerSession",
    "WorkerState",
]

# The better state of two workers is what a caller can expect of the model.
_STATE_ORDER = (
    ModelState.READY,
    ModelState.WARMING,
    ModelState.LOADING,
    ModelState.UNLOADING,
    ModelState.FAILED,
)


class WorkerState(Enum):
    """Where a worker's membership stands."""

    CONNECTING = "connecting"
    READY = "ready"
    SUSPECT = "suspect"
    DRAINING = "draining"
    LOST = "lost"


@dataclass(slots=True, eq=False)
class WorkerSession:
    """One membership of one worker; a worker that comes back gets a new session."""

    number: int
    identity: WorkerIdentity
    heard_ns: int
    state: WorkerState = WorkerState.CONNECTING
    load: WorkerLoad = field(default_factory=WorkerLoad)
    tally: Tally = field(default_factory=Tally)
    memory: WorkerMemory | None = None
    models: dict[str, ModelInfo] = field(default_factory=dict)
    # Names in the worker's repository, loaded or not.
    available: tuple[str, ...] = ()
    # What stands in the way of using it, empty when nothing is known to.
    trouble: str = ""
    # Model name -> why this worker's copy of the model takes no part in the pool.
    apart: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Membership:
    """The workers that serve one model together, with the variants each has ready."""

    model: ModelInfo
    workers: Mapping[int, frozenset[str]]


class Registry:
    """Workers, models and readiness; every method is called on one event loop."""

    def __init__(self) -> None:
        self._sessions: dict[int, WorkerSession] = {}
        self._by_worker: dict[str, WorkerSession] = {}
        self._merged: dict[str, Membership] = {}
        self._orphans: set[str] = set()
        self._tokenizers: dict[str, bytes] = {}
        self._last_number = 0
        # True while workers that had another control plane before this one may be on their way.
        self.gathering = False
        # Sessions that ended, by whether the worker had said that it drains.
        self.drained = 0
        self.lost = 0

    def models(self) -> tuple[ModelInfo, ...]:
        """Every model that a live worker has, by name, ready or not."""
        return tuple(self._merged[name].model for name in sorted(self._merged))

    def model(self, name: str) -> ModelInfo:
        """The model called `name`, merged over its workers; NotFound names the known ones."""
        found = self._merged.get(name)
        if found is None:
            known = ", ".join(sorted(self._merged)) or "none"
            raise NotFound(f"no model {name!r} here; models: {known}")
        return found.model

    def membership(self, name: str) -> Membership | None:
        """Who serves the model now; None when no live worker has it."""
        return self._merged.get(name)

    def orphaned(self, name: str) -> bool:
        """Whether the last worker that had the model went away with it, and none came back."""
        return name in self._orphans

    def expects(self, name: str) -> bool:
        """Whether a worker with this model, which nobody has, may yet come.

        So it is while workers gather, while there is none at all, and when the last one that had
        the model is lost.
        """
        return self.gathering or not self._sessions or self.orphaned(name)

    def gathered(self) -> None:
        """Workers that had another control plane have had the time to come."""
        self.gathering = False

    def workers(self) -> tuple[WorkerSession, ...]:
        """Live sessions in the order they joined."""
        return tuple(self._sessions.values())

    def session_of(self, worker_id: str) -> WorkerSession | None:
        """The live session of a worker, if it has one."""
        return self._by_worker.get(worker_id)

    @property
    def joined(self) -> int:
        """Sessions that ever began."""
        return self._last_number

    def join(self, identity: WorkerIdentity, now_ns: int) -> WorkerSession:
        """Start a session for a worker. An older session of the same id must be left first."""
        if identity.id in self._by_worker:
            raise ValueError(f"worker {identity.id!r} already has a session")
        self._last_number += 1
        session = WorkerSession(self._last_number, identity, now_ns)
        self._sessions[session.number] = session
        self._by_worker[identity.id] = session
        return session

    def leave(self, session: WorkerSession) -> frozenset[str]:
        """End a session; returns the models whose membership changed."""
        session.state = WorkerState.LOST
        if self._sessions.pop(session.number, None) is None:
            return frozenset()
        self.drained += session.load.draining
        self.lost += not session.load.draining
        del self._by_worker[session.identity.id]
        changed = self._merge(session.models)
        self._orphans |= session.models.keys() - self._merged.keys()
        return changed

    def report_models(self, session: WorkerSession, models: Iterable[ModelInfo]) -> frozenset[str]:
        """Replace what a worker serves; returns the models whose membership changed."""
        before = set(session.models)
        session.models = {model.name: model for model in models}
        return self._merge(before | set(session.models))

    def report_load(self, session: WorkerSession, load: WorkerLoad, now_ns: int) -> None:
        """Take a load report; any report is a sign of life."""
        session.tally.report(session.load, load)
        session.load = load
        session.heard_ns = now_ns

    def add_tokenizer(self, sha256: str, document: bytes) -> None:
        """Keep a tokenizer document under its hash."""
        self._tokenizers[sha256] = document

    def tokenizer(self, sha256: str) -> bytes | None:
        """The document with this hash, None when no worker has sent it yet."""
        return self._tokenizers.get(sha256)

    def missing_tokenizers(self, session: WorkerSession) -> frozenset[str]:
        """Hashes of tokenizers that the worker's models name and nobody has sent."""
        return frozenset(
            tokenizer.sha256
            for model in session.models.values()
            for tokenizer in model.tokenizers
            if tokenizer.sha256 not in self._tokenizers
        )

    def _merge(self, names: Iterable[str]) -> frozenset[str]:
        changed = set()
        for name in names:
            merged = self._merge_one(name)
            if merged != self._merged.get(name):
                changed.add(name)
            if merged is None:
                self._merged.pop(name, None)
            else:
                self._merged[name] = merged
                self._orphans.discard(name)
        return frozenset(changed)

    def _merge_one(self, name: str) -> Membership | None:
        """Merge one model over the sessions that agree with the pool's deployment.

        The pool keeps the digest and machine class it has while anyone still serves
        them; otherwise the longest-standing session that has the model sets them, one
        where it failed only when it failed everywhere.
        """
        holders = []
        for session in self._sessions.values():
            session.apart.pop(name, None)
            model = session.models.get(name)
            if model is None:
                continue
            if model.generates == session.identity.decodes:
                holders.append(session)
            else:
                session.apart[name] = _WRONG_CLASS[model.generates]
        if not holders:
            return None
        anchor = self._anchor(name, holders)
        digest = anchor.models[name].manifest_digest
        machine = anchor.identity.machine_class
        accepted = []
        for session in holders:
            reason = _difference(session, name, digest, machine)
            if reason:
                session.apart[name] = reason
            else:
                accepted.append(session)
        model = _merge_models([session.models[name] for session in accepted])
        workers = {
            session.number: frozenset(v.name for v in session.models[name].variants if v.serves)
            for session in accepted
            if session.models[name].state is ModelState.READY
        }
        return Membership(model, workers)

    def _anchor(self, name: str, holders: list[WorkerSession]) -> WorkerSession:
        current = self._merged.get(name)
        if current is not None:
            for session in holders:
                same = session.models[name].manifest_digest == current.model.manifest_digest
                if same and session.number in current.workers:
                    return session
        working = (s for s in holders if s.models[name].state is not ModelState.FAILED)
        return next(working, holders[0])


_WRONG_CLASS = {
    True: "the model generates text, which takes a worker of class decode",
    False: "the model does not generate text, which is all that a worker of class decode does",
}


def _difference(session: WorkerSession, name: str, digest: str, machine: str) -> str:
    own = session.models[name].manifest_digest
    if own != digest:
        return f"manifest {own} differs from the pool's {digest}"
    # Each decode worker's generations are predicted with its own profile.
    if session.identity.machine_class != machine and not session.identity.decodes:
        return (
            f"machine class {session.identity.machine_class} differs from the pool's {machine}; "
            "profiles of unlike CPUs are not mixed"
        )
    return ""


def _merge_models(models: list[ModelInfo]) -> ModelInfo:
    """One view of a model over workers that agree on its manifest."""
    best = min(models, key=lambda m: (_STATE_ORDER.index(m.state), -m.progress))
    variants: dict[str, VariantInfo] = {}
    for model in models:
        for variant in model.variants:
            known = variants.get(variant.name)
            variants[variant.name] = variant if known is None else _merge_variant(known, variant)
    return replace(best, variants=tuple(variants.values()))


def _merge_variant(one: VariantInfo, other: VariantInfo) -> VariantInfo:
    """Ready when either is; the faster profile, since a neighbour only ever adds time."""
    profiles = [p for p in (one.profile, other.profile) if p is not None]
    profile = min(profiles, key=lambda p: p.p50_ns) if profiles else None
    return replace(
        one,
        profile=profile,
        decode=one.decode or other.decode,
        ready=one.ready or other.ready,
        resident_bytes=max(one.resident_bytes, other.resident_bytes),
    )
