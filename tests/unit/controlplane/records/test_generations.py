"""Records of generations: estimates from the profile of where they went, corrected by others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.deployed import GenerationSettings, ModelInfo, ModelState
from controlplane.generation.plan import Plan
from controlplane.generation.progress import Progress
from controlplane.generation.records import (
    GenerationAsk,
    GenerationLimits,
    GenerationUsage,
    TextPrompt,
)
from controlplane.generation.spans import Ended
from controlplane.policy.decode import Choice, DecodeLoad, DecodeProfile, Route
from controlplane.policy.decode_cost import Cost
from controlplane.policy.records import Provenance, RequestClass
from controlplane.records.demand import DECODE, DemandRecord, Use, row_of
from controlplane.records.generations import GenerationRecorder
from controlplane.records.recorder import Sampling

MS = 1_000_000
SECRET = "what nobody may ever read"
MODEL = ModelInfo(
    name="writer",
    version="1",
    task="text-generation",
    labels=(),
    manifest_digest="d",
    default_tokenizer="",
    primary_output="logits",
    tokenizers=(),
    variants=(),
    state=ModelState.READY,
    generation=GenerationSettings("", (), None, 1000, 512),
)
PROFILE = DecodeProfile(
    step_ns=4 * MS, prefill_ns=MS, sequence_ns=MS, cached_ns=0, kv_bytes_per_token=100
)
ROUTE = Route(1, "q4", "q4", 0.8, PROFILE, DecodeLoad(model="writer", decoding=1), most_tokens=512)
CHOICE = Choice((0,), "best-in-target", 30 * MS, 500 * MS, 50 * MS, 30 * MS)
PROVENANCE = Provenance("writer", "1", "q4", "d", "best-in-target", False, 0.8, "decode-0")


class Kept:
    def __init__(self) -> None:
        self.records: list[DemandRecord] = []

    def put(self, record: DemandRecord) -> None:
        self.records.append(record)


def usage(**changes: Any) -> GenerationUsage:
    """20 tokens after a prompt of 30."""
    made = GenerationUsage(
        prompt_tokens=30,
        cached_tokens=0,
        generated_tokens=20,
        queue_ns=MS,
        first_token_ns=40 * MS,
        total_ns=200 * MS,
        mean_gap_ns=8 * MS,
        max_gap_ns=10 * MS,
        prefill_cpu_ns=68 * MS,
        decode_cpu_ns=120 * MS,
        live_token_ms=8000,
        preemptions=0,
    )
    return made._replace(**changes)


def ended(
    outcome: str = "answered", limits: GenerationLimits | None = None, **progress: Any
) -> Ended:
    limits = limits or GenerationLimits(max_tokens=40)
    klass = RequestClass(tenant="shop")
    ask = GenerationAsk("writer", TextPrompt(SECRET), limits=limits, klass=klass)
    plan = Plan(
        id=1,
        ask=ask,
        klass=klass,
        model=MODEL,
        prompt=tuple(range(30)),
        arrived_ns=1000 * MS,
        deadline_ns=3000 * MS,
        target_ns=500 * MS,
        token_ns=50 * MS,
        traceparent="",
        response_ns=0,
        planned_ns=1003 * MS,
    )
    given: dict[str, Any] = {
        "prompt_tokens": 30,
        "tokens": 20,
        "sends": 1,
        "width": 2,
        "threads": 2,
        "sent_ns": 1004 * MS,
        "first_token_ns": 45 * MS,
        "first_in_target": True,
        "finish": "stop",
        "choice": CHOICE,
        "route": ROUTE,
        "usage": usage(),
        "provenance": PROVENANCE,
        **progress,
    }
    return Ended("writer", ask, plan, Progress(**given), 1000 * MS, outcome)


def recorded(*endings: Ended) -> list[DemandRecord]:
    kept = Kept()
    recorder = GenerationRecorder(kept, Sampling(1.0), 0)
    for each in endings:
        recorder.ended(each, 1204 * MS)
    return kept.records


def test_an_answer_leaves_its_record() -> None:
    (record,) = recorded(ended())
    assert (record.lane, record.model, record.variant) == (DECODE, "writer", "q4")
    assert (record.outcome, record.on_time, record.worker) == ("answered", 1, "decode-0")
    assert (record.tokens, record.output_limit, record.output_tokens) == (30, 40, 20)
    assert record.at_us == 1_000_000 and record.total_us == 204_000
    assert record.deadline_us == 2_000_000 and record.first_us == 45_000
    assert record.batch == 2
    # By the profile, on two threads: 30 + 4 ms; 40 tokens of 4 / 2 + 1 ms.
    assert record.estimated.prefill_us == 68_000
    assert record.estimated.decode_us == 240_000
    # 70 tokens are five blocks of 16 tokens of 100 bytes.
    assert record.estimated.peak_bytes == 8000
    assert record.estimated.transfer_bytes == 280
    # A token every 4 + 2 ms; 50 of them for 240 ms, 15 for the 34 ms that the prompt takes.
    assert record.estimated.live_token_ms == 12_510
    assert record.measured == Use(
        preprocess_us=3000,
        prefill_us=68_000,
        decode_us=120_000,
        transfer_bytes=200,
        peak_bytes=6400,
        live_bytes=4000,
        live_token_ms=8000,
    )


def test_estimates_follow_what_others_took() -> None:
    records = recorded(*[ended() for _ in range(2)])
    second = records[1]
    # Half of the limit was written, and held half as long again as the profile says.
    assert second.estimated.decode_us == 120_000
    assert second.estimated.prefill_us == 68_000
    assert second.estimated.preprocess_us == 3000
    assert second.estimated.live_token_ms == pytest.approx(8000, rel=0.01)
    # Where writing takes twice what the profile says, so do the estimates.
    later = recorded(*[ended(usage=usage(decode_cpu_ns=240 * MS)) for _ in range(40)])
    assert later[-1].estimated.decode_us == pytest.approx(240_000, rel=0.02)


def test_other_kinds_have_estimates_of_their_own() -> None:
    kept = Kept()
    recorder = GenerationRecorder(kept, Sampling(1.0), 0)
    recorder.ended(ended(), 1204 * MS)
    other = ended()
    plan = other.plan
    assert plan is not None
    klass = RequestClass(tenant="lab")
    recorder.ended(other._replace(plan=replace(plan, klass=klass)), 1204 * MS)
    assert kept.records[1].tenant == "lab"
    assert kept.records[1].estimated.transfer_bytes == kept.records[0].estimated.transfer_bytes


def test_cached_prompts_do_not_make_reading_look_cheap() -> None:
    half = usage(cached_tokens=16, prefill_cpu_ns=36 * MS)
    records = recorded(ended(usage=half), ended())
    assert records[1].estimated.prefill_us == 68_000


def test_a_record_has_the_overload_level_that_it_was_planned_on() -> None:
    made = ended()
    assert made.plan is not None
    (record,) = recorded(made._replace(plan=replace(made.plan, overload_level=2)))
    assert record.overload_level == 2


def test_late_tokens_are_not_in_time() -> None:
    slow = ended(usage=usage(mean_gap_ns=60 * MS))
    cut = ended(finish="deadline")
    first = ended(first_in_target=False)
    assert [record.on_time for record in recorded(slow, cut, first)] == [0, 0, 0]


def test_what_was_never_sent_or_never_finished_is_recorded() -> None:
    refused = ended("refused", route=None, usage=None, provenance=None, sent_ns=0, tokens=0)
    cost = Cost(prefill_ns=60 * MS, decode_ns=30 * MS, live_token_ms=900.0, lasts_ns=100.0 * MS)
    cut = ended("cancelled", usage=None, tokens=5, unfinished=cost)
    early = Ended("", refused.ask, None, Progress(), 1000 * MS, "not-found")
    records = recorded(refused, cut, early)
    assert [record.outcome for record in records] == ["refused", "cancelled", "not-found"]
    assert records[0].measured == Use(preprocess_us=3000)
    # What it is charged: nobody measured it.
    assert records[1].output_tokens == 5
    assert records[1].measured.prefill_us == 60_000 and records[1].measured.decode_us == 30_000
    assert (records[1].measured.live_token_ms, records[1].measured.live_bytes) == (900, 900)
    assert records[1].estimated.decode_us > 0
    assert records[2].tokens == 0 and records[2].model == ""


def test_an_answer_without_a_longest_length_may_fill_the_context() -> None:
    (record,) = recorded(ended(limits=GenerationLimits()))
    assert record.output_limit == 512 - 30


def test_several_answers_share_their_prompt() -> None:
    (record,) = recorded(ended(limits=GenerationLimits(max_tokens=40, n=3)))
    assert record.items == 3
    assert record.estimated.transfer_bytes == 4 * (30 + 120)


def test_no_record_has_anything_of_the_text() -> None:
    for record in recorded(ended(), ended("failed", usage=None)):
        assert not any(SECRET in str(cell) for cell in row_of(record))
        assert "nobody" not in str(record)
