"""Whatever travels together, each item gets what it gets alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.worker.serving import Stream, batch, floats, serve, token_item
from worker.models.synthetic import vocabulary

ROW = st.lists(st.integers(0, len(vocabulary()) - 1), min_size=1, max_size=40)
ITEM = st.lists(ROW, min_size=1, max_size=3)
TARGETS = (("tiny", "tiny-a"), ("tiny", "tiny-b"), ("tiny-padded", "tiny-a"))
BATCH = st.tuples(st.sampled_from(TARGETS), st.lists(ITEM, min_size=1, max_size=5))

Plan = Sequence[tuple[tuple[str, str], list[list[list[int]]]]]


async def compare(repository: Path, plans: list[Plan]) -> None:
    """Sends each plan's batches together, and then each item alone."""
    async with serve(repository, ("tiny", "tiny-padded")) as served:
        for plan in plans:
            together, alone = Stream(served), Stream(served)
            batches, singles, ids = [], [], 0
            for number, ((model, variant), items) in enumerate(plan):
                made = [token_item(ids + i, *rows) for i, rows in enumerate(items)]
                batches.append(batch(number, *made, model=model, variant=variant))
                singles += [batch(m.item_id, m, model=model, variant=variant) for m in made]
                ids += len(items)
            await together.send(*batches)
            mixed = await together.receive(ids)
            for single in singles:
                await alone.send(single)
            isolated = await alone.receive(ids)
            for item_id in range(ids):
                left, right = floats(mixed[item_id]), floats(isolated[item_id])
                assert left.shape == right.shape
                assert np.allclose(left, right, rtol=0, atol=1e-5)
                assert np.array_equal(left.argmax(1), right.argmax(1))
            await together.finish()
            await alone.finish()


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(plans=st.lists(st.lists(BATCH, min_size=1, max_size=4), min_size=1, max_size=8))
def test_mixed_batches_equal_isolated_results(repository: Path, plans: list[Plan]) -> None:
    asyncio.run(compare(repository, plans))
