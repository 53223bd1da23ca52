"""A tenant inside its reservation beside one that floods, in the simulated world."""

from __future__ import annotations

import pytest

from bench.sim.model import two_variants
from bench.sim.tenants import Scene, Share, play
from bench.sim.workload import REVIEW_LENGTHS

TABLE = two_variants().table()


@pytest.fixture(scope="module")
def shares() -> dict[tuple[str, str], Share]:
    # Ten times the steady tenant's reservation, which is half of the two workers.
    scene = Scene(deadline_ms=100.0, seconds=5.0, warmup_s=1.0)
    found = play(scene, TABLE, REVIEW_LENGTHS, seed=1)
    return {(share.setting, share.tenant): share for share in found}


def test_a_flood_costs_a_tenant_in_its_reservation_nothing(
    shares: dict[tuple[str, str], Share],
) -> None:
    alone, beside = shares["alone", "steady"], shares["with", "steady"]
    assert alone.offered == beside.offered > 200
    assert beside.on_time >= alone.on_time - 0.02
    assert beside.p99_ms <= 1.1 * alone.p99_ms
    assert shares["without", "steady"].on_time < 0.6


def test_what_is_not_used_is_lent(shares: dict[tuple[str, str], Share]) -> None:
    flood = shares["with", "bursty"]
    # The flood's own share is one of two workers.
    assert flood.charged_cores > 1.3
    assert flood.charged_cores + shares["with", "steady"].charged_cores > 1.9


def test_who_is_admitted_is_answered_in_time(shares: dict[tuple[str, str], Share]) -> None:
    for tenant in ("steady", "bursty"):
        share = shares["with", tenant]
        assert share.on_time / (1.0 - share.refused) > 0.97
