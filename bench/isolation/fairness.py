"""How far two tenants that always wait drift apart in what they are served, and may drift."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.isolation.lane import OTHER, STEADY
from deploy.cluster import LocalCluster
from deploy.records.reading import reading

_LOOK_S = 0.05
# Runs that a worker has at a time: one that runs and one that waits for it.
_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class Drift:
    """What was measured: `apart_ms` of virtual time over any interval in which both waited.

    `bound_ms` is the stated bound for the charges and errors of these very runs, `looks` how often
    both were seen waiting, `served_ratio` the steady tenant's work by its share over the other's.
    """

    apart_ms: float
    bound_ms: float
    looks: int
    served_ratio: float


class DriftWatch:
    """Looks at what each tenant was served while it is entered."""

    def __init__(self, cluster: LocalCluster, shares: dict[str, float]) -> None:
        self._cluster = cluster
        self._shares = shares
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="drift")
        # Served ms over the share, in order, while both waited.
        self._served: list[tuple[float, float]] = []

    def __enter__(self) -> DriftWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def drift(self, records: Path, since: int, bound_ms: float, workers: int) -> Drift:
        """What was seen, held against the bound of the runs of records after `since`."""
        largest, error = _runs(records, since)
        in_flight = workers * _IN_FLIGHT
        bound = 2.0 * bound_ms
        for tenant, share in self._shares.items():
            bound += (largest[tenant] + 2.0 * in_flight * error[tenant]) / share
        apart = [one - other for one, other in self._served]
        first, last = self._served[0], self._served[-1]
        other = last[1] - first[1]
        return Drift(
            apart_ms=max(apart) - min(apart),
            bound_ms=bound,
            looks=len(apart),
            served_ratio=(last[0] - first[0]) / other if other else 0.0,
        )

    @property
    def looks(self) -> int:
        """How often both were seen waiting."""
        return len(self._served)

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_S):
            found = {tenant.name: tenant for tenant in self._cluster.status().tenants}
            both = [found[name] for name in (STEADY, OTHER)]
            if not all(tenant.queued for tenant in both):
                continue
            one, other = [
                (each.charged_cpu_ms + each.in_flight_cpu_ms) / self._shares[each.name]
                for each in both
            ]
            self._served.append((one, other))


def last_record(records: Path) -> int:
    """The number of the newest record; 0 while there is none."""
    with reading(records) as database:
        (number,) = database.execute("SELECT max(id) FROM requests").fetchone()
    return int(number or 0)


def served_ratio(records: Path, since: int, shares: dict[str, float]) -> float:
    """CPU time that workers spent on the steady tenant over its share, by the other one's.

    Of generations whose records come after `since`; 0 when one of them had none.
    """
    with reading(records) as database:
        rows: Sequence[tuple[str, float]] = database.execute(
            "SELECT tenant, sum(measured_prefill_us + measured_decode_us) FROM requests "
            "WHERE id > ? GROUP BY tenant",
            (since,),
        ).fetchall()
    served = {tenant: float(work or 0.0) for tenant, work in rows}
    steady, other = [served.get(name, 0.0) / shares[name] for name in (STEADY, OTHER)]
    return steady / other if other else 0.0


def _runs(records: Path, since: int) -> tuple[dict[str, float], dict[str, float]]:
    """By tenant the largest charge of a run in ms, and by how much one differed from it at most."""
    with reading(records) as database:
        rows: Sequence[tuple[str, float, float]] = database.execute(
            "SELECT tenant, max(max(estimated_compute_us, measured_compute_us)) / 1e3, "
            "max(abs(measured_compute_us - estimated_compute_us)) / 1e3 FROM requests "
            "WHERE outcome = 'answered' AND id > ? GROUP BY tenant",
            (since,),
        ).fetchall()
    largest = {tenant: float(most) for tenant, most, _ in rows}
    return largest, {tenant: float(error) for tenant, _, error in rows}
