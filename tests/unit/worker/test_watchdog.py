from __future__ import annotations

from collections.abc import Callable

from worker.watchdog import Watchdog


class FakeTimer:
    def __init__(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.fire = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Bench:
    """A watchdog over an engine loop that answers with what it was told to."""

    def __init__(self) -> None:
        self.now = 0
        self.timers: list[FakeTimer] = []
        self.looked_at: list[int] = []
        self.following: int | None = None
        self.dog = Watchdog(self, lambda: self.now, self.call_later)

    def expire(self, now_ns: int) -> int | None:
        self.looked_at.append(now_ns)
        return self.following

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(delay_s, callback))
        return self.timers[-1]


def test_one_timer_stands_at_the_earliest_deadline() -> None:
    bench = Bench()
    bench.dog.watch(50_000_000)
    bench.dog.watch(90_000_000)
    assert [timer.delay_s for timer in bench.timers] == [0.05]
    bench.dog.watch(20_000_000)
    assert bench.timers[0].cancelled and bench.timers[1].delay_s == 0.02


def test_it_goes_on_to_the_next_deadline_until_there_is_none() -> None:
    bench = Bench()
    bench.dog.watch(20_000_000)
    bench.now, bench.following = 20_000_000, 60_000_000
    bench.timers[-1].fire()
    assert bench.looked_at == [20_000_000] and bench.timers[-1].delay_s == 0.04
    bench.now, bench.following = 60_000_000, None
    bench.timers[-1].fire()
    assert len(bench.timers) == 2
    bench.dog.watch(61_000_000)
    assert len(bench.timers) == 3


def test_past_and_far_deadlines_make_bounded_timers() -> None:
    bench = Bench()
    bench.now = 10**9
    bench.dog.watch(1)
    assert bench.timers[-1].delay_s == 0.001
    bench.dog.stop()
    assert bench.timers[-1].cancelled
    bench.dog.watch(1 << 80)
    assert bench.timers[-1].delay_s == 3600.0
