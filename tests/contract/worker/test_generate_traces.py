"""Spans of generations whose callers asked for them, however these end."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from deploy.traces.spans import Span, read_spans
from protos.orchid.v1 import worker_pb2
from tests.contract.worker.generating import (
    CONTEXT,
    MODEL,
    call_of,
    engine_held,
    generating,
    prompt_of,
    settled,
)
from tests.kept_spans import SAMPLED, TRACE
from worker.models.synthetic_generator import build_tiny_generator


@pytest.fixture(scope="module")
def generators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("generators")
    build_tiny_generator(repository, MODEL, context=CONTEXT)
    return repository


def recorded(**limits: Any) -> worker_pb2.GenerateCall:
    call = call_of(prompt_of(3, 20), **limits)
    call.traceparent = SAMPLED
    return call


def roots(directory: Path) -> list[Span]:
    return [span for span in read_spans(directory, TRACE) if span.name == "worker.generate"]


@pytest.mark.parametrize("events", [0, 1, 4])
async def test_a_caller_who_goes_away_is_a_span_and_no_fault(
    generators: Path, tmp_path: Path, events: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "worker")
    async with generating(generators, trace_directory=str(tmp_path)) as served:
        if events:
            call = served.stub.Generate(recorded(ignore_end=True))
            for _ in range(events):
                await call.read()
            call.cancel()
        else:
            async with engine_held(served):
                call = served.stub.Generate(recorded())
                await served.until(lambda: served.app.service.load().queued_items == 1)
                call.cancel()
                await served.until(lambda: served.app.service.load().queued_items == 0)
        await settled(served)
    (root,) = roots(tmp_path)
    assert root.fault == "Cancelled"
    assert not caplog.records


async def test_an_answer_is_a_span_with_its_account(generators: Path, tmp_path: Path) -> None:
    async with generating(generators, trace_directory=str(tmp_path)) as served:
        async for _ in served.stub.Generate(recorded(max_tokens=3, ignore_end=True)):
            pass
    (root,) = roots(tmp_path)
    assert root.fault == ""
    assert root.attributes["orchid.generated_tokens"] == 3
