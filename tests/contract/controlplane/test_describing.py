"""A worker that does not describe itself is told of, shown, and asked again."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from controlplane.rpc.describing import Waits
from protos.orchid.v1 import worker_pb2
from tests.contract.controlplane.fake_worker import FakeWorker, Membership, model, serving, until
from tests.contract.controlplane.plane import Plane, running

QUICK = Waits(first_s=0.001, longest_s=0.002)


@dataclass(eq=False)
class Reticent(FakeWorker):
    """Refuses to describe itself with the first of `refusals`, once for each of them."""

    refusals: list[str] = field(default_factory=list)
    # Stands for the document of a tokenizer that nobody can build.
    document: bytes | None = None

    async def Describe(
        self, request: worker_pb2.DescribeRequest, context: Any
    ) -> worker_pb2.DescribeResponse:
        if self.refusals:
            self.descriptions += 1
            await context.abort(grpc.StatusCode.INTERNAL, self.refusals.pop(0))
        answer = await super().Describe(request, context)
        if self.document is not None:
            for each in answer.models:
                each.tokenizers[0].document = self.document
        return answer


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of descriptions, without addresses."""
    texts = [record.getMessage() for record in caplog.records if "describing" in record.name]
    return [re.sub(r" at \S+ does not describe itself, trying on", "", text) for text in texts]


async def trouble(plane: Plane) -> str:
    (worker,) = (await plane.status()).workers
    return worker.trouble


async def test_a_worker_is_asked_until_it_describes_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    worker = Reticent(refusals=["no disk", "no disk", "no disk", "no memory"])
    async with running(waits=QUICK) as plane, plane.member(worker):
        assert worker.descriptions == 5
        assert (await plane.ask()).provenance.variant == "tiny-a"
        assert await trouble(plane) == ""
    assert told(caplog) == [
        "worker w1: INTERNAL: 'no disk'",
        "worker w1: INTERNAL: 'no memory'",
        "worker w1 describes itself now",
    ]


async def test_while_it_does_not_it_is_a_member_that_gets_nothing_and_says_why() -> None:
    worker = Reticent(refusals=["no disk"] * 6)
    async with running(waits=Waits(60.0, 60.0)) as plane, serving(worker) as address:
        membership = Membership(worker, address, plane.channel)
        assert (await membership.hello()).HasField("welcome")
        session = plane.registry.session_of("w1")
        assert session is not None
        await until(lambda: bool(session.trouble), "the worker refused")
        (shown,) = (await plane.status()).workers
        assert shown.state == "connecting"
        assert shown.trouble == "does not describe itself: INTERNAL: 'no disk'"
        membership.call.cancel()


async def test_one_that_never_does_may_register_anew_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = Reticent(refusals=["no disk"] * 16)
    async with running(waits=QUICK) as plane, serving(worker) as address:
        for _ in range(2):
            membership = Membership(worker, address, plane.channel)
            assert (await membership.hello()).HasField("welcome")
            assert await membership.call.read() is grpc.aio.EOF
        assert plane.registry.workers() == () and worker.descriptions == 16
    assert told(caplog) == ["worker w1: INTERNAL: 'no disk'"]


async def test_a_worker_at_work_goes_on_while_a_new_model_is_not_described(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = Reticent()
    async with running(waits=QUICK) as plane, plane.member(worker) as membership:
        other = model("other")
        other.tokenizers[0].sha256 = "cd" * 32
        worker.models.append(other)
        worker.refusals = ["no disk"] * 40
        await membership.models(*worker.models)
        await until(lambda: "no disk" in caplog.text, "the refusal is told")
        assert (await plane.ask()).provenance.variant == "tiny-a"
        await until(lambda: plane.registry.tokenizer("cd" * 32) is not None, "the document came")
        assert await trouble(plane) == "" and worker.descriptions == 42
    assert len(told(caplog)) == 1


async def test_a_tokenizer_that_cannot_be_built_is_told(caplog: pytest.LogCaptureFixture) -> None:
    worker = Reticent(document=b"{}")
    async with running(waits=QUICK) as plane, serving(worker) as address:
        membership = Membership(worker, address, plane.channel)
        assert (await membership.hello()).HasField("welcome")
        session = plane.registry.session_of("w1")
        assert session is not None
        await until(lambda: bool(session.trouble), "the tokenizer was refused")
        worker.document = None
        await until(lambda: session.state.value == "ready", "the worker is ready")
        assert session.trouble == ""
        membership.call.cancel()
        await until(lambda: plane.registry.session_of("w1") is None, "the worker left")
    (cause,) = told(caplog)
    assert "Cannot instantiate Tokenizer" in cause and "Traceback" not in caplog.text


def test_waits_double_up_to_the_longest() -> None:
    waits = Waits(first_s=1.0, longest_s=5.0)
    assert [waits.wait_s(failed) for failed in (1, 2, 3, 4, 5000)] == [1.0, 2.0, 4.0, 5.0, 5.0]
