"""Which requests are recorded, and the spans and timelines that are made of them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind

from controlplane.config import TelemetryConfig
from controlplane.errors import ControlPlaneError, InvalidRequest, Refused, TooLate
from controlplane.policy.records import Request, RequestClass
from controlplane.telemetry.budget import Budget
from controlplane.telemetry.telemetry import STREAM, Telemetry
from controlplane.telemetry.timeline import REQUEST
from controlplane.telemetry.trace import CallTrace
from controlplane.work import ItemStatus
from tests.kept_spans import (
    CALLER,
    SAMPLED,
    TRACE,
    UNSAMPLED,
    KeptSpans,
    id_of,
    parent_of,
    said,
    trace_of,
)
from tests.unit.controlplane.fake_fleet import MS, House
from tests.unit.controlplane.test_second_looks import join
from tests.unit.controlplane.virtual_loop import run


class Asking:
    """A house whose requests are recorded, as a door would have it."""

    def __init__(
        self, kept: KeptSpans, house: Mapping[str, object] | None = None, **telemetry: object
    ) -> None:
        self.telemetry = kept.telemetry(**telemetry)
        self.house = House(telemetry=self.telemetry, **(house or {}))  # type: ignore[arg-type]

    def begin(self, deadline_ms: float = 100.0, traceparent: str = SAMPLED) -> Request:
        """A request of a call that came 3 ms ago, with its trace."""
        now = self.house.loop.now_ns()
        request = self.house.ask(deadline_ms)
        request.arrived_ns = now
        request.trace = self.telemetry.begin(REQUEST, traceparent, now - 3 * MS)
        return request

    def finish(self, request: Request) -> None:
        """The door has answered."""
        trace: CallTrace | None = request.trace
        if trace is not None:
            self.telemetry.finish(trace, self.house.loop.now_ns())

    async def answered(self, **options: object) -> Request:
        """A request and its answer."""
        request = self.begin(**options)  # type: ignore[arg-type]
        await self.house.dispatcher.submit(request)
        self.finish(request)
        return request


def test_a_recorded_request_is_a_tree_without_gaps() -> None:
    kept = KeptSpans(offset_ns=1000 * MS)

    async def traced() -> None:
        asking = Asking(kept)
        worker = asking.house.join()
        await asking.house.pass_ms(10)
        await asking.answered()
        plain = asking.house.ask()
        await asking.house.dispatcher.submit(plain)
        dispatch = kept.one("orchid.dispatch")
        sent = [batch.requests[0].traceparent for batch in worker.received]
        assert sent == [f"00-{TRACE}-{id_of(dispatch)}-01", ""]
        asking.house.close()

    run(traced())
    root = kept.one("orchid.request")
    assert (trace_of(root), parent_of(root)) == (TRACE, CALLER)
    assert root.kind is SpanKind.SERVER and root.status.is_unset
    parts = [span for span in kept.all if span is not root]
    assert {parent_of(span) for span in parts} == {id_of(root)}
    assert [span.name for span in parts] == [
        "orchid.receive",
        "orchid.preprocess",
        "orchid.admission",
        "orchid.dispatch",
        "orchid.respond",
    ]
    begun, ended = edges(root)
    assert ended - begun == 13 * MS and begun == 1007 * MS
    for span in parts:
        assert edges(span)[0] == begun, span.name
        begun = edges(span)[1]
    assert begun == ended
    decided = said(kept.one("orchid.admission"))
    assert decided["orchid.policy"] == "orchid-cascade" and decided["orchid.admitted"] is True
    assert decided["orchid.queue_depth"] == 0 and decided["orchid.slack_ms"] == 100.0
    assert decided["orchid.eligible_variants"] == 2 and decided["orchid.predicted_ms"] > 0
    dispatch = kept.one("orchid.dispatch")
    assert dispatch.kind is SpanKind.CLIENT
    assert said(dispatch)["orchid.variant"] == said(root)["orchid.variant"]
    assert said(dispatch)["orchid.batch_size"] == 1 and said(dispatch)["orchid.chance"] > 0
    assert said(dispatch)["orchid.worker_id"] == "w1"


def edges(span: ReadableSpan) -> tuple[int, int]:
    """Begin and end."""
    assert span.start_time is not None and span.end_time is not None
    return span.start_time, span.end_time


def test_waiting_for_a_worker_is_a_span_of_its_own() -> None:
    kept = KeptSpans()

    async def traced() -> None:
        asking = Asking(kept)
        asking.house.join()
        first, second = asking.begin(), asking.begin()
        answers = [asking.house.dispatcher.submit(each) for each in (first, second)]
        for each in answers:
            await each
        for request in (first, second):
            asking.finish(request)
        asking.house.close()

    run(traced())
    waits = kept.named("orchid.queue")
    assert waits and all(edges(span)[1] > edges(span)[0] for span in waits)


def test_a_lost_worker_leaves_a_failed_dispatch_and_another_one() -> None:
    kept = KeptSpans()

    async def traced() -> None:
        asking = Asking(kept)
        first = asking.house.join(change=lambda worker: setattr(worker, "mute", True))
        request = asking.begin(1000.0)
        future = asking.house.dispatcher.submit(request)
        await asking.house.pass_ms(1)
        assert first.received
        asking.house.join()
        asking.house.leave(first)
        await future
        asking.finish(request)
        asking.house.close()

    run(traced())
    failed, answered = kept.named("orchid.dispatch")
    assert failed.status.description == "worker-fault" and answered.status.is_unset
    assert id_of(failed) != id_of(answered)
    assert said(kept.one("orchid.request"))["orchid.dispatches"] == 2


@pytest.mark.parametrize("traceparent", ["", UNSAMPLED, "nonsense", "00-x-y-zz"])
def test_what_is_not_sampled_is_not_recorded(traceparent: str) -> None:
    telemetry = KeptSpans().telemetry()
    assert telemetry.begin(REQUEST, traceparent, 0) is None
    assert Telemetry(TelemetryConfig(), wall_offset_ns=0).begin(REQUEST, SAMPLED, 0) is None


def test_the_share_is_of_calls_without_a_context() -> None:
    all_of = KeptSpans().telemetry(sample_ratio=1.0)
    trace = all_of.begin(REQUEST, "", 0)
    assert trace is not None and trace.parent_id == 0 and trace.recording
    assert all_of.begin(REQUEST, UNSAMPLED, 0) is None
    assert all_of.begin("orchid.call", "", 0, head=False) is None
    half = KeptSpans().telemetry(sample_ratio=0.5)
    taken = sum(half.begin(REQUEST, "", 0) is not None for _ in range(2000))
    assert 800 < taken < 1200


def test_messages_of_a_stream_are_in_its_trace() -> None:
    kept = KeptSpans()
    telemetry = kept.telemetry(sample_ratio=1.0)
    stream = telemetry.begin(STREAM, SAMPLED, 0, head=False)
    assert stream is not None
    message = telemetry.inside(REQUEST, stream, 5)
    assert message is not None and message.recording
    assert (message.trace_id, message.parent_id) == (stream.trace_id, stream.span_id)
    quiet = telemetry.begin(STREAM, UNSAMPLED, 0, head=False)
    assert quiet is not None
    unsaid = telemetry.inside(REQUEST, quiet, 5)
    assert unsaid is not None and not unsaid.recording
    telemetry.finish(unsaid, 9)
    assert kept.all == ()
    # Without a context every message decides for itself.
    alone = telemetry.inside(REQUEST, None, 5)
    assert alone is not None and alone.recording and alone.parent_id == 0


def refused(asking: Asking, traceparent: str = "") -> ControlPlaneError:
    """Asks for what no worker makes in time."""
    request = asking.begin(0.5, traceparent)
    with pytest.raises(ControlPlaneError) as caught:
        asking.house.dispatcher.submit(request)
    asking.finish(request)
    return caught.value


def test_refused_late_and_slow_requests_are_kept_though_nobody_asked() -> None:
    kept = KeptSpans()

    async def traced() -> None:
        asking = Asking(kept, slow_ms=8, slow_per_s=10.0)
        asking.house.join()
        assert isinstance(refused(asking), TooLate | Refused)
        await asking.answered(traceparent=UNSAMPLED)
        assert len(asking.telemetry.slow) == 2
        slow, late = asking.telemetry.slow.recent()
        assert (slow.outcome, late.outcome) == ("answered", "too-late")
        assert slow.trace_id == TRACE and slow.total_ns == 10 * MS
        assert [phase.name for phase in slow.phases] == [
            "orchid.preprocess",
            "orchid.admission",
            "orchid.dispatch",
        ]
        assert late.phases[-1].name == "orchid.admission"
        asking.house.close()

    run(traced())
    late, slow = kept.named("orchid.request")
    assert late.status.description == "too-late" and parent_of(late) == ""
    assert said(kept.named("orchid.admission")[0])["orchid.refusal"]
    assert (trace_of(slow), parent_of(slow)) == (TRACE, CALLER)
    assert said(slow)["orchid.sampled_by"] == "tail"
    # The worker recorded nothing; what it told of its run stands in the dispatch.
    dispatch, run_ = kept.one("orchid.dispatch"), kept.one("orchid.run")
    assert parent_of(run_) == id_of(dispatch) and run_.end_time == dispatch.end_time
    assert run_.start_time is not None and run_.end_time is not None
    assert run_.end_time - run_.start_time == round(said(slow)["orchid.execute_ms"] * 1e6)


def test_what_is_kept_is_bounded_and_callers_faults_are_not() -> None:
    kept = KeptSpans()

    async def traced() -> None:
        asking = Asking(kept, slow_ms=8, slow_per_s=2.0)
        asking.house.join()
        for _ in range(20):
            refused(asking)
        assert len(asking.telemetry.slow) == 2
        await asking.house.pass_ms(1000)
        request = asking.begin(traceparent="")
        request.klass = RequestClass(name="nobody")
        with pytest.raises(InvalidRequest):
            asking.house.dispatcher.submit(request)
        assert len(asking.telemetry.slow) == 2
        refused(asking)
        assert len(asking.telemetry.slow) == 3
        asking.house.close()

    run(traced())
    assert len(kept.named("orchid.request")) == 3


def test_a_request_that_fails_says_so_and_never_with_its_own_words() -> None:
    kept = KeptSpans()

    async def traced() -> None:
        asking = Asking(kept)
        asking.house.join(change=lambda worker: setattr(worker, "status", ItemStatus.INTERNAL))
        request = asking.begin()
        with pytest.raises(ControlPlaneError):
            await asking.house.dispatcher.submit(request)
        asking.finish(request)
        asking.house.close()

    run(traced())
    root = kept.one("orchid.request")
    assert root.status.description == "worker-fault"
    assert [event.name for event in root.events] == ["worker-fault"]
    assert kept.named("orchid.dispatch")[-1].status.description == "worker-fault"


def test_a_budget_is_a_rate_with_a_burst() -> None:
    budget = Budget(2.0)
    assert [budget.take(0) for _ in range(3)] == [True, True, False]
    assert budget.take(500 * MS) and not budget.take(500 * MS)
    assert not Budget(0.0).take(10**12)
    rare = Budget(0.5)
    assert rare.take(0) and not rare.take(1000 * MS) and rare.take(2000 * MS)
    # The time between is not earned again by what is told of it late.
    back = [rare.take(at * MS) for at in (3000, 2000, 3000, 2000, 3000)]
    assert not any(back) and rare.take(4000 * MS)


def test_callers_who_ask_for_much_get_so_many_a_second_and_leave_the_share_its_own() -> None:
    kept = KeptSpans()
    telemetry = kept.telemetry(sample_ratio=1.0, traces_per_s=3.0)

    def recorded(traceparent: str, now_ns: int) -> int:
        traces = [telemetry.begin(REQUEST, traceparent, now_ns) for _ in range(10)]
        return sum(trace is not None and trace.recording for trace in traces)

    assert [recorded(SAMPLED, 0), recorded("", 0)] == [3, 3]
    assert [recorded(SAMPLED, 1000 * MS), recorded("", 1000 * MS)] == [3, 3]
    none = KeptSpans().telemetry(sample_ratio=1.0, traces_per_s=0.0)
    assert none.begin(REQUEST, SAMPLED, 0) is None and none.begin(REQUEST, "", 0) is None


def test_beyond_the_rate_a_call_is_kept_when_it_turns_out_slow() -> None:
    telemetry = KeptSpans().telemetry(traces_per_s=1.0, slow_per_s=1.0)
    first, second = (telemetry.begin(REQUEST, SAMPLED, 0) for _ in range(2))
    assert first is not None and first.recording
    assert second is not None and not second.recording and second.id == TRACE


def test_a_stream_that_is_recorded_is_no_way_around_the_rate() -> None:
    telemetry = KeptSpans().telemetry(traces_per_s=3.0)
    stream = telemetry.begin(STREAM, SAMPLED, 0, head=False)
    assert stream is not None and stream.recording
    messages = [telemetry.inside(REQUEST, stream, 0) for _ in range(5)]
    assert [m is not None and m.recording for m in messages] == [True, True, False, False, False]
    assert all(m is not None and m.parent_id == stream.span_id for m in messages)


def test_a_context_is_passed_on_where_nothing_is_recorded_and_not_without_end() -> None:
    nowhere = Telemetry(TelemetryConfig(traces_per_s=2.0), wall_offset_ns=0)
    passed = [nowhere.passed_on(SAMPLED, 0) for _ in range(3)]
    assert passed == [SAMPLED, SAMPLED, ""]
    assert nowhere.passed_on(UNSAMPLED, 1000 * MS) == nowhere.passed_on("", 1000 * MS) == ""
    assert KeptSpans().telemetry().passed_on(SAMPLED, 0) == ""


def test_under_overload_only_calls_whose_callers_ask_for_it_are_recorded() -> None:
    telemetry = KeptSpans().telemetry(sample_ratio=1.0)
    assert telemetry.begin(REQUEST, "", 0) is not None
    telemetry.optional_work_allowed = lambda: False
    assert telemetry.begin(REQUEST, "", 0) is None
    assert telemetry.begin(REQUEST, SAMPLED, 0) is not None


def test_both_runs_of_a_cascade_are_in_one_trace_without_gaps() -> None:
    kept = KeptSpans()

    async def traced() -> None:
        asking = Asking(kept, house={"policy": "cascade-fixed", "prefetch": 0})
        join(asking.house)
        request = asking.begin()
        answer = await asking.house.dispatcher.submit(request)
        assert answer.outcome.dispatches == 2
        asking.finish(request)
        asking.house.close()

    run(traced())
    root = kept.one("orchid.request")
    first, second = kept.named("orchid.dispatch")
    assert edges(first)[1] <= edges(second)[0]
    assert said(first)["orchid.variant"] == "fast"
    assert said(second)["orchid.variant"] == "best"
    assert said(second)["orchid.reason"] == "escalated"
    assert "orchid.worker_id" not in said(first) and said(second)["orchid.worker_id"] == "w1"
    assert first.status.is_unset and second.status.is_unset
    assert said(root)["orchid.first_variant"] == "fast"
    assert said(root)["orchid.escalated"] is True
    assert 0.5 < said(root)["orchid.confidence"] < 0.6


def test_a_second_run_that_is_given_up_is_a_failed_dispatch_of_an_answered_request() -> None:
    kept = KeptSpans()

    async def traced() -> None:
        asking = Asking(kept, house={"policy": "cascade-fixed", "prefetch": 0})
        worker = join(asking.house)
        request = asking.begin(60.0)
        future = asking.house.dispatcher.submit(request)
        await asking.house.pass_ms(6)
        worker.mute = True
        answer = await future
        assert answer.provenance.variant == "fast"
        asking.finish(request)
        asking.house.close()

    run(traced())
    first, second = kept.named("orchid.dispatch")
    assert first.status.is_unset
    assert second.status.description == "first-answer-unfinished"
    assert kept.one("orchid.request").status.is_unset
