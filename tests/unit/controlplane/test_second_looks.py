"""Cascades in the dispatcher: one request and one answer, however many variants were asked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from dataclasses import replace

import pytest

from controlplane.config import ClassConfig
from controlplane.deployed import ModelInfo
from controlplane.errors import Cancelled, Refused
from controlplane.policy.cascade import Calibration, Escalation
from controlplane.policy.records import Answer, Request, RequestClass, Shape
from controlplane.policy.selector import Reason
from controlplane.work import ItemStatus
from tests.unit.controlplane.fake_fleet import MS, TOKENIZER, House, MemoryWorker, model
from tests.unit.controlplane.virtual_loop import run, virtual

STEPS = Escalation(
    first="fast",
    to="best",
    confidences=(0.0, 0.6, 0.9),
    gains=(0.3, 0.2, 0.0),
    counts=(200, 200, 600),
    shares_right=(0.5, 0.7, 0.56 / 0.6),
)
SURE, UNSURE = (0.0, math.log(0.97 / 0.03)), (0.0, math.log(0.55 / 0.45))


def cascading(steps: Escalation = STEPS) -> ModelInfo:
    """The usual model with evidence for a cascade of its two variants."""
    plain = model()
    known = (("test", Calibration()),)
    best, fast = plain.variants
    variants = (
        replace(best, calibrations=known),
        replace(fast, calibrations=known, escalations=(("test", steps),)),
    )
    return replace(plain, variants=variants)


def house(policy: str = "cascade-fixed", **config: object) -> House:
    return House(policy=policy, prefetch=0, **config)  # type: ignore[arg-type]


def join(made: House, fast: tuple[float, float] = UNSURE, **changes: object) -> MemoryWorker:
    """A worker whose fast variant answers like that; the best one is sure of the second class."""

    def change(worker: MemoryWorker) -> None:
        worker.logits = lambda variant, request: fast if variant == "fast" else SURE
        for name, value in changes.items():
            setattr(worker, name, value)

    return made.join(models=(cascading(),), change=change)


def stages(answer: Answer) -> tuple[str, float, bool, int, float]:
    told = answer.provenance.stages
    assert told is not None
    first, confidence, escalated, runs, expected = told
    return first, round(confidence, 6), escalated, runs, round(expected, 6)


def variants(worker: MemoryWorker) -> list[str]:
    return [batch.variant for batch in worker.received]


@virtual
async def test_a_confident_first_answer_is_the_last() -> None:
    made = house()
    worker = join(made, SURE)
    answer = await made.submit(100)
    source = answer.provenance
    assert variants(worker) == ["fast"]
    assert (source.variant, source.reason) == ("fast", Reason.CONFIDENT)
    assert not source.approximation
    assert stages(answer) == ("fast", 0.97, False, 1, 0.933333)
    assert answer.outcome.dispatches == 1
    assert made.at_rest()
    made.close()


@virtual
async def test_an_unsure_one_is_followed_by_a_better_one_and_both_are_charged() -> None:
    made = house()
    worker = join(made)
    answer = await made.submit(100)
    source, outcome = answer.provenance, answer.outcome
    assert variants(worker) == ["fast", "best"]
    assert (source.variant, source.reason) == ("best", Reason.ESCALATED)
    assert not source.approximation
    assert stages(answer) == ("fast", 0.55, True, 2, 0.8)
    assert outcome.execute_ns == outcome.charged_cpu_ns == outcome.predicted_cpu_ns == 14 * MS
    assert (outcome.total_ns, outcome.queue_ns, outcome.dispatches) == (14 * MS, 0, 2)
    assert outcome.slack_at_dispatch_ns == 100 * MS
    assert made.dispatcher.counters.outcomes["m"] == {"answered": 1}
    assert made.dispatcher.counters.variants["m"] == {"best": 1}
    assert made.at_rest()
    made.close()


@virtual
async def test_what_waits_for_its_second_run_is_told_as_time_in_the_queue() -> None:
    made = house()
    join(made)
    first, second = made.submit(200), made.submit(200)
    one, two = await asyncio.gather(first, second)
    assert {one.provenance.variant, two.provenance.variant} == {"best"}
    for answer in (one, two):
        outcome = answer.outcome
        assert outcome.queue_ns + outcome.execute_ns == outcome.total_ns
    made.close()


@virtual
async def test_when_time_runs_out_the_first_answer_comes_in_time_as_an_approximation() -> None:
    made = house()
    worker = join(made)
    future = made.submit(60)
    await made.pass_ms(4.5)
    assert variants(worker) == ["fast", "best"]
    # The second run will not end.
    worker.mute = True
    answer = await future
    source = answer.provenance
    assert (source.variant, source.reason) == ("fast", Reason.UNFINISHED)
    assert source.approximation
    assert stages(answer) == ("fast", 0.55, True, 1, 0.5)
    assert 0 < answer.outcome.slack_at_answer_ns < 10 * MS
    assert worker.cancelled == [worker.received[1].item_ids[0]]
    worker.speak()
    await made.pass_ms(100)
    assert made.dispatcher.counters.late_results == 1
    assert made.dispatcher.counters.expired_work_executed == 0
    assert made.at_rest()
    made.close()


@virtual
async def test_a_second_run_that_cannot_be_on_time_is_not_begun() -> None:
    made = house()
    worker = join(made)
    answer = await made.submit(14)
    assert variants(worker) == ["fast"]
    assert answer.provenance.reason == Reason.BY_SLACK
    assert answer.provenance.approximation
    assert made.at_rest()
    made.close()


@virtual
async def test_a_cancel_frees_the_second_run_and_forgets_the_first_answer() -> None:
    made = house()
    worker = join(made)
    request = made.ask(100)
    future = made.dispatcher.submit(request)
    await made.pass_ms(6)
    assert variants(worker) == ["fast", "best"]
    made.dispatcher.cancel(request)
    with pytest.raises(Cancelled):
        await future
    assert worker.cancelled == [worker.received[1].item_ids[0]]
    await made.pass_ms(50)
    assert made.at_rest()
    made.close()


@virtual
async def test_a_cancel_while_the_second_run_is_queued_frees_the_queue() -> None:
    made = house()
    worker = join(made)
    request = made.ask(100)
    future = made.dispatcher.submit(request)
    await made.pass_ms(1)
    # More urgent, so that it goes first when the worker frees.
    blocking = made.submit(60)
    await made.pass_ms(3.5)
    assert made.dispatcher.gauges()["kept"] == 1
    made.dispatcher.cancel(request)
    with pytest.raises(Cancelled):
        await future
    assert (await blocking).provenance.reason == Reason.ESCALATED
    assert all(r.id != request.id for b in worker.received[1:] for r in b.requests)
    assert made.at_rest()
    made.close()


@virtual
async def test_a_worker_lost_in_the_second_run_leaves_the_first_answer() -> None:
    made = house()
    first = join(made)
    future = made.submit(100)
    await made.pass_ms(6)
    join(made)
    made.leave(first)
    answer = await future
    assert (answer.provenance.variant, answer.provenance.reason) == ("fast", Reason.UNFINISHED)
    assert answer.provenance.approximation
    assert answer.outcome.total_ns < 10 * MS
    assert made.dispatcher.counters.redispatched == 0
    assert made.at_rest()
    made.close()


@virtual
async def test_a_worker_that_fails_the_second_run_leaves_the_first_answer() -> None:
    made = house()
    worker = join(made)
    future = made.submit(100)
    # What runs already keeps its status; the second run fails.
    await made.pass_ms(3)
    worker.status = ItemStatus.INTERNAL
    answer = await future
    assert answer.provenance.variant == "fast"
    assert answer.provenance.reason == Reason.UNFINISHED
    assert made.at_rest()
    made.close()


@virtual
async def test_a_model_that_is_deployed_anew_leaves_the_first_answers_of_who_waits() -> None:
    made = house()
    worker = join(made)
    future = made.submit(100)
    await made.pass_ms(1)
    made.submit(60)
    await made.pass_ms(3.5)
    assert made.dispatcher.gauges()["kept"] == 1
    fresh = replace(cascading(), manifest_digest="sha256:b")
    changed = made.registry.report_models(worker.session, (fresh,))
    made.dispatcher.refresh(changed)
    assert (await future).provenance.reason == Reason.UNFINISHED
    made.close()


@virtual
async def test_closing_gives_the_first_answers_that_are_there() -> None:
    made = house()
    join(made)
    future = made.submit(100)
    await made.pass_ms(6)
    made.close()
    assert (await future).provenance.variant == "fast"


@virtual
async def test_who_allows_no_approximation_is_answered_by_the_best_variant_alone() -> None:
    made = house(classes={"exact": ClassConfig(approximation=False)})
    worker = join(made)
    answers = [
        await made.dispatcher.submit(made.ask(100, klass=klass))
        for klass in (RequestClass(approximation=False), RequestClass(name="exact"))
    ]
    assert variants(worker) == ["best", "best"]
    assert [a.provenance.stages for a in answers] == [None, None]
    made.close()


@virtual
async def test_several_sequences_floors_and_other_populations_have_no_cascade() -> None:
    made = house(classes={"tweets": ClassConfig(population="tweets")})
    join(made)
    several = made.ask(100)
    several.shapes = {TOKENIZER: Shape.of_lengths([5, 5])}
    asked = [
        several,
        made.ask(100, klass=RequestClass(minimum_quality=0.85)),
        made.ask(100, klass=RequestClass(name="tweets")),
    ]
    for request in asked:
        answer = await made.dispatcher.submit(request)
        assert answer.provenance.stages is None
        assert answer.outcome.dispatches == 1
    made.close()


@virtual
async def test_answers_without_logits_are_not_looked_at_again() -> None:
    made = house()
    made.join(models=(cascading(),))
    answer = await made.submit(100)
    assert answer.provenance.variant == "fast"
    assert answer.provenance.stages is None
    made.close()


@virtual
async def test_other_policies_give_one_answer() -> None:
    made = house("price")
    worker = join(made)
    answer = await made.submit(100)
    assert variants(worker) == ["best"]
    assert answer.provenance.stages is None
    made.close()


async def traffic(made: House, requests: int, gap_ms: float) -> list[Answer]:
    futures = []
    for _ in range(requests):
        futures.append(made.submit(100))
        await made.pass_ms(gap_ms)
    return await asyncio.gather(*futures)


async def crowd(made: House) -> list[Answer]:
    """What is answered of 400 requests, more than the best variant alone can answer in time."""
    futures = []
    for _ in range(400):
        with contextlib.suppress(Refused):
            futures.append(made.submit(60))
        await made.pass_ms(8.5)
    ends = await asyncio.gather(*futures, return_exceptions=True)
    return [end for end in ends if isinstance(end, Answer)]


async def _another_kind() -> None:
    made = house()
    # The fast variant is sure enough, and wrong by what the best one says.
    join(made, (math.log(0.7 / 0.3), 0.0))
    answers = await traffic(made, 60, 20)
    looked = [a.provenance.stages is not None for a in answers]
    assert looked[0] and not looked[-1]
    assert sum(looked) < 40
    assert answers[-1].provenance.variant == "best"
    (pool,) = made.dispatcher.pools()
    assert pool.cascading is not None
    assert not pool.cascading.drift.of("").on
    made.dispatcher.cascades.renew()
    assert (await made.submit(100)).provenance.stages is not None
    assert made.at_rest()
    made.close()


def test_requests_of_another_kind_turn_cascades_off_visibly_until_somebody_looks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        run(_another_kind())
    (line,) = [r.getMessage() for r in caplog.records if "no more cascades" in r.getMessage()]
    assert "class none" in line


@virtual
async def test_a_few_confident_answers_are_compared_behind_the_caller_s_back() -> None:
    made = house()
    worker = join(made, SURE)
    answers = await traffic(made, 200, 20)
    assert {a.provenance.reason for a in answers} == {Reason.CONFIDENT}
    assert {a.outcome.total_ns for a in answers} == {4 * MS}
    await made.pass_ms(100)
    (pool,) = made.dispatcher.pools()
    assert pool.cascading is not None
    watch = pool.cascading.drift.of("")
    assert variants(worker).count("best") == watch.shadows == watch.compared == 4
    assert watch.on
    assert made.dispatcher.counters.outcomes["m"] == {"answered": 200}
    assert made.at_rest()
    made.close()


@virtual
async def test_one_price_sends_all_to_the_best_when_calm_and_cascades_when_busy() -> None:
    made = house("orchid-cascade")

    def answers_of(request: Request) -> tuple[float, float]:
        return SURE if request.id % 10 < 6 else UNSURE

    def change(worker: MemoryWorker) -> None:
        worker.logits = lambda variant, request: answers_of(request) if variant == "fast" else SURE

    made.join(models=(cascading(),), change=change)
    calm = await traffic(made, 60, 40)
    assert {a.provenance.variant for a in calm[20:]} == {"best"}
    busy = (await crowd(made))[200:]
    reasons = {a.provenance.reason for a in busy}
    assert Reason.ESCALATED in reasons
    assert Reason.CONFIDENT in reasons
    assert sum(a.outcome.slack_at_answer_ns >= 0 for a in busy) == len(busy)
    assert made.at_rest()
    made.close()


@virtual
async def test_a_first_answer_that_nobody_can_look_at_says_that_it_is_one() -> None:
    made = house("orchid-cascade")
    # Its answers have no logits.
    made.join(models=(cascading(),))
    await traffic(made, 60, 40)
    found = [answer.provenance for answer in await crowd(made)]
    assert Reason.CASCADE not in {source.reason for source in found}
    alone = [source for source in found if source.reason == Reason.UNFINISHED]
    assert alone
    assert all(source.variant == "fast" and source.approximation for source in alone)
    assert made.at_rest()
    made.close()
