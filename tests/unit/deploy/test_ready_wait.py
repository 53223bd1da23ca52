"""When a cluster that was started is ready: what its workers are there to serve."""

from __future__ import annotations

from typing import cast

import pytest

from deploy.cluster_spec import ClusterError
from deploy.fleet_views import FleetStatus, fleet_status
from deploy.members import Member, Members
from deploy.ready_wait import ReadyWait
from deploy.services import ServedModels
from protos.orchid.v1 import fleet_pb2

BOTH = ServedModels(frozenset({"labels"}), frozenset({"writer"}))


class Named:
    """Members by name only, none of which has an address or an end yet."""

    def __init__(self, *, encoders: int, decoders: int) -> None:
        self._encoders = tuple(f"worker-{n}" for n in range(encoders))
        self._decoders = tuple(f"decode-{n}" for n in range(decoders))

    def names(self, *, decode: bool) -> tuple[str, ...]:
        return self._decoders if decode else self._encoders

    def all(self) -> tuple[Member, ...]:
        return ()

    def workers(self) -> tuple[Member, ...]:
        return ()

    def tails(self) -> str:
        return ""


def fleet(*, encoders: int = 0, decoders: int = 0) -> FleetStatus:
    """What a control plane says once so many workers serve all that they are for."""
    message = fleet_pb2.GetStatusResponse()
    for number in range(encoders + decoders):
        message.workers.add(state="ready").hello.worker_id = str(number)
    if encoders:
        message.pools.add(model="labels", state="ready", workers=encoders)
    if decoders:
        writer = message.generators.add(model="writer", state="ready")
        for number in range(decoders):
            writer.lanes.add(worker_id=str(number))
    return fleet_status(message)


def waited(members: Named, status: FleetStatus) -> FleetStatus:
    wait = ReadyWait(cast(Members, members), BOTH, lambda: status, None, supervised=True)
    return wait.until_ready(None, 0.0, None, partial=True)[0]


def test_every_worker_serves_what_it_is_for() -> None:
    status = fleet(encoders=2, decoders=1)
    assert waited(Named(encoders=2, decoders=1), status) is status


def test_without_encoder_workers_their_models_are_not_waited_for() -> None:
    status = fleet(decoders=1)
    assert waited(Named(encoders=0, decoders=1), status) is status


@pytest.mark.parametrize(
    ("there", "told"),
    [
        (fleet(decoders=1), "1 of 2 workers ready; models: writer ready on 1"),
        (fleet(encoders=1), "1 of 2 workers ready; models: labels ready on 1"),
        (fleet(), "0 of 2 workers ready; models: none"),
    ],
)
def test_who_is_missing_is_told_with_the_numbers(there: FleetStatus, told: str) -> None:
    with pytest.raises(ClusterError, match=told):
        waited(Named(encoders=1, decoders=1), there)
