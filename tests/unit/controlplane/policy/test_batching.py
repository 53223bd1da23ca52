"""Case 13: a shared run only where it pays and everybody is still on time."""

from collections.abc import Iterator
from dataclasses import replace

from controlplane.policy.batching import Member, Run, better_late, fair_share, grow, pays
from controlplane.policy.profiles import VariantProfile
from controlplane.policy.records import Shape

CHEAP_TO_SHARE = VariantProfile(s0_ns=50.0, s1_ns=5.0)
LINEAR = VariantProfile(s0_ns=1.0, s1_ns=10.0)
TEN = Shape.of_lengths([10])
RUN = Run(
    profile=CHEAP_TO_SHARE,
    factor=1.0,
    sigma=0.1,
    start_ns=0.0,
    start_spread_ns=0.0,
    ahead_ns=0.0,
    workers=1,
    z=1.645,
    reserve=0.35,
    fallback=True,
)


def member(slack: int = 2000, shape: Shape = TEN) -> Member:
    return Member(shape=shape, slack_ns=slack, deadline_ns=2000, fastest_ns=100.0)


def test_the_profile_says_whether_sharing_pays() -> None:
    assert pays(CHEAP_TO_SHARE, TEN)
    assert not pays(LINEAR, TEN)
    assert not pays(CHEAP_TO_SHARE, Shape.of_lengths([400]))


def test_nothing_is_shared_where_it_does_not_pay() -> None:
    assert grow(member(), [member()], replace(RUN, profile=LINEAR), 8) == []


def test_followers_join_up_to_the_limit() -> None:
    followers = [member() for _ in range(6)]
    assert grow(member(), followers, RUN, 4) == [0, 1, 2]
    assert grow(member(), followers, RUN, 1) == []


def test_everybody_is_still_on_time_after_the_longer_run() -> None:
    # Two take 150 ns, 174.7 with margin; three 200, 232.9.
    assert grow(member(slack=200), [member(), member()], RUN, 8) == [0]
    assert grow(member(), [member(slack=120), member(slack=240)], RUN, 8) == [1]
    assert grow(member(slack=200), [member()], replace(RUN, start_ns=30.0), 8) == []


def test_a_run_stays_within_the_reserve_of_its_members() -> None:
    # 0.35 * 2000 = 700 ns: thirteen of 50 + 50 n.
    followers = [member(slack=10**6) for _ in range(40)]
    assert len(grow(member(slack=10**6), followers, RUN, 40)) == 12


def test_an_upgrade_is_shared_only_while_the_work_stays_in_reserve() -> None:
    upgrade = replace(RUN, fallback=False, ahead_ns=650.0)
    assert grow(member(), [member()], upgrade, 8) == [0]
    assert grow(member(), [member()], replace(upgrade, ahead_ns=660.0), 8) == []


def test_a_long_follower_is_left_out_and_a_short_one_behind_it_joins() -> None:
    followers = [member(shape=Shape.of_lengths([400])), member()]
    assert grow(member(), followers, RUN, 8) == [1]


def test_free_workers_are_not_left_without_work() -> None:
    assert fair_share(waiting=8, takers=4) == 2
    assert fair_share(waiting=3, takers=4) == 1
    assert fair_share(waiting=5, takers=2) == 3


def test_the_search_ends_when_nobody_fits_any_more() -> None:
    read = []

    def followers() -> Iterator[Member]:
        for place in range(1000):
            read.append(place)
            yield member(slack=100)

    assert grow(member(), followers(), RUN, 8) == []
    assert len(read) == 5


def test_a_short_run_that_others_may_share_is_held_back_until_its_worker_is_free() -> None:
    def held(
        service_ns: float = 100.0, room: int = 5, profile: VariantProfile = CHEAP_TO_SHARE
    ) -> bool:
        return better_late(profile, TEN, service_ns=service_ns, trip_ns=1000.0, room=room)

    assert held()
    assert not held(service_ns=1000.0)
    assert not held(room=0)
    assert not held(profile=LINEAR)
