"""What a decode worker is known to hold: its reports, and what was sent since."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest

from controlplane.deployed import (
    GenerationSettings,
    ModelInfo,
    ModelState,
    QualityEvidence,
    VariantInfo,
    WorkerIdentity,
    WorkerLoad,
)
from controlplane.generation.lanes import Lane, Lanes
from controlplane.generation.quality import measured_quality
from controlplane.generation.work import DecodeCall, GenerationOrder
from controlplane.policy.decode import DecodeLoad, DecodeProfile
from controlplane.registry import Registry, WorkerSession, WorkerState

MS = 1_000_000
SETTINGS = GenerationSettings("", (), None, 10, 100)
VARIANT = VariantInfo(
    name="q4",
    layout="paged",
    precision="q4",
    tokenizer="",
    inputs=(),
    outputs=(),
    max_tokens=80,
    ready=True,
    decode=DecodeProfile(step_ns=MS, prefill_ns=MS, arena_tokens=4096),
)
MODEL = ModelInfo(
    name="m",
    version="1",
    task="text-generation",
    labels=(),
    manifest_digest="d",
    default_tokenizer="",
    primary_output="logits",
    tokenizers=(),
    variants=(VARIANT,),
    state=ModelState.READY,
    generation=SETTINGS,
)


@dataclass(eq=False)
class Guest:
    model: str = "m"
    movable: bool = True
    abandoned: int = 0

    def abandon(self) -> None:
        self.abandoned += 1


class NoPort:
    def generate(self, order: GenerationOrder) -> DecodeCall:
        raise NotImplementedError("nothing is sent here")


class Clock:
    """A clock and a loop whose timers nobody fires."""

    def __init__(self) -> None:
        self.ns = 0
        self.loop = asyncio.new_event_loop()
        self.registry = Registry()
        self.lanes = Lanes(
            self.registry, now_ns=lambda: self.ns, loop=self.loop, report_interval_ms=50
        )

    def join(self, name: str, model: ModelInfo = MODEL) -> WorkerSession:
        identity = WorkerIdentity(name, "a:1", 2, "cpu", "avx2", decodes=True)
        session = self.registry.join(identity, self.ns)
        self.registry.report_models(session, [model])
        self.lanes.attach(session, NoPort())
        return session

    def report(self, session: WorkerSession, **load: int | bool) -> None:
        decode: dict[str, Any] = {k: v for k, v in load.items() if k != "draining"}
        told = WorkerLoad(
            draining=bool(load.get("draining")), decode=(DecodeLoad("m", "q4", **decode),)
        )
        self.registry.report_load(session, told, self.ns)
        self.lanes.heard(session)

    def look(self, *, overdue_ns: int = 0) -> None:
        """What the timer does, so late."""
        self.lanes._look_due_ns = self.ns - overdue_ns
        self.lanes._look()

    def lane(self, session: WorkerSession) -> Lane:
        lane = self.lanes.lane(session.number)
        assert lane is not None
        return lane


@pytest.fixture
def clock() -> Clock:
    made = Clock()
    made.loop.close()
    return made


@pytest.fixture(autouse=True)
def _no_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lanes, "_look_later", lambda self: None)


def test_what_was_sent_counts_until_a_report_that_knows_it(clock: Clock) -> None:
    session = clock.join("d")
    lane = clock.lane(session)
    lane.enter(1, Guest(), 30, clock.ns)
    assert lane.route("m", 100, VARIANT).sent_tokens == 30
    # This report may have left before the prompt arrived.
    clock.ns += 5 * MS
    clock.report(session)
    assert lane.route("m", 100, VARIANT).sent_tokens == 30
    clock.ns += 50 * MS
    clock.report(session, pending_prompt_tokens=30)
    route = lane.route("m", 100, VARIANT)
    assert (route.sent_tokens, route.load.pending_prompt_tokens) == (0, 30)


def test_what_began_or_left_is_no_work_ahead(clock: Clock) -> None:
    lane = clock.lane(clock.join("d"))
    for number in (1, 2, 3):
        lane.enter(number, Guest(), 10, clock.ns)
    lane.begun(2)
    lane.leave(3)
    lane.leave(3)
    assert lane.route("m", 100, VARIANT).sent_tokens == 10
    assert sorted(lane.guests) == [1, 2] and lane.open("m") == 2 and lane.open("other") == 0


def test_the_least_of_context_variant_and_arena_bounds_a_sequence(clock: Clock) -> None:
    lane = clock.lane(clock.join("d"))
    assert lane.route("m", 100, VARIANT).most_tokens == 80
    assert lane.route("m", 64, VARIANT).most_tokens == 64


def test_a_first_token_corrects_the_next_prediction(clock: Clock) -> None:
    lane = clock.lane(clock.join("d"))
    lane.took(lane.route("m", 100, VARIANT), 9, 50 * MS, 20 * MS)
    assert lane.correction("m", "q4") == pytest.approx(1.15)
    lane.took(lane.route("m", 100, VARIANT), 9, 50 * MS, 10 * MS)
    assert lane.correction("m", "q4") == pytest.approx(1.15 - 0.15 * 0.15)


def test_draining_and_silent_workers_get_nothing_while_there_is_another(clock: Clock) -> None:
    one, two = clock.join("one"), clock.join("two")
    assert [lane.session for lane in clock.lanes.serving("m")] == [one, two]
    clock.report(one, draining=True)
    assert one.state.value == "draining"
    assert [lane.session for lane in clock.lanes.serving("m")] == [two]
    clock.report(one)
    guest, told = Guest(), Guest(movable=False)
    clock.lane(one).enter(1, guest, 5, clock.ns)
    clock.lane(one).enter(2, told, 5, clock.ns)
    clock.ns += 2000 * MS
    clock.report(two)
    clock.look()
    assert one.state.value == "suspect"
    assert [lane.session for lane in clock.lanes.serving("m")] == [two]
    assert (guest.abandoned, told.abandoned) == (1, 0)
    # The last one is asked though it is silent: nobody else could answer.
    clock.lanes.detach(two)
    assert [lane.session for lane in clock.lanes.serving("m")] == [one]


def test_silent_workers_do_not_hand_each_other_what_they_have(clock: Clock) -> None:
    one, two, guest = clock.join("one"), clock.join("two"), Guest()
    clock.lane(one).enter(1, guest, 5, clock.ns)
    clock.ns += 2000 * MS
    clock.look()
    abandoned = [guest.abandoned]
    assert {one.state, two.state} == {WorkerState.SUSPECT}
    clock.report(two)
    clock.look()
    assert [*abandoned, guest.abandoned] == [0, 1]


def test_after_a_standstill_workers_are_judged_once_their_reports_were_read(clock: Clock) -> None:
    one, two, guest = clock.join("one"), clock.join("two"), Guest()
    clock.report(two)
    clock.lane(one).enter(1, guest, 5, clock.ns)
    clock.ns += 2000 * MS
    clock.look(overdue_ns=1950 * MS)
    assert one.state is two.state is WorkerState.READY
    clock.report(two)
    clock.ns += 50 * MS
    clock.look()
    assert (one.state, two.state) == (WorkerState.SUSPECT, WorkerState.READY)
    assert guest.abandoned == 1


def test_a_lone_worker_that_stays_silent_is_asked_no_more_until_it_is_heard(clock: Clock) -> None:
    lone, lanes = clock.join("lone"), clock.lanes
    clock.report(lone)
    clock.ns += 9_999 * MS
    clock.look()
    assert lone.state is WorkerState.SUSPECT
    assert [lane.session for lane in lanes.serving("m")] == [lone]
    clock.ns += MS
    assert lanes.serving("m") == ()
    # It is a member still, and may be asked as soon as it says something.
    assert lanes.lane(lone.number) is not None
    clock.report(lone)
    assert [lane.session for lane in lanes.serving("m")] == [lone]


def test_a_worker_that_leaves_abandons_what_it_holds(clock: Clock) -> None:
    session = clock.join("d")
    guest = Guest(movable=False)
    clock.lane(session).enter(1, guest, 5, clock.ns)
    clock.lanes.detach(session)
    clock.lanes.detach(session)
    assert guest.abandoned == 1 and session.state is WorkerState.LOST
    assert clock.lanes.serving("m") == ()


def test_workers_of_unlike_machines_serve_one_model_but_not_two_manifests(clock: Clock) -> None:
    clock.join("one")
    identity = WorkerIdentity("two", "a:2", 8, "another cpu", "avx512", decodes=True)
    clock.lanes.attach(session := clock.registry.join(identity, 0), NoPort())
    clock.registry.report_models(session, [MODEL])
    assert len(clock.lanes.serving("m")) == 2
    other = replace(MODEL, manifest_digest="e")
    clock.registry.report_models(session, [other])
    assert len(clock.lanes.serving("m")) == 1 and "manifest e differs" in session.apart["m"]


@pytest.mark.parametrize(
    ("metric", "value", "quality"),
    [("agreement", 0.9, 0.9), ("relative_perplexity", 1.25, 0.8), ("perplexity", 0.0, 0.0)],
)
def test_a_lower_perplexity_is_a_higher_quality(metric: str, value: float, quality: float) -> None:
    evidence = (QualityEvidence("p", metric, value, 10, value, value),)
    assert measured_quality(replace(VARIANT, quality=evidence)) == quality
    assert measured_quality(VARIANT) is None
