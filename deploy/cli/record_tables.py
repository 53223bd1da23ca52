"""Sums of records as rich tables and lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from rich.table import Table
from rich.text import Text

from deploy.cli.output import printable
from deploy.records.summary import Spending, Sums

_NONE = "(none)"
_MOST_ROWS = 40
# A column of names is not made narrower than this.
_LEAST_NAME = 8
_HEADINGS = (
    "requests",
    "in time",
    "refused",
    "CPU-ms\nan answer",
    "CPU-ms",
    "measured/\nestimated",
    "token-s\nheld",
)


def total_line(whole: Sums) -> Text:
    """All of it in a line."""
    return Text(
        f"{whole.requests:.0f} requests, {_percent(whole.on_time_share)} answered in time; "
        f"{whole.cpu_ms:.0f} CPU-ms of workers, {_number(whole.cost_ms)} for each answer in time; "
        f"measured {_number(whole.ratio, 3)} of what was estimated"
    )


def spending_lines(spent: Spending, whole: Sums, *, everything: bool) -> Iterator[Text]:
    """How what was recorded and charged compares with what workers say they spent."""
    if spent.workers:
        besides = max(0.0, spent.process_ms - spent.run_ms)
        yield Text(
            f"runs of {spent.workers} worker(s) took {spent.run_ms:.0f} CPU-ms, "
            f"{_share(spent.charged_ms, spent.run_ms)} of it charged; their processes "
            f"{besides:.0f} besides (loading, warming up, messages)"
        )
    if spent.live_token_ms:
        yield Text(
            f"arenas held {spent.live_token_ms / 1e3:.0f} token-seconds, "
            f"{_share(spent.charged_token_ms, spent.live_token_ms)} of it charged"
        )
    if everything and spent.whole and spent.run_ms:
        yield Text(f"the records hold {_share(whole.cpu_ms, spent.run_ms)} of the runs' CPU time")
    if spent.dropped:
        yield Text(f"{spent.dropped} records were dropped", style="yellow")


def sums_table(names: Sequence[str], sums: Sequence[Sums], width: int = 80) -> Table:
    """A line a group, the dearest first, in `width` columns; long names go on after a hyphen."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold dim")
    shown = sums[:_MOST_ROWS]
    groups = [[printable(part) or _NONE for part in each.group] for each in shown]
    figures = [_figures(each) for each in shown]
    room = width
    for number, heading in enumerate(_HEADINGS):
        words = [*heading.split("\n"), *(row[number] for row in figures)]
        room -= max(map(len, words)) + 1
    widths = _widths(
        [[name, *(group[number] for group in groups)] for number, name in enumerate(names)], room
    )
    for name in names:
        table.add_column(name, overflow="fold")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for group, row in zip(groups, figures, strict=True):
        parts = ["\n".join(wrap(part, size)) for part, size in zip(group, widths, strict=True)]
        table.add_row(*map(Text, parts), *row)
    if len(sums) > _MOST_ROWS:
        table.caption = f"and {len(sums) - _MOST_ROWS} more; --json has all"
    return table


def _figures(sums: Sums) -> list[str]:
    """What stands below the headings."""
    return [
        f"{sums.requests:.0f}",
        _percent(sums.on_time_share),
        f"{sums.refused:.0f}",
        _number(sums.cost_ms),
        f"{sums.cpu_ms:.0f}",
        _number(sums.ratio, 3),
        f"{sums.live_token_ms / 1e3:.0f}" if sums.live_token_ms else "",
    ]


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """How wide columns of names may be, a space after each: the widest give way first."""
    widths = [max(map(len, column)) for column in columns]
    while sum(widths) + len(widths) > room and max(widths) > _LEAST_NAME:
        widths[widths.index(max(widths))] -= 1
    return widths


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _share(part: float, whole: float) -> str:
    return _percent(part / whole if whole else None)


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
