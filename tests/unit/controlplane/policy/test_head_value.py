"""Values of a head's age against what they are by definition."""

import itertools

import numpy as np
import pytest

from controlplane.policy.head_value import HeadValues, Option

MS = 1e6
DEADLINE = 90 * MS
SERVICES = (30 * MS, 8 * MS, 4 * MS)
QUALITIES = (0.92, 0.87, 0.84)
WORKERS = 2


def solved(services: tuple[float, ...] = SERVICES) -> HeadValues:
    values = HeadValues(DEADLINE, [service / WORKERS for service in services])
    ages = values.ages_ns()
    values.earn(
        [
            [quality * (DEADLINE - age >= service) for age in ages]
            for quality, service in zip(QUALITIES, services, strict=False)
        ]
    )
    for _ in range(1000):
        values.improve(10)
        if values.converged:
            return values
    raise AssertionError("the values did not converge")


VALUES = solved()


@pytest.mark.parametrize("rate_per_s", [20.0, 100.0, 400.0])
def test_an_older_head_is_worth_less(rate_per_s: float) -> None:
    found = VALUES.at(rate_per_s / 1e9, [age * MS for age in range(0, 90, 5)])
    assert found[0] == pytest.approx(0.0)
    assert all(older <= younger + 1e-9 for younger, older in itertools.pairwise(found))
    assert found[-1] < -0.05


def test_time_is_dearer_when_more_arrive() -> None:
    ages = [0.0, 40 * MS]
    losses = [young - old for young, old in (VALUES.at(r / 1e9, ages) for r in (20.0, 80.0, 300.0))]
    assert losses[0] < losses[1] < losses[2]


@pytest.mark.parametrize("load", [0.01, 100.0])
def test_the_expectation_is_that_over_the_next_arrival(load: float) -> None:
    # Beyond its ends the ladder holds its lowest and highest rate: 0.2 of the slowest
    # variant's capacity, 1.5 times the fastest one's.
    rate = 0.2 / 15e6 if load < 1.0 else 1.5 / 2e6
    asked = load / 15e6
    for elapsed in (0.0, 7.5 * MS, 40 * MS):
        gaps = np.linspace(0.0, elapsed, 4001)
        inside = np.array(VALUES.at(asked, (elapsed - gaps).tolist())) * rate * np.exp(-rate * gaps)
        widths = np.diff(gaps)
        integral = float(np.sum((inside[1:] + inside[:-1]) / 2 * widths))
        expected = integral + float(np.exp(-rate * elapsed)) * VALUES.at(asked, [0.0])[0]
        assert VALUES.after(asked, [elapsed])[0] == pytest.approx(expected, rel=1e-4, abs=2e-4)


def test_with_one_variant_and_time_for_all_nothing_is_worth_waiting_for() -> None:
    values = HeadValues(DEADLINE, [2 * MS])
    values.earn([[0.9] * len(values.ages_ns())])
    values.improve(400)
    # Light traffic never gets old enough to lose anything.
    assert values.at(0.2 / 2e6, [0.0, 20 * MS]) == pytest.approx([0.0, 0.0], abs=1e-6)


def test_services_far_beyond_the_deadline_cost_no_memory() -> None:
    values = HeadValues(1 * MS, [1e12, 2e12])
    values.earn([[0.0] * len(values.ages_ns())] * 2)
    values.improve(20)
    assert values.converged
    assert values.at(1e-9, [0.0, 5e11]) == pytest.approx([0.0, 0.0])


def test_values_are_carried_to_a_similar_service() -> None:
    services = tuple(service * 1.2 for service in SERVICES)
    values = HeadValues(DEADLINE, [service / WORKERS for service in services])
    assert not values.ready
    values.carry(VALUES)
    values.improve(1)
    assert values.ready
    ages = [20 * MS, 60 * MS]
    assert values.at(1e-7, ages) == pytest.approx(VALUES.at(1e-7, ages), abs=0.2)


def test_a_cascade_is_worth_its_first_answer_and_the_option_on_top() -> None:
    shares = [service / WORKERS for service in SERVICES]
    both, prices, worth = 34 * MS, (0.0, 0.1, 0.3), (0.08, 0.03, 0.0)
    values = HeadValues(DEADLINE, shares, [Option(2, both / WORKERS, prices, worth)])
    ages = values.ages_ns()

    def reward(place: int, age: float) -> float:
        return QUALITIES[place] * (DEADLINE - age >= SERVICES[place])

    values.earn(
        [[reward(place, age) for age in ages] for place in range(3)],
        [[float(DEADLINE - age >= both) for age in ages]],
    )
    while not values.converged:
        values.improve(10)
    low, high = 0.2 / shares[0], 1.5 / shares[2]
    rate = low * (high / low) ** (10 / 19)

    def best(age: float) -> float:
        dropped, *later = values.after(rate, [age, *[age + s for s in [*shares, both / WORKERS]]])
        direct = [reward(place, age) + later[place] for place in range(3)]
        option = float(np.interp(later[2] - later[3], prices, worth)) * (DEADLINE - age >= both)
        return max(dropped, *direct, direct[2] + option)

    found = values.at(rate, ages[::6])
    for age, value in zip(ages[::6], found, strict=True):
        assert best(age) - best(0.0) == pytest.approx(value, abs=3e-3)


def test_an_option_that_is_worth_nothing_changes_nothing() -> None:
    shares = [service / WORKERS for service in SERVICES]
    idle = HeadValues(DEADLINE, shares, [Option(2, 15 * MS, (0.0, 0.1), (0.0, 0.0))])
    plain = HeadValues(DEADLINE, shares)
    for values in (idle, plain):
        rewards = [[quality] * len(values.ages_ns()) for quality in QUALITIES]
        values.earn(rewards, [[1.0] * len(values.ages_ns())] if values is idle else ())
        values.improve(50)
    asked = [age * MS for age in range(0, 90, 7)]
    assert idle.at(1e-7, asked) == pytest.approx(plain.at(1e-7, asked), abs=1e-9)


def test_values_that_stood_still_follow_rewards_that_move() -> None:
    shares = [service / WORKERS for service in SERVICES]
    option = Option(2, shares[2] + shares[0], (0.0, 0.05, 0.1), (0.06, 0.02, 0.0))
    moved, fresh = HeadValues(DEADLINE, shares, [option]), HeadValues(DEADLINE, shares, [option])

    def earn(values: HeadValues, qualities: tuple[float, ...]) -> None:
        ages = values.ages_ns()
        likely = [max(0.0, 1.0 - age / DEADLINE) for age in ages]
        values.earn([[quality * part for part in likely] for quality in qualities], [likely])
        for _ in range(200):
            values.improve(10)

    earn(moved, QUALITIES)
    before = (moved.converged, moved.at(1e-7, [30 * MS]))
    earn(moved, QUALITIES)
    assert (moved.converged, moved.at(1e-7, [30 * MS])) == before == (True, before[1])
    earn(moved, (0.7, 0.65, 0.6))
    earn(fresh, (0.7, 0.65, 0.6))
    asked = [age * MS for age in range(0, 90, 7)]
    for rate in (2e-8, 1e-7, 3e-7):
        assert moved.at(rate, asked) == pytest.approx(fresh.at(rate, asked), abs=1e-3)
        assert moved.after(rate, asked) == pytest.approx(fresh.after(rate, asked), abs=1e-3)
    assert moved.at(1e-7, [30 * MS]) != before[1]


def test_values_that_stood_still_follow_many_small_steps() -> None:
    shares = [service / WORKERS for service in SERVICES]

    def earn(values: HeadValues, quality: float, rounds: int) -> None:
        likely = [max(0.0, 1.0 - age / DEADLINE) for age in values.ages_ns()]
        qualities = (quality, *QUALITIES[1:])
        values.earn([[each * part for part in likely] for each in qualities])
        values.improve(rounds)

    slow, fresh = HeadValues(DEADLINE, shares), HeadValues(DEADLINE, shares)
    earn(slow, 0.92, 4000)
    for step in range(1, 5001):
        earn(slow, 0.92 - step * 8e-6, 1)
    earn(fresh, 0.88, 4000)
    asked = [age * MS for age in range(0, 90, 7)]
    for rate in (2e-8, 1e-7):
        assert slow.at(rate, asked) == pytest.approx(fresh.at(rate, asked), abs=1e-3)
