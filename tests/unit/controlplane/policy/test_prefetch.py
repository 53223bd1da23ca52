"""When a busy worker gets its next run."""

from controlplane.policy.prefetch import lead_ns, wants_more


def test_the_lead_covers_the_way_and_an_early_end() -> None:
    assert lead_ns(1.0, 10.0, 0.1) == 2.0


def test_an_idle_worker_always_wants_more() -> None:
    assert wants_more(held=0, prefetch=0, in_hand_ns=0.0, lead=1.0)


def test_without_prefetch_a_busy_worker_wants_nothing() -> None:
    assert not wants_more(held=1, prefetch=0, in_hand_ns=0.0, lead=1.0)


def test_a_worker_wants_more_only_near_the_end_of_what_it_holds() -> None:
    assert not wants_more(held=1, prefetch=1, in_hand_ns=3.0, lead=2.0)
    assert wants_more(held=1, prefetch=1, in_hand_ns=2.0, lead=2.0)
    assert not wants_more(held=2, prefetch=1, in_hand_ns=0.0, lead=2.0)


def test_runs_shorter_than_the_way_go_out_several_at_a_time() -> None:
    held, in_hand = 1, 0.1
    while wants_more(held=held, prefetch=16, in_hand_ns=in_hand, lead=1.0):
        held, in_hand = held + 1, in_hand + 0.1
    assert held == 11
