"""Every metric of a worker; docs/operations.md has the same table."""

from __future__ import annotations

from protos.measures import NANOSECONDS, Family, Kind

MICROSECONDS = 1_000_000


def _counter(
    name: str, text: str, labels: tuple[str, ...] = (), *, unit: str = "", per: int = 1
) -> Family:
    return Family(f"orchid.{name}", Kind.COUNTER, text, labels, unit, per)


def _gauge(name: str, text: str, labels: tuple[str, ...] = (), *, unit: str = "") -> Family:
    return Family(f"orchid.{name}", Kind.GAUGE, text, labels, unit)


def _times(name: str, text: str) -> Family:
    return Family(f"orchid.{name}", Kind.HISTOGRAM, text, _VARIANT, "s", NANOSECONDS)


_VARIANT = ("model", "variant")

# Both classes of worker.
ITEMS = _gauge("worker.items", "Requests or generations, queued or running.", ("state",))
COMPLETED = _counter("worker.completed", "Requests or generations that were answered.")
RUN_CPU = _counter("worker.run_cpu", "CPU time of runs.", unit="s", per=NANOSECONDS)
EXPIRED = _counter("expired.work_executed", "Work executed after its deadline; must stay 0.")
DRAINING = _gauge("worker.draining", "1 while the worker takes no new work.")
MODELS = _gauge("worker.models", "Models by where they are.", ("state",))
HOST_CPU = _gauge("host.cpu_ratio", "CPU use of the whole machine, 0 to 1.")
PERIODS = _counter("cgroup.periods", "Periods of the CPU quota; 0 without one.")
THROTTLED = _counter("cgroup.throttled_periods", "Periods in which the quota held us back.")
THROTTLED_TIME = _counter(
    "cgroup.throttled", "Time the quota held us back.", unit="s", per=MICROSECONDS
)
MEMORY = _gauge(
    "memory.accounted", "Memory by how long it stays and what for.", ("lifetime",), unit="By"
)
MEMORY_MEASURED = _gauge(
    "memory.measured", "Memory of the process, shared pages in equal parts (PSS).", unit="By"
)
MEMORY_AVAILABLE = _gauge("memory.available", "Memory that a load may still take.", unit="By")
BUILD = _gauge("build.info", "Always 1.", ("service", "version", "worker_class", "engine", "simd"))

# Encoder workers.
OUTCOMES = _counter("worker.outcomes", "Items that ended on the worker, by outcome.", ("outcome",))
QUEUE = _times("worker.queue", "Time of a batch at the worker before its run.")
RUN = _times("worker.run", "Time of a run.")
SIZE = Family("orchid.worker.batch_size", Kind.HISTOGRAM, "Requests in one run.", _VARIANT)
TOKENS = _counter("worker.tokens", "Tokens that were run.", _VARIANT)
PADDING = _counter(
    "worker.padded_tokens",
    "Positions that were run and hold no token; 0 but for padded graphs.",
    _VARIANT,
)
VARIANT_CPU = _counter(
    "worker.variant_cpu", "CPU time of runs, by variant.", _VARIANT, unit="s", per=NANOSECONDS
)

# Decode workers.
SEQUENCES = _gauge(
    "decode.sequences",
    "Answers that wait, whose prompt is read, or that are written.",
    (*_VARIANT, "state"),
)
PENDING = _gauge("decode.pending_prompt_tokens", "Prompt tokens to be read.", _VARIANT)
BLOCKS = _gauge(
    "arena.blocks",
    "Blocks of 16 tokens: free, cached (prefixes only) or held.",
    (*_VARIANT, "state"),
)
FRAGMENTATION = _gauge(
    "arena.fragmentation_ratio", "Share of the held blocks' places that hold no token.", _VARIANT
)
DECODE_TOKENS = _counter(
    "decode.tokens", "Tokens: computed of prompts, found cached, generated.", (*_VARIANT, "kind")
)
PREEMPTIONS = _counter("decode.preemptions", "Answers that gave their place up.", _VARIANT)
SHED = _counter("decode.shed", "Answers refused because their first token would be late.", _VARIANT)
DECODE_QUEUE = _times("decode.queue", "Time from arrival to a place in the arena.")
FIRST_TOKEN = _times("decode.first_token", "Time from arrival to the first token.")
TOKEN_GAP = _times("decode.token_gap", "Time between two tokens of an answer.")
STEP = _times("decode.step", "Time of a step.")
WIDTH = Family("orchid.decode.batch_size", Kind.HISTOGRAM, "Sequences in one step.", _VARIANT)
