"""The driver process of generations: opens each when it is due and notes when tokens came."""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import uvloop
from pydantic import TypeAdapter

from bench.generation.plan import (
    GenerationPlan,
    GenerationSchedule,
    draw_generations,
    prompt_ids,
)
from bench.generation.record import CUT, OK, GenerationRecord, save_generations
from bench.load.waiting import sleep_until
from deploy.channels import aio_channel
from protos.orchid.v1 import common_pb2, inference_pb2, worker_pb2

_CONNECT_S = 30
_METHODS: dict[str, tuple[str, Any]] = {
    "worker": ("/orchid.v1.Worker/Generate", worker_pb2.GenerateEvent),
    "controlplane": ("/orchid.v1.Inference/Generate", inference_pb2.GenerateResponse),
}


class GenerationRun:
    """One run on one event loop."""

    def __init__(self, plan: GenerationPlan, schedule: GenerationSchedule) -> None:
        self.plan = plan
        self._due: list[int] = schedule.due_ns.tolist()
        self._prompt: list[int] = schedule.prompt_tokens.tolist()
        self._answer: list[int] = schedule.answer_tokens.tolist()
        count = len(self._due) or len(self._prompt)
        self._bodies = [self._body(row) for row in range(count)]
        self._records: list[GenerationRecord] = []
        self._start_ns = 0
        self._next = 0

    async def execute(self, start_at_ns: Callable[[], int]) -> list[GenerationRecord]:
        """Connects, waits for the common start, sends everything, waits for the answers."""
        plan = self.plan
        path, response = _METHODS[plan.door]
        async with aio_channel(plan.target) as channel:
            await asyncio.wait_for(channel.channel_ready(), _CONNECT_S)
            method: Any = channel.unary_stream(path, response_deserializer=response.FromString)
            gc.collect()
            gc.freeze()
            self._start_ns = await asyncio.to_thread(start_at_ns)
            await sleep_until(0, self._now)
            if plan.in_flight:
                tasks = {asyncio.create_task(self._in_turn(method)) for _ in range(plan.in_flight)}
            else:
                tasks = set()
                for row, due in enumerate(self._due):
                    await sleep_until(due, self._now)
                    tasks.add(asyncio.create_task(self._generate(method, row, due)))
            await sleep_until(self._span_ns, self._now)
            if tasks:
                _, late = await asyncio.wait(tasks, timeout=plan.drain_s)
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)
        return self._records

    @property
    def _span_ns(self) -> int:
        return int((self.plan.warmup_s + self.plan.seconds) * 1e9)

    def _now(self) -> int:
        return time.monotonic_ns() - self._start_ns

    async def _in_turn(self, method: Any) -> None:
        while (now := self._now()) < self._span_ns:
            row = self._next
            self._next += 1
            await self._generate(method, row % len(self._bodies), now)

    async def _generate(self, method: Any, row: int, due_ns: int) -> None:
        call = method(self._bodies[row])
        code = CUT
        first = last = tokens = gap = cached = preemptions = 0
        try:
            async for event in call:
                now = self._now()
                kind = event.WhichOneof("event")
                if kind == "delta" and event.delta.token_ids:
                    first = first or now
                    gap = max(gap, now - last) if last else 0
                    last = now
                    tokens += len(event.delta.token_ids)
                elif kind == "completed":
                    completed = event.completed
                    usage = completed if self.plan.door == "worker" else completed.usage
                    cached, preemptions = usage.cached_tokens, usage.preemptions
            code = OK
        except grpc.aio.AioRpcError as error:
            code = error.code().value[0]
        finally:
            call.cancel()
            self._records.append(
                GenerationRecord(
                    due_ns=due_ns,
                    wanted_tokens=self._answer[row],
                    code=code,
                    first_ns=first,
                    last_ns=last,
                    done_ns=self._now(),
                    tokens=tokens,
                    gap_ns=gap,
                    cached_tokens=cached,
                    preemptions=preemptions,
                )
            )

    def _body(self, row: int) -> bytes:
        plan = self.plan
        ids = prompt_ids(plan.seed, row, self._prompt[row], plan.vocabulary)
        limits = common_pb2.GenerationLimits(max_tokens=self._answer[row], ignore_end=True)
        if plan.door == "worker":
            return worker_pb2.GenerateCall(
                generation_id=row,
                model=plan.model,
                prompt=ids,
                limits=limits,
                first_token_target_us=int(plan.first_token_ms * 1e3),
                token_target_us=int(plan.token_ms * 1e3),
            ).SerializeToString()
        return inference_pb2.GenerateRequest(
            model=plan.model,
            tokens=inference_pb2.PromptTokens(ids=ids),
            limits=limits,
            first_token_target_ms=int(plan.first_token_ms),
            token_target_ms=int(plan.token_ms),
            request_class=inference_pb2.RequestClass(tenant=plan.tenant),
        ).SerializeToString()


def main() -> None:
    """Reads a plan, says "prepared", reads the start time, runs, writes the records."""
    parser = argparse.ArgumentParser(prog="bench.generation.driver")
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    plan = TypeAdapter(GenerationPlan).validate_json(options.plan.read_bytes())
    run = GenerationRun(plan, draw_generations(plan))

    def start_at_ns() -> int:
        sys.stdout.write("prepared\n")
        sys.stdout.flush()
        return int(sys.stdin.readline())

    save_generations(options.out, uvloop.run(run.execute(start_at_ns)))


if __name__ == "__main__":
    main()
