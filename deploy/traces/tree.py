"""Traces as trees, and how much of a trace's time its spans account for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from deploy.traces.spans import CLIENT, SERVER, Span

Interval = tuple[int, int]


class Row(NamedTuple):
    """A span at its depth in the tree, the root at 0."""

    depth: int
    span: Span


@dataclass(frozen=True, slots=True)
class Coverage:
    """Where a trace's time went, in ns; what is in neither part is not known.

    `work_ns` is the union of the spans that have no spans in them. `ways_ns` are what calls from
    one process to another took beside what the other one did: the way there and back. A call
    whose other side recorded nothing accounts for nothing.
    """

    total_ns: int
    work_ns: int
    ways_ns: int

    @property
    def share(self) -> float:
        """The part of the time that is accounted for, 0 to 1."""
        return (self.work_ns + self.ways_ns) / self.total_ns if self.total_ns else 0.0


class Trace:
    """The spans of one trace."""

    def __init__(self, spans: Sequence[Span]) -> None:
        unique = {span.span_id: span for span in spans}
        self.spans = sorted(unique.values(), key=lambda span: (span.begun_ns, -span.ended_ns))
        self._children: dict[str, list[Span]] = {}
        self._tops: list[Span] = []
        for span in self.spans:
            if span.parent_id in unique:
                self._children.setdefault(span.parent_id, []).append(span)
            else:
                self._tops.append(span)

    @property
    def id(self) -> str:
        """The trace's id."""
        return self.spans[0].trace_id

    @property
    def root(self) -> Span:
        """The longest of the spans that are in no other one."""
        return max(self._tops, key=lambda span: span.took_ns)

    @property
    def call(self) -> Span:
        """The first call that the control plane took in it, else the root."""
        served = (span for span in self.spans if span.name.startswith("orchid."))
        return next(served, self.root)

    @property
    def fault(self) -> str:
        """Why it failed: what its call says, its root, or what that asked; empty when none did."""
        asked = (each.fault for each in self.children(self.root) if each.fault)
        return self.call.fault or self.root.fault or next(asked, "")

    def children(self, span: Span) -> list[Span]:
        """The spans right below one, by their begin."""
        return self._children.get(span.span_id, [])

    def rows(self) -> Iterator[Row]:
        """Every span below its parent, in order of begin."""
        stack = [Row(0, span) for span in reversed(self._tops)]
        while stack:
            row = stack.pop()
            yield row
            stack += [Row(row.depth + 1, span) for span in reversed(self.children(row.span))]

    def coverage(self) -> Coverage:
        """How much of the root's time the spans account for."""
        root = self.root
        work: list[Interval] = []
        ways: list[Interval] = []
        for span in self.spans:
            below = self.children(span)
            if not below:
                if span.kind != CLIENT and span is not root:
                    work.append((span.begun_ns, span.ended_ns))
            elif span.kind == CLIENT and any(each.kind == SERVER for each in below):
                ways += _without((span.begun_ns, span.ended_ns), map(_interval, below))
        within = _interval(root)
        work_ns = _length(_union(_clipped(work, within)))
        both_ns = _length(_union(_clipped([*work, *ways], within)))
        return Coverage(root.took_ns, work_ns, both_ns - work_ns)


def traces_of(spans: Iterable[Span]) -> list[Trace]:
    """The traces of these spans, the latest first."""
    by_id: dict[str, list[Span]] = {}
    for span in spans:
        by_id.setdefault(span.trace_id, []).append(span)
    traces = [Trace(each) for each in by_id.values()]
    return sorted(traces, key=lambda trace: trace.root.begun_ns, reverse=True)


def _interval(span: Span) -> Interval:
    return span.begun_ns, span.ended_ns


def _clipped(intervals: Iterable[Interval], within: Interval) -> list[Interval]:
    begin, end = within
    return [(max(begin, b), min(end, e)) for b, e in intervals if b < end and e > begin]


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times without overlaps, in order."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > begin:
            merged.append((begin, end))
    return merged


def _without(whole: Interval, parts: Iterable[Interval]) -> list[Interval]:
    """What is left of an interval without the parts."""
    at, end = whole
    left: list[Interval] = []
    for begin, until in _union(_clipped(parts, whole)):
        if begin > at:
            left.append((at, begin))
        at = max(at, until)
    if at < end:
        left.append((at, end))
    return left


def _length(intervals: Iterable[Interval]) -> int:
    return sum(end - begin for begin, end in intervals)
