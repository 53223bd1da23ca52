"""Waits until the workers of a cluster that was started serve its models."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from deploy.access import Access
from deploy.cluster_spec import ClusterError
from deploy.fleet import AccessRefused, FleetError
from deploy.fleet_views import FleetStatus
from deploy.members import Members
from deploy.readiness import Readiness, describe, failures, is_ready, loading
from deploy.services import ServedModels

_POLL_S = 0.05
_CONFIG_FAULT = 2


@dataclass(frozen=True, slots=True)
class ReadyWait:
    """Looks at a cluster again and again.

    `status` asks its control plane and raises FleetError; `access` is to its workers. Of a
    `supervised` one nobody's death is final, but for a fault of the configuration.
    """

    members: Members
    models: ServedModels
    status: Callable[[], FleetStatus]
    access: Access | None
    supervised: bool

    def until_ready(
        self,
        workers: int | None,
        timeout_s: float,
        on_progress: Callable[[Readiness], None] | None,
        *,
        partial: bool,
    ) -> tuple[FleetStatus, Mapping[str, str]]:
        """The status once `workers` (None: all) serve, and the models that cannot be loaded.

        The others are enough only with `partial`, when there are any. Raises ClusterError on
        timeout, for who died, and for a model that cannot be loaded.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            wanted = len(self.members.names(decode=False)) if workers is None else workers
            # Without encoder workers nobody is there to load their models.
            models = self.models.all if wanted else self.models.generators
            status = self._look()
            if status is not None and self._serve(status, wanted, models):
                return status, {}
            self._raise_for_dead()
            readiness = self._readiness(status, wanted)
            failed = readiness.failed
            rest = models - failed.keys()
            if failed and not (partial and rest):
                raise ClusterError(failures(failed))
            if status is not None and failed and self._serve(status, wanted, rest):
                return status, failed
            if time.monotonic() >= deadline:
                found = describe(status, wanted + len(self.members.names(decode=True)))
                raise ClusterError(
                    f"not ready after {timeout_s:.0f} s: {found}\n{self.members.tails()}"
                )
            if on_progress is not None:
                on_progress(readiness)
            time.sleep(_POLL_S)

    def _look(self) -> FleetStatus | None:
        try:
            return self.status()
        except AccessRefused as refusal:
            raise ClusterError(
                f"{refusal}\nThe launcher looks how far its cluster is: set ORCHID_TOKEN (or "
                "ORCHID_TOKEN_FILE) to a token of the role operate"
            ) from None
        except FleetError:
            return None

    def _serve(self, status: FleetStatus, wanted: int, models: frozenset[str]) -> bool:
        return is_ready(
            status,
            wanted,
            models & self.models.encoders,
            decoders=len(self.members.names(decode=True)),
            generators=models & self.models.generators,
        )

    def _raise_for_dead(self) -> None:
        for member in self.members.all():
            code = member.child.exit_code
            if code is not None and (code == _CONFIG_FAULT or not self.supervised):
                tail = member.child.log_tail()
                raise ClusterError(f"{member.spec.name} ended with code {code}\n{tail}")

    def _readiness(self, status: FleetStatus | None, wanted: int) -> Readiness:
        decoders = len(self.members.names(decode=True))
        ready = min(wanted + decoders, status.ready_workers()) if status is not None else 0
        addresses = [member.child.address for member in self.members.workers()]
        total, failed = loading(addresses, self.models.all, self.access)
        loads = wanted * len(self.models.encoders) + decoders * len(self.models.generators)
        return Readiness(ready, wanted + decoders, total / max(1, loads), failed)
