"""Snapshots of a house on virtual time: what is shown is what the owners of the state say."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from controlplane.bounded_pool import Saturation
from controlplane.config import QueueConfig
from controlplane.deployed import MemoryLine, WorkerMemory
from controlplane.errors import Refused
from controlplane.generation.lanes import Lanes
from controlplane.generation.prompts import Prompts
from controlplane.generation.service import Generations
from controlplane.page.snapshot import Sources, arena_map
from controlplane.page.view import HouseView
from controlplane.policy.decode import DecodeLoad
from controlplane.preprocess import Preprocessor
from controlplane.registry import WorkerLoad
from controlplane.telemetry.timeline import RequestTimeline
from tests.unit.controlplane.fake_fleet import House
from tests.unit.controlplane.virtual_loop import virtual


class Idle:
    """A preprocessor with nothing to do."""

    def saturation(self) -> Saturation:
        return Saturation(0, 0, 1, 8)


class NoneSlow:
    """Nothing was slow."""

    def recent(self) -> tuple[RequestTimeline, ...]:
        return ()


def view_of(house: House) -> HouseView:
    loop = house.loop
    preprocessor = Preprocessor(house.registry, threads=1, max_queued=1, now_ns=loop.now_ns)
    preprocessor.close()
    lanes = Lanes(house.registry, now_ns=loop.now_ns, loop=loop, report_interval_ms=50)
    generations = Generations(
        house.config, house.registry, lanes, Prompts(preprocessor), now_ns=loop.now_ns
    )
    sources = Sources(
        id="cp",
        version="1.0",
        started_ns=0,
        registry=house.registry,
        dispatcher=house.dispatcher,
        generations=generations,
        preprocessing=Idle(),
        slow=NoneSlow(),
    )
    return HouseView(
        sources,
        now_ns=loop.now_ns,
        wall_ms=lambda: 1_700_000_000_000,
        usage=lambda: (loop.time() / 4, 1 << 20),
    )


def shown(view: HouseView, *, whole: bool = True) -> Any:
    text = view.render(whole=whole)
    assert b"\n" not in text
    return json.loads(text)


@virtual
async def test_an_empty_house_is_shown_as_one() -> None:
    house = House()
    view = view_of(house)
    view.sample()
    await house.pass_ms(1000)
    view.sample()
    page = shown(view)
    assert (page["schema"], page["whole"], page["at_ms"]) == (1, True, 1_700_000_000_000)
    assert page["workers"] == page["queues"] == page["generators"] == page["slow"] == []
    assert page["house"]["policy"] == "orchid-cascade" and page["house"]["uptime_s"] == 1.0
    assert page["house"]["cpu_percent"] == 25.0
    assert page["totals"]["on_time_share"] is None
    (sample,) = page["samples"]
    assert sample["models"] == {} and sample["seconds"] == 1.0
    house.close()


@virtual
async def test_queues_variants_and_workers_are_as_their_owners_have_them() -> None:
    house = House(prefetch=0)
    worker = house.join()
    view = view_of(house)
    view.sample()
    answers = [house.submit(1000) for _ in range(8)]
    await house.pass_ms(2)
    house.report(worker, WorkerLoad(running_items=1, host_cpu_percent=50.0, throttled_periods=3))
    page = shown(view)
    (queue,) = page["queues"]
    assert queue["model"] == "m" and queue["workers"] == 1
    assert (queue["queued"], queue["in_flight"]) == (7, 1)
    assert 0 < queue["predicted_work_ms"] <= 70
    assert 990 < queue["head_slack_ms"] < 1000
    assert [each["name"] for each in queue["variants"]] == ["best", "fast"]
    assert [each["quality"] for each in queue["variants"]] == [0.9, 0.8]
    (row,) = page["workers"]
    assert (row["id"], row["state"], row["held"], row["gone_s"]) == ("w1", "ready", 1, None)
    assert (row["host_cpu_percent"], row["throttled_periods"]) == (50.0, 3)
    assert row["models"][0]["variants"] == ["best", "fast"]
    assert page["totals"]["queued"] == 7 and page["totals"]["workers_ready"] == 1

    await asyncio.gather(*answers)
    await house.pass_ms(1000)
    view.sample()
    page = shown(view, whole=False)
    assert page["whole"] is False
    (sample,) = page["samples"]
    assert sample["models"]["m"]["outcomes"] == {"answered": 8}
    assert sum(sample["models"]["m"]["variants"].values()) == 8
    assert sum(sample["models"]["m"]["decided"].values()) == 8
    assert 0 < sample["choices"] <= 8 and sample["offered"] == 8
    (queue,) = page["queues"]
    assert queue["rates"]["on_time_share"] == page["totals"]["on_time_share"] == 1.0
    assert queue["head_slack_ms"] is None
    house.close()


@virtual
async def test_refusals_are_counted_by_reason() -> None:
    house = House(queue=QueueConfig(max_items=1), prefetch=0)
    house.join(change=lambda worker: setattr(worker, "slowness", 50.0))
    view = view_of(house)
    view.sample()
    late = [house.submit(60)]
    await house.pass_ms(1)
    late.append(house.submit(60))
    for _ in range(3):
        try:
            house.submit(60)
        except Refused:
            pass
        else:
            raise AssertionError("the queue holds one")
    await asyncio.gather(*late, return_exceptions=True)
    await house.pass_ms(1000)
    view.sample()
    page = shown(view)
    (queue,) = page["queues"]
    assert queue["reasons"]["queue-full"] == 3
    assert queue["outcomes"]["refused"] >= 3
    missed = sum(n for name, n in queue["reasons"].items() if name.startswith("deadline-passed-"))
    assert missed == queue["outcomes"]["too-late"] == 2
    (sample,) = page["samples"]
    assert sample["models"]["m"]["reasons"] == queue["reasons"]
    assert queue["rates"]["on_time_share"] == 0.0
    house.close()


@virtual
async def test_a_worker_that_is_lost_stays_in_sight() -> None:
    house = House()
    worker = house.join()
    view = view_of(house)
    view.sample()
    await house.pass_ms(500)
    house.leave(worker)
    view.sample()
    await house.pass_ms(2000)
    page = shown(view)
    (row,) = page["workers"]
    assert (row["id"], row["state"], row["held"]) == ("w1", "lost", 0)
    assert row["gone_s"] == 2.0
    assert page["totals"]["workers"] == 0
    (queue,) = page["queues"]
    assert (queue["workers"], queue["state"]) == (0, "without workers")
    house.join("w1")
    view.sample()
    assert [each["state"] for each in shown(view)["workers"]] == ["ready"]
    house.close()


@virtual
async def test_why_a_worker_cannot_be_used_is_shown_until_it_is_over_or_gone() -> None:
    house = House()
    worker = house.join()
    view = view_of(house)
    view.sample()
    assert shown(view)["workers"][0]["trouble"] == ""
    worker.session.trouble = "does not describe itself: <b>"
    assert shown(view)["workers"][0]["trouble"] == "does not describe itself: <b>"
    house.leave(worker)
    view.sample()
    assert shown(view)["workers"][0]["trouble"] == ""
    house.close()


@virtual
async def test_what_a_workers_memory_is_for_is_shown_while_it_is_there() -> None:
    house = House()
    worker = house.join()
    view = view_of(house)
    view.sample()
    assert shown(view)["workers"][0]["memory"] is None
    names = ["runtime", "weights", "state", "loading", "workspace", "requests", "sequences"]
    names += ["prefixes", "arena", "allocator", "of another release"]
    lines = [MemoryLine(name, "<b>", 1 << number) for number, name in enumerate(names)]
    worker.session.memory = WorkerMemory(tuple(lines), 2047, 2100, 7, "host", 4096)
    assert shown(view)["workers"][0]["memory"] == {
        "weights": 2 + 4 + 8,
        "runtime": 1 + 512 + 1024,
        "workspace": 16 + 32,
        "caches": 64 + 128 + 256,
        "free": 7,
        "limited_by": "host",
        "measured": 2100,
        "budget": 4096,
    }
    house.leave(worker)
    view.sample()
    assert shown(view)["workers"][0]["memory"] is None
    house.close()


def test_an_arena_is_divided_into_free_cached_and_used_blocks() -> None:
    load = DecodeLoad(
        total_blocks=8, free_blocks=3, evictable_blocks=1, block_map=bytes([2, 2, 3, 3, 1, 0, 0, 0])
    )
    arena = arena_map(load)
    assert (arena.free_blocks, arena.cached_blocks, arena.used_blocks) == (3, 1, 4)
    assert (arena.occupancy, arena.cells, arena.blocks_per_cell) == (0.5, "22331000", 1)
    large = arena_map(DecodeLoad(total_blocks=3000, free_blocks=3000, block_map=bytes(1000)))
    assert (large.blocks_per_cell, large.occupancy) == (3, 0.0)


def test_a_map_that_is_none_is_left_out() -> None:
    assert arena_map(DecodeLoad()).cells == ""
    assert arena_map(DecodeLoad(total_blocks=2, block_map=bytes(3))).cells == ""
    assert arena_map(DecodeLoad(total_blocks=2, block_map=bytes([0, 4]))).cells == ""
