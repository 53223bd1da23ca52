"""What a worker has measured, as readings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from protos.measures import Reading, buckets_of
from worker.cpu_plan import Throttling
from worker.generation.records import LaneLoad
from worker.hosted import ModelSnapshot, ModelState
from worker.ledger import Lifetime, MemoryTable
from worker.measures import BatchMeasures
from worker.meter import LoadSample
from worker.metrics import families as f
from worker.records import LoopState
from worker.scheduling.blocks import BLOCK_TOKENS


def of_loop(state: LoopState) -> Iterator[Reading]:
    """What both classes count."""
    yield Reading(f.ITEMS, ("queued",), state.queued_items)
    yield Reading(f.ITEMS, ("running",), state.running_items)
    yield Reading(f.COMPLETED, (), state.completed_items)
    yield Reading(f.RUN_CPU, (), state.run_cpu_ns)
    yield Reading(f.EXPIRED, (), state.expired_items_executed)
    yield Reading(f.DRAINING, (), int(state.draining))


def of_process(
    models: Iterable[ModelSnapshot], sample: LoadSample, throttling: Throttling
) -> Iterator[Reading]:
    """The models held, the machine, and what a quota did."""
    states = Counter(model.state for model in models)
    for state in ModelState:
        yield Reading(f.MODELS, (state.value,), states[state])
    yield Reading(f.HOST_CPU, (), sample.host_cpu_percent / 100)
    yield Reading(f.PERIODS, (), throttling.periods)
    yield Reading(f.THROTTLED, (), throttling.throttled_periods)
    yield Reading(f.THROTTLED_TIME, (), throttling.throttled_us)


def of_memory(table: MemoryTable) -> Iterator[Reading]:
    """The ledger by lifetime, what the kernel counts, and what is left."""
    sums = dict.fromkeys(Lifetime, 0)
    for line in table.lines:
        sums[line.lifetime] += line.bytes
    for lifetime, size in sums.items():
        yield Reading(f.MEMORY, (lifetime.value,), size)
    yield Reading(f.MEMORY_MEASURED, (), table.measured)
    yield Reading(f.MEMORY_AVAILABLE, (), table.available)


def of_batches(measures: BatchMeasures) -> Iterator[Reading]:
    """Runs of an encoder worker."""
    for outcome, count in measures.items.items():
        yield Reading(f.OUTCOMES, (outcome,), count)
    for variant, measured in measures.variants.items():
        yield Reading(f.QUEUE, variant, buckets_of(measured.queue))
        yield Reading(f.RUN, variant, buckets_of(measured.run))
        yield Reading(f.SIZE, variant, buckets_of(measured.size))
        yield Reading(f.TOKENS, variant, measured.tokens)
        yield Reading(f.PADDING, variant, measured.padding)
        yield Reading(f.VARIANT_CPU, variant, measured.cpu_ns)


def of_lanes(loads: Iterable[LaneLoad]) -> Iterator[Reading]:
    """Arenas, sequences and steps of a decode worker, as they were after its last step."""
    for load in loads:
        variant, state, measured = (load.model, load.variant), load.state, load.measures
        sequences = {
            "waiting": state.waiting, "prefilling": state.prefilling, "decoding": state.decoding
        }  # fmt: skip
        for name, count in sequences.items():
            yield Reading(f.SEQUENCES, (*variant, name), count)
        yield Reading(f.PENDING, variant, state.pending_prompt_tokens)
        free, cached = state.free_blocks, state.evictable_blocks
        blocks = {"free": free, "cached": cached, "held": state.total_blocks - free - cached}
        for name, count in blocks.items():
            yield Reading(f.BLOCKS, (*variant, name), count)
        places = measured.held_blocks * BLOCK_TOKENS
        empty = 1.0 - measured.held_tokens / places if places else 0.0
        yield Reading(f.FRAGMENTATION, variant, empty)
        tokens = {
            "prompt": measured.prompt_tokens,
            "cached": state.prefix_hit_tokens,
            "generated": state.generated_tokens,
        }
        for name, count in tokens.items():
            yield Reading(f.DECODE_TOKENS, (*variant, name), count)
        yield Reading(f.PREEMPTIONS, variant, state.preemptions)
        yield Reading(f.SHED, variant, state.shed)
        yield Reading(f.DECODE_QUEUE, variant, buckets_of(measured.queue))
        yield Reading(f.FIRST_TOKEN, variant, buckets_of(measured.first_token))
        yield Reading(f.TOKEN_GAP, variant, buckets_of(measured.gap))
        yield Reading(f.STEP, variant, buckets_of(measured.step))
        yield Reading(f.WIDTH, variant, buckets_of(measured.width))
