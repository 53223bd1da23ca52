"""What a worker measures of its batches and of its sequences."""

from __future__ import annotations

import numpy as np

from tests.unit.worker.scheduling.arena import MS, World, arrival
from worker.errors import EngineFault
from worker.execution import run_items
from worker.measures import OK, BatchMeasures
from worker.models.manifest import TensorSpec, Variant
from worker.records import Batch, BatchOutcome, Item, ItemOutcome
from worker.refusals import Cancelled, NotFound


def item(number: int) -> Item:
    return Item(number, 10**12, np.arange(3, dtype=np.int32), (3,))


def test_runs_are_measured_by_variant_and_items_by_their_end() -> None:
    measures = BatchMeasures()
    batch = Batch(1, "m", "v", (item(1), item(2), item(3)), arrived_ns=10 * MS)
    outcomes: tuple[ItemOutcome, ...] = ({}, Cancelled("left"), EngineFault("broke"))
    measures.record(BatchOutcome(batch, outcomes, 12 * MS, 20 * MS, 7 * MS, 9, 2, 4))
    (variant,) = measures.variants.values()
    assert (variant.queue.sum, variant.run.sum, variant.cpu_ns) == (2 * MS, 8 * MS, 7 * MS)
    assert (variant.size.sum, variant.tokens, variant.padding) == (2, 9, 4)
    assert {word: n for word, n in measures.items.items() if n} == {
        OK: 1, "cancelled": 1, "failed": 1
    }  # fmt: skip


def test_what_never_ran_makes_no_label() -> None:
    measures = BatchMeasures()
    for number in range(10):
        batch = Batch(number, f"model-{number}", "v", (item(number),), 0)
        measures.record(BatchOutcome(batch, (NotFound("no"),), 5, 5, 0, 0, 0))
    assert measures.variants == {} and measures.items["not-found"] == 10


class Padded:
    """A session that answers one row a sequence."""

    def run(self, feeds: dict[str, np.ndarray], outputs: object = None, *, token: object = None):  # type: ignore[no-untyped-def]
        return {"logits": np.zeros((len(feeds["input_ids"]), 2), np.float32)}


def test_padding_is_counted_where_a_graph_needs_it() -> None:
    variant = Variant(
        name="v",
        graph="g",
        layout="padded",
        precision="fp32",
        tokenizer="t",
        max_tokens=64,
        inputs=(TensorSpec("input_ids", "int64", (-1, -1)),),
        outputs=(TensorSpec("logits", "float32", (-1, 2)),),
    )
    items = [
        Item(n, 0, np.ones(length, np.int32), (length,)) for n, length in enumerate((10, 12, 40))
    ]
    execution = run_items(Padded(), variant, 100, items, object())  # type: ignore[arg-type]
    # 10 and 12 run together, which takes two positions more; 40 runs alone.
    assert (execution.tokens, execution.padding) == (62, 2)


def test_sequences_are_measured_from_queue_to_last_token() -> None:
    world = World(blocks=8, chunk_tokens=32)
    world.submit(arrival(1, prompt=40, max_new_tokens=3))
    before = world.scheduler.measured()
    while world.step() is not None:
        if len(world.ended) == 1:
            break
    (ended,) = world.ended
    measured = world.scheduler.measured()
    record = ended.record
    assert sum(before.step.counts) == 0, "a copy does not change"
    assert sum(measured.queue.counts) == 1 and measured.queue.sum == record.queue_ns
    assert measured.first_token.sum == record.first_token_ns
    assert sum(measured.gap.counts) == 2
    assert measured.gap.sum == 2 * record.mean_gap_ns
    assert measured.prompt_tokens == 40
    # Two steps for the prompt, two for the tokens after the first.
    assert sum(measured.step.counts) == measured.width.sum == 4
    assert (measured.held_blocks, measured.held_tokens) == (0, 0)


def test_what_residents_hold_is_measured() -> None:
    world = World(blocks=8, chunk_tokens=32)
    world.submit(arrival(1, prompt=40, max_new_tokens=3))
    world.step()
    measured = world.scheduler.measured()
    assert (measured.held_blocks, measured.held_tokens) == (2, 32)
