"""The resource-and-outcome record of a request: what it was estimated to need, and what it took.

Shapes, names and numbers: never a text, a token or a tensor.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

ENCODER: Final = "encoder"
DECODE: Final = "decode"
# Names that callers choose are cut to this.
MOST_NAME: Final = 64
# The outcome of CPU time that was charged after its request had ended.
AFTERWARDS: Final = "afterwards"


class Use(NamedTuple):
    """Resources of one request, estimated or measured.

    CPU time by phase in us: tokenising it in the control plane, runs of an encoder, reading and
    writing on a decode worker. `transfer_bytes` go to the worker and come back as payload (4 for a
    token id). `peak_bytes` and `live_bytes` (on average) are held for it: keys and values in the
    decode lane, its payload in the encoder lane, where the peak has its part of what its run took
    in the engine, too. `live_token_ms` is tokens in the arena times how long.
    """

    preprocess_us: int = 0
    compute_us: int = 0
    prefill_us: int = 0
    decode_us: int = 0
    transfer_bytes: int = 0
    peak_bytes: int = 0
    live_bytes: int = 0
    live_token_ms: int = 0


class DemandRecord(NamedTuple):
    """One request that has ended, as it is stored; durations in us, counts as they are.

    `at_us` is its arrival since 1970. `asked` is 1, or 0 for CPU time that was charged to a request
    after it had ended (outcome AFTERWARDS). `weight` is how many requests it stands for. `on_time`
    says that there was a whole answer in time, for generations: with its targets kept.
    `longest` is the longest sequence, `output_limit` and `output_tokens` are those of generations,
    `first_us` is the time to their first token. `slack_us` is what was left of the deadline when it
    was sent to a worker, `price` that of its cohort. Estimates are those before its last run.
    """

    at_us: int
    lane: str
    model: str
    tenant: str
    request_class: str
    privacy_class: str
    variant: str
    reason: str
    outcome: str
    worker: str
    asked: int
    weight: float
    on_time: int
    approximation: int
    overload_level: int
    quality: float
    dispatches: int
    batch: int
    items: int
    tokens: int
    longest: int
    cached_tokens: int
    output_limit: int
    output_tokens: int
    deadline_us: int
    total_us: int
    queue_us: int
    first_us: int
    slack_us: int
    price: float
    estimated: Use = Use()
    measured: Use = Use()


class WorkerSample(NamedTuple):
    """What a worker has spent since it registered, and what of that was charged; see `Tally`.

    `begun_us` is when the control plane began, `session` the worker's number there.
    """

    begun_us: int
    session: int
    worker: str
    lane: str
    at_us: int
    run_cpu_us: int
    process_cpu_us: int
    live_token_ms: int
    charged_cpu_us: int
    charged_token_ms: int


Cell: TypeAlias = int | float | str
HEAD: Final = DemandRecord._fields[:-2]
COLUMNS: Final = (
    *HEAD,
    *[f"estimated_{name}" for name in Use._fields],
    *[f"measured_{name}" for name in Use._fields],
)
TEXT_COLUMNS: Final = frozenset(
    (
        "lane",
        "model",
        "tenant",
        "request_class",
        "privacy_class",
        "variant",
        "reason",
        "outcome",
        "worker",
    )
)
REAL_COLUMNS: Final = frozenset(("weight", "quality", "price"))


def row_of(record: DemandRecord) -> tuple[Cell, ...]:
    """The record's values in the order of COLUMNS."""
    return (*record[:-2], *record.estimated, *record.measured)
