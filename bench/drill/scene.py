"""What is played in a drill: scenes of requests at fixed moments, the same live and simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench.drill.arithmetic import Fixture, Kind
from controlplane.config import ClassConfig
from controlplane.tenants import TenantConfig, TenantsConfig

MODEL, FULL, COMPACT = "drill", "full", "compact"
STEADY, FLOOD = "steady", "flood"
# Requests of this class need the full variant, those of the other one may have the compact one.
STRICT, ELIGIBLE = "strict", "eligible"
# Tokens of the two kinds of request, beginning and end included.
TOKENS = {"short": 12, "long": 100}
# What the profile does not foresee takes so many times as long.
SURPRISE = 2.0


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: when it comes, what it is and what it allows; `variant` pins it."""

    at_ns: int
    kind: str
    klass: str
    tenant: str = STEADY
    variant: str = ""
    heavy: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """How a request ended: a word, and of an answer its variant, quality and charged CPU time."""

    ask: Ask
    ending: str
    variant: str = ""
    quality: float = 0.0
    cpu_ms: float = 0.0
    took_ms: float = 0.0


ON_TIME, LATE, REFUSED, LOST = "on-time", "late", "refused", "lost"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must be: what happened, live and simulated, and whether it did."""

    what: str
    must: str
    live: str
    simulated: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Figures:
    """What became of a scene. Shares are of the requests of `of`; CPU-ms are a second."""

    offered: int
    on_time: float
    on_time_of_admitted: float
    refused: float
    lost: int
    cpu_ms_per_s: float
    compact_share: float
    lowest_quality: float
    p99_ms: float


# The lowest quality where nobody was answered.
NO_ANSWER = 1.0
# What live and simulated figures are compared by.
CPU = "CPU"
SHARES = ("on time", "refused")


def everybody(ask: Ask) -> bool:
    """Requests of all."""
    return True


Judge = Callable[["Scene", Sequence[Answered], Sequence[Answered]], list[Check]]


@dataclass(frozen=True, slots=True)
class Scene:
    """Requests of some seconds, and what happens meanwhile.

    `compact_quality` is the compact variant's evidence. `loses_at_s` above 0 kills a worker then.
    `agree` is on which figures of `agree_of`'s requests the simulator must agree with the cluster.
    """

    name: str
    tells: str
    asks: tuple[Ask, ...]
    seconds: float
    compact_quality: float
    judge: Judge
    loses_at_s: float = 0.0
    agree: tuple[str, ...] = (CPU, *SHARES)
    agree_of: Callable[[Ask], bool] = everybody


def figures(
    answered: Sequence[Answered],
    seconds: float,
    of: Callable[[Ask], bool] = everybody,
) -> Figures:
    """The figures of those requests that count."""
    mine = [each for each in answered if of(each.ask)]
    good = [each for each in mine if each.ending == ON_TIME]
    admitted = [each for each in mine if each.ending != REFUSED]
    took = sorted(each.took_ms for each in good)
    return Figures(
        offered=len(mine),
        on_time=len(good) / max(1, len(mine)),
        on_time_of_admitted=len(good) / max(1, len(admitted)),
        refused=1.0 - len(admitted) / max(1, len(mine)),
        lost=sum(each.ending == LOST for each in mine),
        cpu_ms_per_s=sum(each.cpu_ms for each in mine) / seconds,
        compact_share=sum(each.variant == COMPACT for each in good) / max(1, len(good)),
        lowest_quality=min((each.quality for each in good), default=NO_ANSWER),
        p99_ms=took[math.ceil(0.99 * len(took)) - 1] if took else 0.0,
    )


def classes(fixture: Fixture) -> Mapping[str, ClassConfig]:
    """The two request classes, by their floors."""
    middle = (fixture.full_quality + fixture.compact_quality) / 2
    return {
        STRICT: ClassConfig(minimum_quality=middle),
        ELIGIBLE: ClassConfig(minimum_quality=fixture.floor),
    }


def tenants(workers: int) -> TenantsConfig:
    """Two tenants, each with half of the workers' time."""
    half = workers * 500
    named = {name: TenantConfig(cpu_ms_per_s=half) for name in (STEADY, FLOOD)}
    return TenantsConfig(named=named)


@dataclass(frozen=True, slots=True)
class Pin:
    """Which variants a scene pins, of strict and of eligible requests; empty leaves it open."""

    strict: str = ""
    eligible: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """How a scene's requests are drawn up: at so many times the fixture's rates.

    Every `heavy_every`-th long one takes `SURPRISE` times what is foreseen, 0 for none.
    """

    factor: float = 1.0
    pin: Pin = field(default_factory=Pin)
    heavy_every: int = 0


def asks_of(fixture: Fixture, seconds: float, load: Load) -> tuple[Ask, ...]:
    """Evenly spaced requests of each kind, of which the fixture's share is eligible."""
    found: list[Ask] = []
    for place, kind in enumerate(fixture.kinds):
        found += _asks(kind, seconds, load, place / (1 + len(fixture.kinds)))
    return tuple(sorted(found, key=lambda ask: ask.at_ns))


def flooding(fixture: Fixture, seconds: float, times: float) -> tuple[Ask, ...]:
    """Long requests of the flooding tenant, `times` its half of what the workers can do."""
    long = fixture.kinds[-1]
    per_s = times * fixture.units * 500.0 / long.full_ms
    count = round(per_s * seconds)
    return tuple(
        Ask(int((number + 0.5) / per_s * 1e9), long.name, ELIGIBLE, FLOOD)
        for number in range(count)
    )


def _asks(kind: Kind, seconds: float, load: Load, shift: float) -> Iterator[Ask]:
    per_s = kind.per_s * load.factor
    for number in range(round(per_s * seconds)):
        # Spread evenly: the n-th is eligible where n shares pass a whole number.
        eligible = int((number + 1) * kind.eligible) > int(number * kind.eligible)
        heavy = kind.name == "long" and bool(load.heavy_every) and number % load.heavy_every == 0
        yield Ask(
            at_ns=int((number + shift) / per_s * 1e9),
            kind=kind.name,
            klass=ELIGIBLE if eligible else STRICT,
            variant=load.pin.eligible if eligible else load.pin.strict,
            heavy=heavy,
        )
