"""Counters of every model since the process started, as load generators read them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from controlplane.policy.records import Outcome


@dataclass(slots=True, eq=False)
class Duration:
    """A count of events and the nanoseconds they took together."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        """One more event of `ns` nanoseconds."""
        self.count += 1
        self.ns += ns


@dataclass(slots=True, eq=False)
class BatchCounters:
    """Requests that were answered by runs of one batch size.

    Every member of a run is counted, so runs are members / size; the run's time is
    counted once for each member.
    """

    size: int
    members: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0

    @property
    def runs(self) -> int:
        """Engine runs of this size; members whose caller left make it a lower bound."""
        return -(-self.members // self.size)


@dataclass(slots=True, eq=False)
class ModelCounters:
    """One model's counters. They only grow; one event loop writes them."""

    name: str
    version: str
    wall_ms: Callable[[], int]
    last_inference_ms: int = 0
    inferences: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    batches: dict[int, BatchCounters] = field(default_factory=dict)

    @property
    def executions(self) -> int:
        """Engine runs behind the answers."""
        return sum(batch.runs for batch in self.batches.values())

    def succeeded(self, outcome: Outcome, output_ns: int) -> None:
        """Count an answered request; `output_ns` is what writing the answer took."""
        self.last_inference_ms = self.wall_ms()
        self.inferences += outcome.items
        self.success.add(outcome.total_ns)
        self.queue.add(outcome.queue_ns)
        self.compute_input.add(outcome.preprocess_ns)
        self.compute_infer.add(outcome.execute_ns)
        self.compute_output.add(output_ns)
        size = max(1, outcome.batch_size)
        batch = self.batches.get(size)
        if batch is None:
            batch = self.batches[size] = BatchCounters(size)
        batch.members += 1
        batch.input_ns += outcome.preprocess_ns
        batch.infer_ns += outcome.execute_ns
        batch.output_ns += output_ns

    def generated(self, answers: int, queue_ns: int, first_token_ns: int, total_ns: int) -> None:
        """Count a whole generation, with its times from arrival on.

        Input is what reading the prompt took, inference what came after the first token.
        """
        self.last_inference_ms = self.wall_ms()
        self.inferences += answers
        self.success.add(total_ns)
        self.queue.add(queue_ns)
        self.compute_input.add(max(0, first_token_ns - queue_ns))
        self.compute_infer.add(max(0, total_ns - first_token_ns))
        self.compute_output.add(0)

    def failed(self, ns: int) -> None:
        """Count a request that got no answer, `ns` after it arrived."""
        self.fail.add(ns)


class Statistics:
    """The counters of every model that was ever asked or described.

    `wall_ms` is the wall clock in milliseconds since the epoch, which the protocol's
    time of the last inference is in.
    """

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._counters: defaultdict[str, dict[str, ModelCounters]] = defaultdict(dict)

    def counters(self, name: str, version: str) -> ModelCounters:
        """Counters of one version of a model, from zero when it is new."""
        versions = self._counters[name]
        if version not in versions:
            versions[version] = ModelCounters(name, version, self._wall_ms)
        return versions[version]
