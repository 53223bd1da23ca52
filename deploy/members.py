"""The processes of one cluster: who there should be, and whoever dies is started again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from deploy.politeness import give_way, stand_up
from deploy.process import Child, ChildSpec
from deploy.restart import RestartPolicy, next_delay

# Services; the only control plane is called as its service.
CONTROLPLANE, WORKER = "controlplane", "worker"


@dataclass(slots=True)
class Member:
    """One supervised process; `delay_s` is the backoff before its last start.

    `polite` says that it gives way to others until it serves. Who served, died and is started again
    does not: the share of the one that died is free.
    """

    spec: ChildSpec
    child: Child
    delay_s: float = 0.0
    restart_at: float = 0.0
    polite: bool = False

    @property
    def decodes(self) -> bool:
        """Whether it is a decode worker."""
        return self.spec.overrides.get("worker_class") == "decode"

    @property
    def metrics(self) -> str:
        """Where it serves metrics, or will; empty when it does not."""
        told = str(self.spec.overrides.get("metrics_listen", ""))
        return self.child.metrics_address or ("" if told.endswith(":0") else told)


class Members:
    """Every process by its name; methods may be called from any thread.

    `lock` is held by whoever does more than one thing with them.
    """

    def __init__(self, restart: RestartPolicy) -> None:
        self.lock = threading.RLock()
        self._restart = restart
        self._of_name: dict[str, Member] = {}

    def __getitem__(self, name: str) -> Member:
        with self.lock:
            return self._of_name[name]

    def all(self) -> tuple[Member, ...]:
        """The control plane and every worker, in the order in which they were started."""
        with self.lock:
            return tuple(self._of_name.values())

    def workers(self) -> tuple[Member, ...]:
        """Every worker of either class."""
        return tuple(member for member in self.all() if member.spec.name != CONTROLPLANE)

    def names(self, *, decode: bool) -> tuple[str, ...]:
        """Names of the workers of one class."""
        return tuple(m.spec.name for m in self.workers() if m.decodes == decode)

    def start(self, spec: ChildSpec, *, polite: bool = False) -> Child:
        """Start a process under the name of its spec; a `polite` one gives way until it serves."""
        with self.lock:
            child = Child(spec)
            gives_way = polite and give_way(child.pid)
            self._of_name[spec.name] = Member(spec, child, polite=gives_way)
            return child

    def pop(self, name: str) -> Member:
        """Take a process out: it is not started again."""
        with self.lock:
            return self._of_name.pop(name)

    def pop_all(self) -> list[Member]:
        """Take all out, workers before the control plane."""
        with self.lock:
            return [self._of_name.pop(name) for name in sorted(self._of_name, reverse=True)]

    def pids(self) -> dict[str, int]:
        """Process ids of everything that lives."""
        return {m.spec.name: m.child.pid for m in self.all() if m.child.alive}

    def tails(self) -> str:
        """The end of what each process wrote."""
        return "\n".join(f"--- {m.spec.name}\n{m.child.log_tail(1500)}" for m in self.all())

    def revive(
        self,
        now: float,
        overrides: Callable[[], Mapping[str, Any]],
        failed: Callable[[str], None],
    ) -> bool:
        """Start again what died, each with a backoff of its own; whether anything changed.

        `now` is monotonic, in seconds; `overrides` are the control plane's, which keeps its
        addresses; `failed` hears of what cannot be started.
        """
        with self.lock:
            dead = [member for member in self._of_name.values() if not member.child.alive]
            found = [member for member in dead if member.restart_at == 0.0]
            due = [member for member in dead if 0.0 < member.restart_at <= now]
            for member in found:
                lived_s = now - member.child.started_ns / 1e9
                member.delay_s = next_delay(self._restart, member.delay_s, lived_s)
                member.restart_at = now + member.delay_s
            for member in due:
                member.restart_at = 0.0
                if member.spec.name == CONTROLPLANE:
                    kept = {**member.spec.overrides, **overrides()}
                    member.spec = replace(member.spec, overrides=kept)
                member.child.wait(0)
                try:
                    member.child = Child(member.spec)
                    member.polite = member.polite and give_way(member.child.pid)
                except OSError as error:
                    # No process or descriptor to be had now: the same backoff goes on.
                    failed(f"{member.spec.name} cannot be started: {error}")
        return bool(found or due)

    def stand_up(self, serves: Callable[[str], bool]) -> None:
        """Let those who gave way take their full share once they serve at their address."""
        for member in self.workers():
            address = member.child.address if member.polite else None
            if address is not None and serves(address) and stand_up(member.child.pid):
                member.polite = False
