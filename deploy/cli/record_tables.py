"""Sums of records as rich tables and lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from deploy.cli.output import printable
from deploy.records.summary import Spending, Sums

_NONE = "(none)"
_MOST_ROWS = 40


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


def sums_table(names: Sequence[str], sums: Sequence[Sums]) -> Table:
    """A line a group, the dearest first."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold dim")
    for name in names:
        table.add_column(name, overflow="fold")
    for heading in (
        "requests",
        "in time",
        "refused",
        "CPU-ms\nan answer",
        "CPU-ms",
        "measured/\nestimated",
        "token-s\nheld",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in sums[:_MOST_ROWS]:
        table.add_row(
            *[Text(printable(part) or _NONE) for part in each.group],
            f"{each.requests:.0f}",
            _percent(each.on_time_share),
            f"{each.refused:.0f}",
            _number(each.cost_ms),
            f"{each.cpu_ms:.0f}",
            _number(each.ratio, 3),
            f"{each.live_token_ms / 1e3:.0f}" if each.live_token_ms else "",
        )
    if len(sums) > _MOST_ROWS:
        table.caption = f"and {len(sums) - _MOST_ROWS} more; --json has all"
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _share(part: float, whole: float) -> str:
    return _percent(part / whole if whole else None)


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
