"""The driver process: sends a plan's requests on time and writes down what came back.

Open loop: a request is sent when it is due whatever happened to those before it, and
its latency counts from the due time, so a stalled server cannot hide the wait of the
requests it held up (coordinated omission).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import uvloop
from pydantic import TypeAdapter

from bench.load import cpu
from bench.load.codec import Codec, codec
from bench.load.endings import ending_of_failure
from bench.load.plan import LoadPlan, Tenant, Workload
from bench.load.record import CANCELLED_BY_DRIVER, OK, Records, save_records
from bench.load.schedule import Schedule, load_schedule
from bench.load.waiting import sleep_until
from bench.sim.result import Ending
from deploy.channels import aio_channel
from deploy.traces.client import LOAD, CallTraces, wall_offset_ns

_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.use_local_subchannel_pool", 1),
)

_CONNECT_S = 30


class Run:
    """One driver's run; owned by one event loop."""

    def __init__(self, plan: LoadPlan, workload: Workload, schedule: Schedule) -> None:
        self.plan = plan
        self._codec: Codec = codec(plan)
        self._bodies = [
            [self._codec.body(plan, text, tenant.name) for text in workload.texts]
            for tenant in plan.tenants or (Tenant(""),)
        ]
        span_s = plan.warmup_s + plan.duration_s
        self._span_ns = int(span_s * 1e9)
        self._warmup_ns = int(plan.warmup_s * 1e9)
        self._due: list[int] = schedule.due_ns.tolist()
        self._text: list[int] = schedule.text.tolist()
        self._budget: list[int] = schedule.budget_ns.tolist()
        self._tenant: list[int] = schedule.tenant.tolist()
        self._drawn = len(self._text)
        rows = len(self._due)
        self._sent: list[int] = [0] * rows
        self._done: list[int] = [0] * rows
        self._code: list[int] = [CANCELLED_BY_DRIVER] * rows
        self._message: list[str] = [""] * rows
        self._response: list[bytes] = [b""] * rows
        self._start_ns = 0
        self._open = 0
        self._idle = asyncio.Event()
        self._cpu_s: dict[str, float] = {}
        self._examples: dict[int, str] = {}
        self._traces = CallTraces(time.monotonic_ns, plan.trace_share)

    async def execute(self, start_at_ns: Callable[[], int]) -> Records:
        """Connects, waits for the common start, sends everything, waits for the answers."""
        # Interceptors cost every call a task, so there are none unless somebody looks.
        recorder = self._traces if self.plan.trace_share else None
        async with aio_channel(self.plan.target, _CHANNEL_OPTIONS, recorder) as channel:
            try:
                await asyncio.wait_for(channel.channel_ready(), _CONNECT_S)
            except TimeoutError:
                raise SystemExit(
                    f"{self.plan.target} accepts no connection within {_CONNECT_S} s"
                ) from None
            gc.collect()
            gc.freeze()
            self._start_ns = await asyncio.to_thread(start_at_ns)
            await sleep_until(0, self._now)
            window = asyncio.create_task(self._measure_window())
            if self.plan.stream:
                await self._run_stream(channel)
            else:
                await self._run_unary(channel)
            await window
        return self._records()

    # Time

    def _now(self) -> int:
        return time.monotonic_ns() - self._start_ns

    async def _measure_window(self) -> None:
        await sleep_until(self._warmup_ns, self._now)
        before, own = cpu.sample(self.plan.watch), time.process_time()
        await sleep_until(self._span_ns, self._now)
        self._cpu_s = cpu.difference(before, cpu.sample(self.plan.watch))
        self._cpu_s["driver"] = time.process_time() - own

    # Unary

    async def _run_unary(self, channel: grpc.aio.Channel) -> None:
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            self._codec.unary_method
        )
        if self.plan.mode == "closed":
            tasks = {
                asyncio.create_task(self._in_turn(method)) for _ in range(self.plan.concurrency)
            }
            await asyncio.gather(*tasks)
            return
        running: set[asyncio.Task[None]] = set()
        for row, due in enumerate(self._due):
            if due > self._now():
                await sleep_until(due, self._now)
            task = asyncio.create_task(self._call(method, row))
            running.add(task)
            task.add_done_callback(running.discard)
        await sleep_until(self._span_ns, self._now)
        if running:
            _, late = await asyncio.wait(running, timeout=self._drain_s())
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _in_turn(self, method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]) -> None:
        while (now := self._now()) < self._span_ns:
            await self._call(method, self._new_row(now))

    def _new_row(self, due_ns: int) -> int:
        row = len(self._due)
        self._due.append(due_ns)
        self._sent.append(0)
        self._done.append(0)
        self._code.append(CANCELLED_BY_DRIVER)
        self._message.append("")
        self._response.append(b"")
        if row >= self._drawn:
            for column in (self._text, self._budget, self._tenant):
                column.append(column[row % self._drawn])
        return row

    def _body(self, row: int) -> bytes:
        return self._bodies[self._tenant[row]][self._text[row]]

    async def _call(self, method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes], row: int) -> None:
        now = self._now()
        self._sent[row] = now
        timeout = None
        if self._budget[row]:
            timeout = max(0.001, (self._due[row] + self._budget[row] - now) / 1e9)
        try:
            response = await method(self._body(row), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            self._done[row] = self._now()
            self._failed(row, error.code().value[0], error.details() or "")
        else:
            self._done[row] = self._now()
            self._response[row] = response
            self._code[row] = OK

    def _failed(self, row: int, code: int, message: str) -> None:
        self._code[row] = code
        self._message[row] = message
        self._examples.setdefault(code, message)

    def _drain_s(self) -> float:
        return self.plan.drain_s + max(self._budget, default=0) / 1e9

    # Stream

    async def _run_stream(self, channel: grpc.aio.Channel) -> None:
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            self._codec.stream_method
        )
        call = method()
        free: deque[None] = deque([None] * self.plan.concurrency)
        freed = asyncio.Event()
        reader = asyncio.create_task(self._read(call, free, freed))
        try:
            if self.plan.mode == "closed":
                while self._now() < self._span_ns:
                    while free and self._now() < self._span_ns:
                        free.popleft()
                        await self._write(call, self._new_row(self._now()))
                    freed.clear()
                    await asyncio.wait_for(freed.wait(), self._drain_s())
            else:
                for row, due in enumerate(self._due):
                    if due > self._now():
                        await sleep_until(due, self._now)
                    await self._write(call, row)
                await sleep_until(self._span_ns, self._now)
            await call.done_writing()
            await asyncio.wait_for(reader, self._drain_s())
        except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            sys.stderr.write(f"the stream ended early: {error!r}\n")
        finally:
            call.cancel()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _write(self, call: grpc.aio.StreamStreamCall[bytes, bytes], row: int) -> None:
        now = self._now()
        self._sent[row] = now
        budget_ms = 0
        if self._budget[row]:
            budget_ms = max(1, (self._due[row] + self._budget[row] - now) // 1_000_000)
        await call.write(self._body(row) + self._codec.envelope(row, budget_ms))

    async def _read(
        self,
        call: grpc.aio.StreamStreamCall[bytes, bytes],
        free: deque[None],
        freed: asyncio.Event,
    ) -> None:
        async for message in call:
            answer = self._codec.stream_answer(message)
            self._done[answer.index] = self._now()
            if answer.code == OK:
                self._code[answer.index] = OK
                self._response[answer.index] = answer.response
            else:
                self._failed(answer.index, answer.code, answer.error)
            free.append(None)
            freed.set()

    # After the run

    def write_traces(self, process: str) -> None:
        """Put the spans of the calls that were traced where the plan says."""
        if self.plan.trace_directory:
            directory = Path(self.plan.trace_directory)
            self._traces.write(directory, process, wall_offset_ns())

    def _records(self) -> Records:
        rows = len(self._due)
        variant = np.full(rows, -1, np.int32)
        predicted = np.full(rows, -1, np.int32)
        account = np.zeros((4, rows), np.int64)
        expected = np.full(rows, np.nan)
        escalated = np.zeros(rows, np.bool_)
        names: dict[str, int] = {}
        for row, response in enumerate(self._response):
            if response:
                answered = self._codec.answer(response)
                predicted[row] = answered.predicted
                expected[row], escalated[row] = answered.expected, answered.escalated
                times = (answered.queue_us, answered.execute_us, answered.total_us)
                account[:, row] = (*(us * 1000 for us in times), answered.batch)
                if answered.variant:
                    variant[row] = names.setdefault(answered.variant, len(names))
        return Records(
            due_ns=np.array(self._due, np.int64),
            sent_ns=np.array(self._sent, np.int64),
            done_ns=np.array(self._done, np.int64),
            budget_ns=np.array(self._budget[:rows], np.int64),
            queue_ns=account[0],
            execute_ns=account[1],
            total_ns=account[2],
            batch=account[3].astype(np.int32),
            ending=np.array([self._ending(row) for row in range(rows)], np.int8),
            tenant=np.array(self._tenant[:rows], np.int32),
            code=np.array(self._code, np.int32),
            text=np.array(self._text[:rows], np.int32),
            variant=variant,
            predicted=predicted,
            variants=tuple(names),
            cpu_s=self._cpu_s,
            window_ns=(self._warmup_ns, self._span_ns),
            examples=self._examples,
            expected=expected,
            escalated=escalated,
        )

    def _ending(self, row: int) -> Ending:
        if self._code[row] != OK:
            return ending_of_failure(self._code[row], self._message[row])
        budget = self._budget[row]
        late = bool(budget) and self._done[row] - self._due[row] > budget
        return Ending.LATE if late else Ending.ON_TIME


def main() -> None:
    """Reads a plan and a workload, says "prepared", reads the start time, runs, writes."""
    parser = argparse.ArgumentParser(prog="bench.load.driver")
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--workload", type=Path, required=True)
    parser.add_argument("--schedule", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shard", type=int, default=0)
    parser.add_argument("--shards", type=int, default=1)
    options = parser.parse_args()
    plan = TypeAdapter(LoadPlan).validate_json(options.plan.read_bytes())
    workload = Workload(**json.loads(options.workload.read_text()))
    schedule = load_schedule(options.schedule).shard(options.shard, options.shards)
    if options.shard:
        # One process reads the others' CPU time.
        plan = replace(plan, watch={})

    def start_at_ns() -> int:
        sys.stdout.write("prepared\n")
        sys.stdout.flush()
        return int(sys.stdin.readline())

    async def run() -> Records:
        driver = Run(plan, workload, schedule)
        records = await driver.execute(start_at_ns)
        driver.write_traces(f"{LOAD}-{options.shard}")
        return records

    save_records(options.out, uvloop.run(run()))


if __name__ == "__main__":
    main()
