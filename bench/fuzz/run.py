"""Runs changed messages through every target, in processes of their own, and says what broke."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from functools import cache
from multiprocessing import get_context

from bench.fuzz.mutate import Dice
from bench.fuzz.targets import Target, Undecodable, targets
from bench.report import Report, host_facts, make_report

BATCH = 2000
# A message takes some ten microseconds; one that takes this long, of CPU time, stands for a hang.
_SLOW_NS = 1_000_000_000
_STUCK_S = 120.0
_MOST_FINDINGS = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """A message that its target did not answer as it should; `data` is its bytes in hexadecimal."""

    target: str
    kind: str
    error: str
    place: str
    data: str


@dataclass(slots=True)
class Tally:
    """How messages of one target ended."""

    target: str
    messages: int = 0
    accepted: int = 0
    refused: int = 0
    undecodable: int = 0
    failed: int = 0
    slowest_ms: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Count another's messages, too."""
        self.messages += other.messages
        self.accepted += other.accepted
        self.refused += other.refused
        self.undecodable += other.undecodable
        self.failed += other.failed
        self.slowest_ms = max(self.slowest_ms, other.slowest_ms)
        self.findings += other.findings[: _MOST_FINDINGS - len(self.findings)]


@cache
def _by_name() -> Mapping[str, Target]:
    return {target.name: target for target in targets()}


def names() -> tuple[str, ...]:
    """Names of all targets."""
    return tuple(_by_name())


def run_batch(name: str, seed: int, number: int, count: int) -> Tally:
    """So many messages of one target; the same numbers give the same messages."""
    target = _by_name()[name]
    dice = Dice(seed, number, *name.encode())
    tally = Tally(name)
    for each in range(count):
        # The valid ones themselves must be good.
        valid = number == 0 and each < len(target.seeds)
        data = target.seeds[each] if valid else target.change(dice, target.seeds)
        _one(target, data, tally, valid=valid)
    return tally


def _one(target: Target, data: bytes, tally: Tally, *, valid: bool) -> None:
    started = time.thread_time_ns()
    tally.messages += 1
    try:
        target.read(data)
        tally.accepted += 1
    except target.refusals as refusal:
        if isinstance(refusal, Undecodable):
            tally.undecodable += 1
        else:
            tally.refused += 1
        if valid:
            _found(tally, "refused", refusal, data)
    except Exception as error:
        _found(tally, "internal", error, data)
    took = time.thread_time_ns() - started
    tally.slowest_ms = max(tally.slowest_ms, took / 1e6)
    if took > _SLOW_NS:
        _found(tally, "slow", TimeoutError(f"{took / 1e9:.1f} s of CPU"), data)


def _found(tally: Tally, kind: str, error: Exception, data: bytes) -> None:
    tally.failed += 1
    if len(tally.findings) < _MOST_FINDINGS:
        last = traceback.extract_tb(error.__traceback__)[-1:]
        place = f"{last[0].filename.rpartition('/')[2]}:{last[0].lineno}" if last else ""
        told = f"{type(error).__name__}: {error}"[:300]
        tally.findings.append(Finding(tally.target, kind, told, place, data[:4096].hex()))


def run_fuzz(
    messages: int,
    *,
    seed: int,
    processes: int,
    only: tuple[str, ...] = (),
    progress: Callable[[int], None] = lambda done: None,
) -> Report:
    """Sends `messages` in all, shared evenly among the targets.

    `progress` hears how many are done. A process that ends by itself counts as a crash, one
    that is silent for two minutes as a hang; either ends the run.
    """
    chosen = only or names()
    host = host_facts()
    tallies = {name: Tally(name) for name in chosen}
    broken: Counter[str] = Counter()
    started = time.monotonic_ns()
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
    work = _batches(chosen, messages, seed)
    running: set[Future[Tally]] = set()
    done = 0
    try:
        while True:
            while len(running) < 2 * processes and (batch := next(work, None)) is not None:
                running.add(pool.submit(run_batch, *batch))
            if not running:
                break
            ended, running = wait(running, _STUCK_S, FIRST_COMPLETED)
            if not ended:
                broken["hangs"] += 1
                break
            for future in ended:
                tally = future.result()
                tallies[tally.target].add(tally)
                done += tally.messages
            progress(done)
    except BrokenProcessPool:
        broken["crashes"] += 1
    finally:
        for process in (pool._processes or {}).values() if broken else ():
            process.kill()
        pool.shutdown(wait=not broken, cancel_futures=True)
    seconds = (time.monotonic_ns() - started) / 1e9
    failed = sum(tally.failed for tally in tallies.values())
    kinds = Counter(f.kind for tally in tallies.values() for f in tally.findings)
    return make_report(
        "fuzz",
        host=host,
        settings={"messages": messages, "seed": seed, "processes": processes},
        points=[asdict(tally) for tally in tallies.values()],
        summary={
            "messages": done,
            "messages_per_s": done / seconds,
            "accepted": sum(tally.accepted for tally in tallies.values()),
            "refused": sum(tally.refused for tally in tallies.values()),
            "undecodable": sum(tally.undecodable for tally in tallies.values()),
            "failed": failed,
            "internal": kinds["internal"],
            "crashes": broken["crashes"],
            "hangs": broken["hangs"] + kinds["slow"],
            "slowest_ms": max((tally.slowest_ms for tally in tallies.values()), default=0.0),
        },
    )


def _batches(
    chosen: tuple[str, ...], messages: int, seed: int
) -> Iterator[tuple[str, int, int, int]]:
    """Batches in turns of the targets, until all messages are given out."""
    left, number = messages, 0
    while left > 0:
        for name in chosen:
            count = min(BATCH, left)
            if count <= 0:
                return
            left -= count
            yield name, seed, number, count
        number += 1
