"""What the control plane's own work costs: a decision in a long queue, a request without gRPC."""

from __future__ import annotations

import asyncio
import itertools
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.report import Report, host_facts, make_report
from controlplane.config import ControlPlaneConfig, PolicyName
from controlplane.dispatcher import Dispatcher
from controlplane.policy.admission import Bounds
from controlplane.policy.cascade import Calibration, Escalation, Evidence
from controlplane.policy.entries import Settings
from controlplane.policy.hands import Flight
from controlplane.policy.policies import build
from controlplane.policy.profiles import Candidate, VariantProfile, VariantTable
from controlplane.policy.records import Request, RequestClass, Shape, TensorValue, TokenPayload
from controlplane.policy.scheduler import Scheduler
from controlplane.records.recorder import RequestRecorder, Sampling
from controlplane.records.store import RecordStore
from controlplane.registry import (
    ModelInfo,
    ModelState,
    QualityEvidence,
    Registry,
    VariantInfo,
    WorkerIdentity,
    WorkerSession,
)
from controlplane.work import BatchDone, ItemDone, ItemStatus, WorkBatch

_MS = 1_000_000
_MODEL = "sentiment"
_POLICIES = ("price", "orchid", "orchid-cascade")
# A policy that prepares its decisions is given so many occasions, so far apart.
_PREPARATIONS, _PREPARE_NS = 500, 50 * _MS
# The same decisions are taken so many times.
_PASSES = 5
# Quality and service in ms at 34 tokens of a seven-variant model.
_VARIANTS = (
    (0.9106, 12.9),
    (0.905, 8.7),
    (0.896, 6.6),
    (0.884, 5.2),
    (0.87, 4.0),
    (0.86, 2.9),
    (0.84, 1.6),
)
# Steps of the evidence of a cascade: as many as are fitted.
_STEPS = 12


def _profile(service_ms: float) -> VariantProfile:
    service_ns = service_ms * _MS
    return VariantProfile(
        s0_ns=0.03 * service_ns,
        s1_ns=0.97 * service_ns / 34,
        sigma=0.07,
        reference_tokens=34,
        p50_ns=service_ns,
    )


def _evidence() -> Evidence:
    """The three cheapest variants may be followed by the three best, the more the less sure."""
    escalations = []
    for first in (4, 5, 6):
        for to in (0, 1, 2):
            most = 3.0 * (_VARIANTS[to][0] - _VARIANTS[first][0])
            escalations.append(
                Escalation(
                    first=f"v{first}",
                    to=f"v{to}",
                    confidences=tuple(step / _STEPS for step in range(_STEPS)),
                    gains=tuple(most * (1.0 - step / 8) for step in range(_STEPS)),
                    counts=(100,) * _STEPS,
                    shares_right=(_VARIANTS[first][0],) * _STEPS,
                )
            )
    calibrations = {f"v{place}": Calibration() for place in range(len(_VARIANTS))}
    return Evidence("p", calibrations, tuple(escalations))


def _request(number: int, tokens: int, now_ns: int, deadline_ns: int) -> Request:
    return Request(
        id=number,
        model=_MODEL,
        klass=RequestClass(),
        shapes={"words": Shape.of_lengths([tokens])},
        payload=TokenPayload({"words": b"\0\0\0\0" * tokens}, {"words": (tokens,)}),
        arrived_ns=now_ns,
        deadline_ns=deadline_ns,
    )


def measure_decisions(
    policy: str, queued: int, workers: int, decisions: int, seed: int
) -> np.ndarray[Any, Any]:
    """CPU nanoseconds of each decision (one run ends, one is chosen) with `queued` waiting."""
    generator = np.random.default_rng(seed)
    table = VariantTable.build(
        [
            Candidate(f"v{place}", "words", quality, _profile(service), 512, True)
            for place, (quality, service) in enumerate(_VARIANTS)
        ],
        evidence={"": _evidence()},
    )
    settings = Settings(Bounds(queued + 1, 10**15))
    scheduler = Scheduler(build(policy, confidence_z=1.645, reserve=0.35), settings)
    scheduler.set_pool(_MODEL, table)
    every = frozenset(table.numbers)
    for number in range(workers):
        scheduler.set_worker(number, {_MODEL: every}, 0)
    flights: list[Flight] = []
    now, last = 0, 0
    lengths = generator.integers(8, 64, queued + workers + decisions)
    # Hours of work with days of time: everything is admitted and nothing expires.
    deadlines = generator.integers(10**15, 2 * 10**15, len(lengths))

    def arrive() -> None:
        nonlocal last
        request = _request(last, int(lengths[last]), now, int(deadlines[last]))
        request.eligible = table.eligible(request.klass, request.shapes)
        assert scheduler.offer(request, now).admitted
        last += 1

    for _ in range(queued + workers):
        arrive()
        while scheduler.queued and isinstance(step := scheduler.next_step(now), Flight):
            flights.append(step)
    for _ in range(_PREPARATIONS):
        now += _PREPARE_NS
        scheduler.refresh(now)
    spent = np.empty(decisions)
    for turn in range(decisions):
        flight = flights.pop(0)
        now += flight.predicted_ns // workers
        run_ns = int(flight.nominal_ns * generator.lognormal(0.0, 0.07))
        started = time.thread_time_ns()
        scheduler.finished(flight.worker, flight.id, now, run_ns=run_ns)
        step = scheduler.next_step(now)
        spent[turn] = time.thread_time_ns() - started
        assert isinstance(step, Flight)
        flights.append(step)
        arrive()
    return spent


def decision_costs(
    policy: str, queued: int, workers: int, decisions: int, seed: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """CPU nanoseconds of each decision, and of each measurement of one.

    The same decisions are taken several times and the median of each is its cost: what befalls
    one of them in one pass only is the machine's (on a virtual one a loop without any branch
    has a p99 far above its median).
    """
    passes = [measure_decisions(policy, queued, workers, decisions, seed) for _ in range(_PASSES)]
    return np.median(passes, axis=0), np.concatenate(passes)


# Logits that no other variant could do better than.
_SURE = (TensorValue("o", "float32", (1, 2), struct.pack("<2f", -9.0, 9.0)),)


class _EchoPort:
    """A worker that ends every batch in the next turn of the loop."""

    def __init__(self, dispatcher: Dispatcher, session: WorkerSession) -> None:
        self._dispatcher = dispatcher
        self._session = session
        self._loop = asyncio.get_running_loop()

    def send(self, batch: WorkBatch) -> None:
        items = tuple(ItemDone(item, ItemStatus.OK, _SURE) for item in batch.item_ids)
        done = BatchDone(batch.id, items, run_ns=100_000, cpu_ns=100_000)
        self._loop.call_soon(self._dispatcher.completed, self._session, done)

    def cancel(self, item_ids: Sequence[int]) -> None:
        raise RuntimeError("nothing is cancelled here")


# Requests in flight while each leaves a record.
_RECORDED = 32


async def measure_requests(
    requests: int,
    in_flight: int,
    policy: PolicyName,
    *,
    evidence: bool = False,
    store: RecordStore | None = None,
    clock: Callable[[], int] = time.process_time_ns,
) -> float:
    """CPU microseconds of one request from submit to answer, without gRPC.

    With `evidence` under `cascade-fixed` the answer is a confident first one of a cascade. A
    `store` gets a record of each. `clock` says whose CPU time: the process's or the event loop's.
    """
    registry = Registry()
    # Nobody reports here, and nobody shall be suspected for it.
    config = ControlPlaneConfig(report_interval_ms=3_600_000, policy=policy)
    dispatcher = Dispatcher(
        config,
        registry,
        now_ns=time.monotonic_ns,
        loop=asyncio.get_running_loop(),
        records=None if store is None else RequestRecorder(store, Sampling(1.0), 0),
    )
    session = registry.join(WorkerIdentity("w", "memory", 1, "cpu", "simd"), time.monotonic_ns())
    qualities = [QualityEvidence("p", "accuracy", quality, 1, 0, 1) for quality, _ in _VARIANTS]
    known = _evidence()
    variants = tuple(
        VariantInfo(
            f"v{place}",
            "ragged",
            "fp32",
            "words",
            (),
            (),
            (qualities[place],),
            _profile(ms),
            512,
            True,
            calibrations=(("p", Calibration()),) if evidence else (),
            escalations=tuple(
                ("p", each) for each in known.escalations if evidence and each.first == f"v{place}"
            ),
        )
        for place, (_, ms) in enumerate(_VARIANTS)
    )
    info = ModelInfo(
        _MODEL, "1", "text-classification", (), "d", "words", "o", (), variants, ModelState.READY
    )
    dispatcher.refresh(registry.report_models(session, [info]))
    dispatcher.attach(session, _EchoPort(dispatcher, session))

    async def caller(count: int) -> None:
        for _ in range(count):
            now = dispatcher.now_ns()
            request = _request(dispatcher.next_id(), 34, now, now + 10_000 * _MS)
            await dispatcher.submit(request)

    await caller(requests // 10)
    started = clock()
    await asyncio.gather(*(caller(requests // in_flight) for _ in range(in_flight)))
    spent = clock() - started
    assert not any(dispatcher.gauges().values())
    dispatcher.close()
    return spent / (requests // in_flight * in_flight) / 1e3


def measure_records(requests: int, policy: PolicyName) -> dict[str, float]:
    """CPU microseconds that a record of a request takes: of the event loop, and with its writer.

    Medians of pairs, of requests of which nothing is recorded and all is.
    """
    clocks = {"loop": time.thread_time_ns, "with_writer": time.process_time_ns}
    costs: dict[str, list[float]] = {name: [] for name in clocks}
    for _ in range(_PASSES):
        for name, clock in clocks.items():
            bare = asyncio.run(measure_requests(requests, _RECORDED, policy, clock=clock))
            with tempfile.TemporaryDirectory(prefix="orchid-records-") as folder:
                file = Path(folder) / "records.sqlite"
                store = RecordStore(file, rows=10**6, file_bytes=1 << 28, begun_us=0)
                store.start()
                full = asyncio.run(
                    measure_requests(requests, _RECORDED, policy, store=store, clock=clock)
                )
                store.close()
            costs[name].append(full - bare)
    return {name: float(np.median(found)) for name, found in costs.items()}


def run(queued: int, seed: int) -> Report:
    """Measure both and report."""
    host = host_facts()
    points: list[dict[str, Any]] = []
    summary: dict[str, float] = {}
    default = ControlPlaneConfig().policy
    for policy, workers in itertools.product(_POLICIES, (2, 1000)):
        costs, measured = decision_costs(policy, queued, workers, 5_000, seed)
        p50, p99 = (float(v) / 1e3 for v in np.percentile(costs, (50, 99)))
        once = float(np.percentile(measured, 99)) / 1e3
        point = {"policy": policy, "workers": workers, "queued": queued}
        times = {"p50_us": p50, "p99_us": p99, "once_p99_us": once}
        points.append({"what": "decision", **point, **times})
        prefix = "" if policy == default else f"{policy}."
        suffix = "" if workers == 2 else f"@{workers}"
        summary[f"{prefix}decision_us_p50{suffix}"] = p50
        summary[f"{prefix}decision_us_p99{suffix}"] = p99
        summary[f"{prefix}decision_us_once_p99{suffix}"] = once
    for in_flight in (1, 32):
        cpu_us = asyncio.run(measure_requests(20_000, in_flight, default))
        points.append({"what": "request", "in_flight": in_flight, "cpu_us": cpu_us})
        summary[f"request_cpu_us@{in_flight}"] = cpu_us
    alone, first = (
        asyncio.run(measure_requests(20_000, 1, "cascade-fixed", evidence=evidence))
        for evidence in (False, True)
    )
    points.append({"what": "confident first answer", "direct_us": alone, "first_us": first})
    summary["confident_first_answer_us_over_direct"] = first - alone
    records = measure_records(10_000, default)
    points.append({"what": "record", **records})
    summary["record_us"] = records["loop"]
    summary["record_us_with_writer"] = records["with_writer"]
    settings = {"queued": queued, "seed": seed}
    return make_report("decision", settings=settings, points=points, summary=summary, host=host)
