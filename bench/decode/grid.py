"""Our own decode steps over batch sizes and cached lengths, against what memory allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from bench.decode.ours import EngineSubject
from worker.models.manifest import KvGeometry, Layout

_WARM_STEPS = 2
_HALF_BYTES, _FLOAT_BYTES = 2, 4


def step_grid(
    subject: EngineSubject,
    name: str,
    *,
    batches: Sequence[int],
    lengths: Sequence[int],
    steps: int,
    bytes_of: Callable[[int, int], float],
    read_rate: float,
    notify: Callable[[str], None],
) -> list[dict[str, Any]]:
    """One point for each batch and cached length: medians of step time, and of its shares.

    `bytes_of(batch, cached)` is what a step must read at least, `read_rate` the machine's bytes a
    second: `bandwidth_fraction` is the time that would take over the step's. `moved_share` is that
    of copying keys and values, which stock graphs need.
    """
    points = []
    # From the longest: what is cached for it serves the shorter ones too.
    for cached in sorted(lengths, reverse=True):
        notify(f"{name}: {cached} cached tokens")
        for batch in batches:
            subject.open(batch, cached)
            subject.timed_steps(_WARM_STEPS)
            timed = subject.timed_steps(steps)
            seconds = median(step.seconds for step in timed)
            floor = bytes_of(batch, cached) / read_rate
            points.append(
                {
                    "name": "step",
                    "subject": name,
                    "batch": batch,
                    "cached": cached,
                    "ms": seconds * 1e3,
                    "tok_s": batch / seconds,
                    "attention_share": median(step.attention / step.seconds for step in timed),
                    "moved_share": median(step.moved / step.seconds for step in timed),
                    "floor_ms": floor * 1e3,
                    "bandwidth_fraction": floor / seconds,
                }
            )
    subject.close()
    return points


def cached_token_bytes(kv: KvGeometry, layout: Layout) -> int:
    """Bytes of keys and values of one token, in half precision where the arena is read as it is."""
    item = _FLOAT_BYTES if layout == "dense" else _HALF_BYTES
    return 2 * kv.layers * kv.kv_heads * kv.head_dim * item
