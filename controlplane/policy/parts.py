"""A whole divided into parts that add up to it exactly. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def shares(total_ns: int, sizes: Sequence[int]) -> list[int]:
    """Whole parts of the total in proportion to the sizes, equal ones where all sizes are 0."""
    everything = sum(sizes)
    if len(sizes) == 1:
        return [total_ns]
    if not everything:
        sizes, everything = [1] * len(sizes), len(sizes)
    parts = []
    left, size_left = total_ns, everything
    for size in sizes:
        part = left * size // size_left if size_left else 0
        parts.append(part)
        left -= part
        size_left -= size
    return parts
