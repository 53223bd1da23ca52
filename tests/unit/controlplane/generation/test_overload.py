"""The ladder of a model that generates: who waits outside, and whose answers are cut."""

from __future__ import annotations

from typing import Any, cast

import pytest

from controlplane.config import ClassConfig, ControlPlaneConfig
from controlplane.errors import Overloaded
from controlplane.generation.overload import Overload
from controlplane.generation.records import GenerationLimits
from controlplane.policy.admission import Refusal
from controlplane.policy.decode import DecodeLoad, DecodeProfile, Route
from controlplane.policy.ladder import Ladder, Rung
from controlplane.policy.records import RequestClass

MS = 1_000_000
TARGET_NS, TOKEN_NS = 500 * MS, 50 * MS
PROFILE = DecodeProfile(step_ns=5e6, prefill_ns=1e6, sequence_ns=1e6, arena_tokens=16_000)
CHAT = ClassConfig(overload_output_tokens=64, overload_output_quality=0.9)


def route(pending: int = 0) -> Route:
    held = DecodeLoad(pending_prompt_tokens=pending, total_blocks=1000, free_blocks=1000)
    return Route(1, "v", "q4", 0.95, PROFILE, held, most_tokens=4096)


def overload(**classes: ClassConfig) -> Overload:
    # Newcomers bring their routes along; only `refresh` asks registry and lanes.
    return Overload(ControlPlaneConfig(classes=classes), cast(Any, None), cast(Any, None))


def crowd(
    house: Overload, pending: int, now: int = 0, for_ns: int = 400 * MS
) -> tuple[Ladder, int]:
    """Newcomers of a plain class every 10 ms that find so many prompt tokens waiting."""
    ladder, end = house.ladder("m"), now + for_ns
    while now < end:
        now += 10 * MS
        ladder = house.newcomer("m", RequestClass(), [route(pending)], TARGET_NS, TOKEN_NS, now)
    return ladder, now


def test_prompts_that_wait_lift_to_deferring() -> None:
    house = overload()
    ladder, now = crowd(house, 0)
    assert ladder.rung == Rung.NORMAL
    ladder, now = crowd(house, 400, now)
    assert ladder.rung == Rung.DEFER
    batch = RequestClass(name="batch", deferrable=True)
    with pytest.raises(Overloaded) as refused:
        house.newcomer("m", batch, [route(400)], TARGET_NS, TOKEN_NS, now)
    assert refused.value.reason == Refusal.DEFERRED
    assert refused.value.retry_after_ms >= 2000


def test_the_emptiest_lane_counts() -> None:
    house = overload()
    for number in range(100):
        routes = [route(4000), route(0)]
        house.newcomer("m", RequestClass(), routes, TARGET_NS, TOKEN_NS, number * 10 * MS)
    assert house.ladder("m").rung == Rung.NORMAL


def test_answers_are_cut_where_the_class_declares_it_and_its_quality_allows() -> None:
    house = overload(chat=CHAT)
    chat = RequestClass(name="chat", minimum_quality=0.85)
    asked = GenerationLimits(max_tokens=400)
    ladder = house.ladder("m")
    assert house.limited(ladder, chat, asked) is asked
    ladder.rung = Rung.SHORTER
    assert house.limited(ladder, chat, asked).max_tokens == 64
    assert house.limited(ladder, chat, GenerationLimits()).max_tokens == 64
    short = GenerationLimits(max_tokens=16)
    assert house.limited(ladder, chat, short) is short
    # A floor above what cut answers were measured to be worth: they stay whole.
    strict = RequestClass(name="chat", minimum_quality=0.95)
    assert house.limited(ladder, strict, asked) is asked
    exact = RequestClass(name="chat", approximation=False)
    assert house.limited(ladder, exact, asked) is asked
    assert house.limited(ladder, RequestClass(), asked) is asked
    assert ladder.cut == 2


def test_a_cut_relieves_the_lane_of_the_tokens_it_takes_away() -> None:
    house = overload(chat=CHAT)
    chat = RequestClass(name="chat")
    ladder, _ = crowd(house, 160)
    assert ladder.rung >= Rung.SHORTER
    asked = [GenerationLimits(max_tokens=n) for n in (32, 64, 128, 256, 512)]
    after = [house.limited(ladder, chat, limits).max_tokens for limits in asked]
    assert after == [32, 64, 64, 64, 64]
    assert sum(after) < 0.3 * sum(limits.max_tokens for limits in asked)


@pytest.mark.parametrize(
    "wrong",
    [
        {"overload_output_tokens": -1, "overload_output_quality": 0.9},
        {"overload_output_tokens": 64},
        {"overload_output_tokens": 64, "overload_output_quality": 1.1},
    ],
)
def test_a_cut_needs_its_evidence(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="overload_output"):
        ClassConfig(**wrong)
