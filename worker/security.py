"""Who may call a worker: those whose certificate says that they are its control plane."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from protos.audit import Audit
from protos.tls import Certificates
from worker.config import WorkerConfig
from worker.refusals import Forbidden

_ALTERNATIVE_NAMES, _COMMON_NAME = "x509_subject_alternative_name", "x509_common_name"
# What changes which work is done, rather than being work.
_AUDITED = {
    "Load": "model.load",
    "Unload": "model.unload",
    "Warm": "model.warm",
    "Drain": "worker.drain",
}


class Call(Protocol):
    """The part of a call that says who made it."""

    def auth_context(self) -> object: ...

    def peer(self) -> str: ...


class Callers:
    """Checks who calls, and keeps an audit of what changes the worker.

    `names` are those that a caller's certificate may hold, empty all that the transport let in;
    `asks` is whether callers have certificates at all.
    """

    def __init__(self, names: Collection[str], audit: Audit | None, *, asks: bool) -> None:
        self._names = frozenset(names)
        self._audit = audit
        self._asks = asks

    def concerns(self, method: str) -> bool:
        """Whether there is anything to check or to tell of a method."""
        return method in _AUDITED or bool(self._asks and self._names)

    def check(self, method: str, call: Call) -> None:
        """Raises Forbidden for a caller that is not the control plane."""
        if not (self._asks and self._names):
            return
        held = _names_of(call)
        if not self._names.isdisjoint(held):
            return
        if self._audit is not None:
            who = held[0] if held else ""
            self._audit.refused(method, who=who, outcome="not the control plane", peer=call.peer())
        raise Forbidden("only the control plane may call this worker")

    def tell(self, method: str, call: Call, outcome: str, model: str) -> None:
        """An audit line for a method that changes the worker; nothing for others."""
        event = _AUDITED.get(method)
        if event is None or self._audit is None:
            return
        held = _names_of(call) if self._asks else []
        who = held[0] if held else ""
        self._audit.record(event, who=who, outcome=outcome, model=model, peer=call.peer())


def _names_of(call: Call) -> list[str]:
    found = call.auth_context()
    names: list[str] = []
    if isinstance(found, dict):
        for key in (_ALTERNATIVE_NAMES, _COMMON_NAME):
            names += [name.decode("utf-8", "replace") for name in found.get(key, ())]
    return names


def make_certificates(config: WorkerConfig, wall_s: Callable[[], float]) -> Certificates | None:
    """The worker's certificates, None where all is plain text; raises OSError."""
    if not (config.tls.serves or config.tls.dials):
        return None
    return Certificates(config.tls, wall_s=wall_s)


def make_callers(config: WorkerConfig, audit: Audit | None) -> Callers:
    """Who may call: `callers`, else the name by which the worker knows its control plane."""
    names = set(config.callers)
    if not names and config.controlplane:
        host = config.controlplane.rpartition(":")[0].removeprefix("[").removesuffix("]")
        names = {config.tls.server_name or host}
    return Callers(names, audit, asks=config.tls.identities)
