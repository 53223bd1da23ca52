"""The scenes of the drill, and what must be true of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.drill.arithmetic import FIXTURE, Fixture
from bench.drill.scene import (
    COMPACT,
    CPU,
    ELIGIBLE,
    FLOOD,
    FULL,
    NO_ANSWER,
    SHARES,
    STEADY,
    STRICT,
    Answered,
    Ask,
    Check,
    Figures,
    Judge,
    Load,
    Pin,
    Scene,
    asks_of,
    everybody,
    figures,
    flooding,
)

# How near live and simulated figures, and both and the arithmetic, must be.
NEAR = 0.05
_ON_TIME = 0.98
_PINNED = Pin(strict=FULL, eligible=FULL)
_ROUTED = Pin(strict=FULL, eligible=COMPACT)
# The steady tenant stays well inside its half, beside ten times the other half.
_STEADY_FACTOR = 0.35
_FLOOD_TIMES = 10.0
# It may use what the steady tenant leaves, and the compact variant.
_FLOOD_REFUSED = 0.4


def scenes(fixture: Fixture, seconds: float) -> list[Scene]:
    """Everything that is played, in order, for so many seconds each."""
    surge = fixture.surge

    def scene(
        name: str,
        tells: str,
        asks: tuple[Ask, ...],
        judge: Judge,
        compact_quality: float = fixture.compact_quality,
        loses_at_s: float = 0.0,
        agree: tuple[str, ...] = (CPU, *SHARES),
        agree_of: Callable[[Ask], bool] = everybody,
    ) -> Scene:
        return Scene(
            name, tells, asks, seconds, compact_quality, judge, loses_at_s, agree, agree_of
        )

    def asks(factor: float, pin: Pin, heavy_every: int = 0) -> tuple[Ask, ...]:
        return asks_of(fixture, seconds, Load(factor, pin, heavy_every))

    steady = asks(_STEADY_FACTOR, Pin())
    beside = (*steady, *flooding(fixture, seconds, _FLOOD_TIMES))
    return [
        scene(
            "offered",
            "short and long requests, all on the full variant",
            asks(1.0, _PINNED),
            _costs(fixture, fixture.offered(), FIXTURE.offered(), on_time=True),
        ),
        scene(
            "surge",
            f"{surge:g} times as many, still on the full variant",
            asks(surge, _PINNED),
            _costs(fixture, fixture.offered(surge), FIXTURE.offered(surge), on_time=False),
        ),
        scene(
            "compact",
            "the surge with its eligible requests on the compact variant",
            asks(surge, _ROUTED),
            _costs(fixture, fixture.left(surge), FIXTURE.left(surge), on_time=True),
        ),
        scene(
            "chosen",
            "the surge, variants chosen by the control plane",
            asks(surge, Pin()),
            _all_of(_on_time(everybody), _floors(fixture)),
            agree=SHARES,
        ),
        scene(
            "floor violated",
            "the compact variant's evidence falls below the floor; eligible requests insist on it",
            asks(1.0, Pin(eligible=COMPACT)),
            _all_of(_no_fallback, _on_time(_of_class(STRICT)), _floors(fixture)),
            compact_quality=fixture.floor - 0.01,
            agree=SHARES,
        ),
        scene(
            "worker lost",
            "a worker is killed after a third of the time",
            asks(1.0, Pin()),
            _all_of(_nothing_lost, _on_time(everybody), _floors(fixture)),
            loses_at_s=seconds / 3,
            agree=SHARES,
        ),
        scene(
            "underpredicted",
            "every other long request takes twice what is foreseen",
            asks(0.7, Pin(), heavy_every=2),
            _all_of(_on_time(lambda ask: not ask.heavy, 0.97), _floors(fixture)),
        ),
        scene(
            "alone",
            "a tenant inside its reservation, for comparison",
            steady,
            _on_time(everybody),
            agree=SHARES,
        ),
        scene(
            "flood",
            f"beside it {_FLOOD_TIMES:g} times the other tenant's share, long requests all",
            tuple(sorted(beside, key=lambda ask: ask.at_ns)),
            _isolated,
            agree=SHARES,
            agree_of=_of_tenant(STEADY),
        ),
    ]


# --- what must be ------------------------------------------------------------------------


def _of_class(klass: str) -> Callable[[Ask], bool]:
    return lambda ask: ask.klass == klass


def _of_tenant(tenant: str) -> Callable[[Ask], bool]:
    return lambda ask: ask.tenant == tenant


def _all_of(*judges: Judge) -> Judge:
    def judge(scene: Scene, live: Sequence[Answered], simulated: Sequence[Answered]) -> list[Check]:
        return [check for each in judges for check in each(scene, live, simulated)]

    return judge


def _costs(fixture: Fixture, wanted: float, original: float, *, on_time: bool) -> Judge:
    """The charged CPU time is the arithmetic's, and so is its share of what may be used."""

    def judge(scene: Scene, live: Sequence[Answered], simulated: Sequence[Answered]) -> list[Check]:
        one, other = figures(live, scene.seconds), figures(simulated, scene.seconds)
        checks = [
            Check(
                "CPU-ms a second",
                f"{wanted:,.1f} ({original:,.1f} on {FIXTURE.units} units)",
                f"{one.cpu_ms_per_s:,.1f}",
                f"{other.cpu_ms_per_s:,.1f}",
                _near(one.cpu_ms_per_s, wanted) and _near(other.cpu_ms_per_s, wanted),
            ),
            Check(
                "of what may be used",
                f"{fixture.share(wanted):.2%}",
                f"{fixture.share(one.cpu_ms_per_s):.2%}",
                f"{fixture.share(other.cpu_ms_per_s):.2%}",
                _near(one.cpu_ms_per_s, wanted),
            ),
        ]
        more = _on_time(everybody)(scene, live, simulated) if on_time else []
        return checks + more

    return judge


def _on_time(of: Callable[[Ask], bool], least: float = _ON_TIME) -> Judge:
    """Of those that were let in nearly all are on time."""

    def judge(scene: Scene, live: Sequence[Answered], simulated: Sequence[Answered]) -> list[Check]:
        one, other = (figures(each, scene.seconds, of) for each in (live, simulated))
        return [
            Check(
                "on time of the admitted",
                f"at least {least:.2f}",
                f"{one.on_time_of_admitted:.4f}",
                f"{other.on_time_of_admitted:.4f}",
                one.on_time_of_admitted >= least and other.on_time_of_admitted >= least,
            )
        ]

    return judge


def _floors(fixture: Fixture) -> Judge:
    """No answer is worse than its class allows."""
    middle = (fixture.full_quality + fixture.compact_quality) / 2

    def judge(scene: Scene, live: Sequence[Answered], simulated: Sequence[Answered]) -> list[Check]:
        lowest = []
        for answers in (live, simulated):
            by_class = {
                klass: figures(answers, scene.seconds, _of_class(klass))
                for klass in (STRICT, ELIGIBLE)
            }
            lowest.append({name: each.lowest_quality for name, each in by_class.items()})
        wanted = {STRICT: middle, ELIGIBLE: fixture.floor}
        return [
            Check(
                f"lowest quality, {klass}",
                f"at least {floor:.2f}",
                _quality(lowest[0][klass]),
                _quality(lowest[1][klass]),
                min(each[klass] for each in lowest) >= floor,
            )
            for klass, floor in wanted.items()
        ]

    return judge


def _quality(lowest: float) -> str:
    return f"{lowest:.2f}" if lowest < NO_ANSWER else "no answer"


def _no_fallback(
    scene: Scene, live: Sequence[Answered], simulated: Sequence[Answered]
) -> list[Check]:
    """A fallback below the floor answers nobody: requests that insist on it are refused."""
    one, other = (figures(each, scene.seconds, _of_class(ELIGIBLE)) for each in (live, simulated))
    return [
        Check(
            "refused of the eligible",
            "all",
            f"{one.refused:.4f}",
            f"{other.refused:.4f}",
            one.refused == 1.0 == other.refused,
        )
    ]


def _nothing_lost(
    scene: Scene, live: Sequence[Answered], simulated: Sequence[Answered]
) -> list[Check]:
    """Every request ends in an answer, a refusal or its deadline."""
    one, other = figures(live, scene.seconds), figures(simulated, scene.seconds)
    return [Check("lost", "0", str(one.lost), str(other.lost), one.lost == other.lost == 0)]


def _isolated(scene: Scene, live: Sequence[Answered], simulated: Sequence[Answered]) -> list[Check]:
    """The steady tenant is served as if it were alone; the flood hears refusals."""
    one, other = (figures(each, scene.seconds, _of_tenant(STEADY)) for each in (live, simulated))
    flood, flooded = (figures(each, scene.seconds, _of_tenant(FLOOD)) for each in (live, simulated))
    return [
        Check(
            "steady tenant on time",
            "at least 0.98 of all it asks",
            f"{one.on_time:.4f}",
            f"{other.on_time:.4f}",
            one.on_time >= _ON_TIME and other.on_time >= _ON_TIME,
        ),
        Check(
            "refused of the flood",
            f"more than {_FLOOD_REFUSED}",
            f"{flood.refused:.4f}",
            f"{flooded.refused:.4f}",
            min(flood.refused, flooded.refused) > _FLOOD_REFUSED,
        ),
    ]


def agreement(scene: Scene, live: Sequence[Answered], simulated: Sequence[Answered]) -> Check:
    """The simulator says what the cluster does, within 5 %.

    Not of CPU time where variants are chosen: how crowded it is decides between them, and the
    simulated workers have to themselves the cores that here the control plane and the drill share.
    Nor where cores are idle most of the time: a request costs more there than the steady work that
    the model was measured by.
    """
    one, other = (figures(each, scene.seconds, scene.agree_of) for each in (live, simulated))
    apart = {
        CPU: one.cpu_ms_per_s / max(1e-9, other.cpu_ms_per_s) - 1.0,
        "on time": one.on_time - other.on_time,
        "refused": one.refused - other.refused,
    }
    worst = max(scene.agree, key=lambda name: abs(apart[name]))
    return Check(
        "live against simulated",
        f"within {NEAR:.0%}",
        f"{worst} {apart[worst]:+.2%}",
        "",
        abs(apart[worst]) <= NEAR,
    )


def cost_of(scene: Scene, fixture: Fixture) -> float:
    """CPU-ms a second of a scene's requests when the full variant answers them all."""
    full_ms = {kind.name: kind.full_ms for kind in fixture.kinds}
    return sum(full_ms[ask.kind] for ask in scene.asks) / scene.seconds


def _near(value: float, wanted: float) -> bool:
    return abs(value / wanted - 1.0) <= NEAR


def point(name: str, where: str, found: Figures) -> dict[str, float | str]:
    """The figures of a scene as JSON values."""
    return {
        "scene": name,
        "where": where,
        "offered": found.offered,
        "on_time": found.on_time,
        "on_time_of_admitted": found.on_time_of_admitted,
        "refused": found.refused,
        "lost": found.lost,
        "cpu_ms_per_s": found.cpu_ms_per_s,
        "compact_share": found.compact_share,
        "lowest_quality": found.lowest_quality,
        "p99_ms": found.p99_ms,
    }
