"""An engine loop with a scripted runner, whose event loop is the test itself."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection

import numpy as np

from worker.errors import EngineFault, RunTerminated, WorkerError
from worker.jobs import Token
from worker.loop import Clocks, EngineLoop
from worker.records import Batch, BatchOutcome, Execution, Item

PATIENCE_S = 10.0
FAR = 1 << 62
CONTENT = "secret"  # what no log may hold


class Flag:
    """A token that a scripted runner can wait on."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def terminate(self) -> None:
        self.event.set()


class Runner:
    """Answers each item with its id; runs of variant `held` last until told or terminated."""

    def __init__(self) -> None:
        self.started: queue.SimpleQueue[tuple[int, ...]] = queue.SimpleQueue()
        self.let_go = threading.Event()
        self.executed: list[int] = []
        self.threads: list[threading.Thread] = []
        self.advance: Callable[[], None] | None = None

    def run(self, model: str, variant: str, items: Collection[Item], token: Token) -> Execution:
        self.executed += [item.item_id for item in items]
        self.threads.append(threading.current_thread())
        if self.advance is not None:
            self.advance()
        if variant == "held":
            assert isinstance(token, Flag)
            self.started.put(tuple(item.item_id for item in items))
            while not self.let_go.wait(0.001):
                if token.event.is_set():
                    raise RunTerminated("terminated")
        if variant == "wrong":
            raise ZeroDivisionError(CONTENT)
        if variant == "short":
            return Execution((), 0)
        if variant == "faulty":
            raise EngineFault("the graph failed")
        return Execution(tuple({"id": np.array([item.item_id])} for item in items), len(items))


class Bench:
    """An engine loop whose event loop is the test itself."""

    def __init__(
        self,
        bound: int = 8,
        when_idle: Callable[[], None] | None = None,
        make_token: Callable[[], Token] = Flag,
    ) -> None:
        self.runner = Runner()
        self.callbacks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.outcomes: list[BatchOutcome] = []
        self.broken: list[str] = []
        self.now = 1_000
        self.cpu = 0
        self.wakeups = 0
        self.loop = EngineLoop(
            self.runner,
            bound=bound,
            clocks=Clocks(now_ns=lambda: self.now, cpu_ns=lambda: self.cpu),
            make_token=make_token,
            wake=self._wake,
            when_idle=when_idle,
            when_broken=self.broken.append,
            idle_after_s=0.01,
        )
        self.loop.start()

    def wait_until_asleep(self) -> None:
        """Returns once the engine thread has nothing to do."""
        self.loop.call(lambda: None).result(PATIENCE_S)
        give_up = time.monotonic() + PATIENCE_S
        while not self.loop._asleep and time.monotonic() < give_up:
            threading.Event().wait(0.001)

    def _wake(self, callback: Callable[[], None]) -> None:
        self.wakeups += 1
        self.callbacks.put(callback)

    def take(self, outcomes: int) -> list[BatchOutcome]:
        """Runs callbacks until that many more outcomes came, and returns all so far."""
        wanted = len(self.outcomes) + outcomes
        while len(self.outcomes) < wanted:
            self.callbacks.get(timeout=PATIENCE_S)()
        return self.outcomes

    def until(self, outcomes: int) -> list[BatchOutcome]:
        """Runs callbacks until there are so many outcomes in all, and returns them."""
        return self.take(outcomes - len(self.outcomes))

    def drain_callbacks(self) -> None:
        while not self.callbacks.empty():
            self.callbacks.get()()

    def batch(self, *ids: int, variant: str = "plain", deadline_ns: int = FAR) -> Batch:
        items = tuple(Item(item_id=i, deadline_ns=deadline_ns) for i in ids)
        return Batch(ids[0] if ids else 0, "model", variant, items, self.now)

    def hold(self, item_id: int = 1000) -> None:
        """Occupies the engine until `runner.let_go`, and returns once it is occupied."""
        self.loop.submit(self.batch(item_id, variant="held"), self.outcomes.append)
        assert self.runner.started.get(timeout=PATIENCE_S) == (item_id,)


def kinds(outcome: BatchOutcome) -> list[str]:
    return [type(o).__name__ if isinstance(o, WorkerError) else "ok" for o in outcome.outcomes]
