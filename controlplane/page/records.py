"""What the status page shows, as plain values. Field names are those of /status.json.

Names of models, variants, workers, classes and tenants come from others and may hold anything:
whoever shows them must escape them. No prompt, text, token or tensor is ever among these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class House:
    """The control plane itself. `cpu_percent` is of one core, since the last snapshot."""

    id: str
    version: str
    policy: str
    uptime_s: float
    cpu_percent: float
    resident_bytes: int
    preprocess_queued: int
    preprocess_running: int
    expired_work_executed: int


@dataclass(frozen=True, slots=True)
class HeldModel:
    """One model on one worker; `note` says why it takes no part, or failed."""

    name: str
    state: str
    progress: float
    variants: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """What a worker's memory is for, in bytes, as it last told it; up to a minute old.

    `weights` with what sessions and loads take, `runtime` with what the C library keeps free,
    `workspace` of runs with the inputs that wait, `caches` of keys and values. `free` is what a
    load may still take and `limited_by` whose limit that is, `measured` what the kernel counts for
    the process, `budget` what the configuration allows altogether, 0 without one.
    """

    weights: int
    runtime: int
    workspace: int
    caches: int
    free: int
    limited_by: str
    measured: int
    budget: int


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker, or one that was lost `gone_s` seconds ago (None while it is there).

    CPU in percent of one core, `host_cpu_percent` of the whole machine; `held` counts the
    requests or generations that the control plane knows there. `trouble` is why it cannot be
    used, empty when nothing is known to stand in the way. `memory` is None until the worker
    has told it, and once it is gone.
    """

    id: str
    worker_class: str
    state: str
    address: str
    threads: int
    cpu_model: str
    simd: str
    cpu_percent: float
    host_cpu_percent: float
    resident_bytes: int
    running: int
    queued: int
    held: int
    completed: int
    throttled_periods: int
    since_report_ms: float
    models: tuple[HeldModel, ...]
    trouble: str = ""
    memory: MemoryRow | None = None
    gone_s: float | None = None


@dataclass(frozen=True, slots=True)
class VariantRow:
    """One variant of a queue's model; `quality` is None where it was not measured."""

    name: str
    quality: float | None
    p50_ms: float
    correction: float
    sigma: float
    answered: int
    note: str


@dataclass(frozen=True, slots=True)
class Rates:
    """How a model's requests ended over the last `seconds` (at most a minute), each second.

    `on_time_share` is of those that could have been answered: neither cancelled by their
    caller nor wrong; None when there were none.
    """

    seconds: float
    ended_per_s: float
    answered_per_s: float
    refused_per_s: float
    on_time_share: float | None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """The queue of one model of the encoder lane.

    `head_slack_ms` is what the most urgent waiting request has left; None when none waits.
    `overload` is level and trigger on the overload ladder, empty on level 0.
    """

    model: str
    state: str
    workers: int
    queued: int
    in_flight: int
    predicted_work_ms: float
    head_slack_ms: float | None
    door_margin: float
    overload: str
    variants: tuple[VariantRow, ...]
    outcomes: Mapping[str, int]
    reasons: Mapping[str, int]
    rates: Rates


@dataclass(frozen=True, slots=True)
class ArenaMap:
    """The blocks of one arena. `cells` has a digit for each `blocks_per_cell` blocks.

    0 is free, 1 held by the prefix cache alone, 2 by one sequence, 3 by several; it is empty
    before the worker's first step.
    """

    total_blocks: int
    free_blocks: int
    cached_blocks: int
    used_blocks: int
    occupancy: float
    blocks_per_cell: int
    cells: str


@dataclass(frozen=True, slots=True)
class LaneRow:
    """One variant of a model on one decode worker; counts as last reported."""

    worker: str
    variant: str
    quality: float | None
    open: int
    waiting: int
    reading: int
    writing: int
    pending_prompt_tokens: int
    prefix_hit_tokens: int
    preemptions: int
    shed: int
    correction: float
    answered: int
    arena: ArenaMap


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Times to the first token in the last five minutes, in ms, as good as buckets tell."""

    count: int
    p50_ms: float
    p95_ms: float


@dataclass(frozen=True, slots=True)
class GeneratorRow:
    """A model that generates text; `first_token` is None before there was one.

    `overload` is as in `QueueRow`.
    """

    model: str
    state: str
    open: int
    overload: str
    redispatched: int
    tokens_per_s: float
    first_token: FirstTokens | None
    lanes: tuple[LaneRow, ...]
    outcomes: Mapping[str, int]
    reasons: Mapping[str, int]
    rates: Rates


@dataclass(frozen=True, slots=True)
class Phase:
    """One stretch of a request's time, from its arrival on."""

    name: str
    start_ms: float
    ms: float


@dataclass(frozen=True, slots=True)
class SlowRequest:
    """A request that ended `ago_s` seconds before the snapshot, and where its time went.

    `kind` is "request" or "generation", `deadline_ms` the time it had (0: not known), `trace_id`
    empty unless it was traced.
    """

    kind: str
    model: str
    variant: str
    worker: str
    tenant: str
    request_class: str
    outcome: str
    ago_s: float
    total_ms: float
    deadline_ms: float
    trace_id: str
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class ModelSample:
    """What one model did in one interval, and what waited at its end.

    `outcomes` are all endings, `variants` the answers, `decided` why they came from these,
    `reasons` why there was none, and `first_tokens` times to the first token by bucket of the
    metrics' histogram, empty for none.
    """

    outcomes: Mapping[str, int]
    variants: Mapping[str, int]
    reasons: Mapping[str, int]
    decided: Mapping[str, int]
    queued: int
    work_ms: float
    tokens: int
    first_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One interval of the history that ended at `at_s` of the control plane's uptime."""

    at_s: float
    seconds: float
    choices: int
    offered: int
    models: Mapping[str, ModelSample]


@dataclass(frozen=True, slots=True)
class Totals:
    """The whole house at a glance, over the last `seconds`; `queued` and work are of now.

    `choices_per_s` are the policy's choices of a variant for a run, `offered_per_s` the requests
    it judged at the door.
    """

    seconds: float
    choices_per_s: float
    offered_per_s: float
    answered_per_s: float
    refused_per_s: float
    on_time_share: float | None
    queued: int
    in_flight: int
    predicted_work_ms: float
    generations: int
    tokens_per_s: float
    workers_ready: int
    workers: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment. `samples` are the whole history when `whole`, else its end."""

    schema: int
    at_ms: int
    whole: bool
    house: House
    totals: Totals
    workers: tuple[WorkerRow, ...]
    queues: tuple[QueueRow, ...]
    generators: tuple[GeneratorRow, ...]
    slow: tuple[SlowRequest, ...]
    samples: tuple[Sample, ...]
