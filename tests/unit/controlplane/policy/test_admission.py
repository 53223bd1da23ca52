"""The door: exact bounds, early refusal, and a retry-after from the drain time."""

import pytest

from controlplane.policy.admission import Admission, Bounds, Load, Refusal, admit
from controlplane.policy.margins import completion_ns

MS = 1_000_000
BOUNDS = Bounds(max_items=3, max_work_ns=100 * MS)
IDLE = Load(wait_ns=0.0, total_ns=0.0, queued=0, workers=2, idle=2)


def ask(
    load: Load = IDLE,
    *,
    slack_ms: float = 30.0,
    service_ms: float = 4.0,
    hopeful_ms: float | None = None,
    sigma: float = 0.1,
    z: float = 1.645,
    trip_ms: float = 0.0,
) -> Admission:
    return admit(
        (0, 1),
        service_ns=service_ms * MS,
        hopeful_ns=(service_ms if hopeful_ms is None else hopeful_ms) * MS,
        sigma=sigma,
        slack_ns=int(slack_ms * MS),
        trip_ns=trip_ms * MS,
        load=load,
        bounds=BOUNDS,
        z=z,
    )


def busy(wait_ms: float, queued: int = 1, total_ms: float | None = None) -> Load:
    total = 2 * wait_ms if total_ms is None else total_ms
    return Load(wait_ms * MS, total * MS, queued, workers=2, idle=0)


def test_an_idle_pool_admits() -> None:
    admission = ask()
    assert admission.admitted
    assert admission.variants == (0, 1)
    assert admission.completion_ns == pytest.approx(4 * MS * 1.1645)


def test_completion_is_wait_plus_service_plus_margin() -> None:
    assert completion_ns(4.0, 0.0, 1.645, 20.0, 2) == 24.0
    spread = 0.1 * (20.0 * 4.0 / 2) ** 0.5
    assert completion_ns(4.0, 0.1, 2.0, 20.0, 2) == pytest.approx(24.0 + 2.0 * spread + 0.8)


def test_what_cannot_be_on_time_behind_the_work_ahead_is_refused_at_once() -> None:
    assert ask(busy(26.0), sigma=0.0).admitted
    refused = ask(busy(30.0), sigma=0.0)
    assert refused.reason == Refusal.BEHIND_WORK
    # 30 + 4 = 34 ms against 30: four ms have to drain first.
    assert refused.retry_after_ms == 4


def test_the_item_bound_is_exact() -> None:
    assert ask(busy(0.0, queued=2)).admitted
    full = ask(busy(0.0, queued=3, total_ms=24.0))
    assert full.reason == Refusal.QUEUE_FULL
    assert full.retry_after_ms == 12


def test_predicted_work_is_bounded_per_live_worker() -> None:
    assert ask(busy(0.0, total_ms=196.0)).admitted
    over = ask(busy(0.0, total_ms=198.0))
    assert (over.reason, over.retry_after_ms) == (Refusal.WORK_BOUND, 1)


def test_a_deadline_below_the_service_is_no_matter_of_retrying() -> None:
    hopeless = ask(slack_ms=2.0)
    assert (hopeless.reason, hopeless.retry_after_ms) == (Refusal.TOO_SHORT, 0)
    assert hopeless.completion_ns < ask(slack_ms=1000.0).completion_ns
    assert ask(slack_ms=3.0).admitted


def test_an_idle_worker_tries_what_only_a_wrong_correction_forbids() -> None:
    assert ask(service_ms=4000.0, hopeful_ms=4.0).admitted
    assert ask(busy(4000.0), service_ms=4000.0, hopeful_ms=4.0).reason != ""


def test_the_way_there_and_back_takes_its_time_but_cannot_silence_a_pool() -> None:
    assert ask(busy(20.0), trip_ms=4.0).admitted
    assert ask(busy(20.0), trip_ms=5.0).reason == Refusal.BEHIND_WORK
    assert ask(trip_ms=500.0).admitted
    assert ask(slack_ms=3.7, trip_ms=500.0).reason == Refusal.TOO_SHORT


@pytest.mark.parametrize("slack_ms", [0.0, -5.0])
def test_expired_is_refused_before_everything_else(slack_ms: float) -> None:
    assert ask(slack_ms=slack_ms).reason == Refusal.EXPIRED
    assert ask(busy(0.0, queued=99), slack_ms=slack_ms).reason == Refusal.EXPIRED


def test_without_workers_nothing_is_admitted() -> None:
    nobody = Load(0.0, 0.0, 0, workers=0, idle=0)
    assert ask(nobody).reason == Refusal.NO_WORKER
