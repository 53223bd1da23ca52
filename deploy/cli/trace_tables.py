"""Traces as rich tables: a list of them, and one as a waterfall."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from deploy.cli.output import printable
from deploy.traces.spans import CLIENT, Event, Span
from deploy.traces.tree import Trace

# Colours by who works: the caller, the control plane, a worker.
_STYLES = {"client": "magenta", "load": "magenta", "controlplane": "cyan"}
_WORKER_STYLE = "green"
_LEAST_BAR, _MOST_BAR = 10, 80
# Of an id, unless more tells those in a list apart; the command takes what is unique.
_SHORT = 8
_NAME, _COMMAND, _EIGHTHS = "orchid.", "orchid ", " ▏▎▍▌▋▊▉"
# Sampled steps would fill the screen; they are in the file.
_HIDDEN = frozenset(("step",))
_SAID_BY_THE_LIST = ("orchid.model", "orchid.variant", "orchid.reason", "orchid.refusal")


def recent_table(traces: Sequence[Trace]) -> Table:
    """A line a trace, the latest first, in 80 columns; of ids what tells traces apart.

    What is wider than usual goes on in the next line, between names where that is possible.
    """
    digits = _telling(traces)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold dim")
    for heading in ("trace", "began", "call"):
        table.add_column(heading, no_wrap=True)
    table.add_column("model variant", overflow="fold")
    for heading in ("ms", "spans"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("ended", overflow="fold")
    for trace in traces:
        call = trace.call
        table.add_row(
            trace.id[:digits],
            _clock(trace.root.begun_ns).partition(".")[0],
            Text(printable(call.name.removeprefix(_NAME).removeprefix(_COMMAND))),
            Text(_answered_by(call)),
            f"{trace.root.took_ns / 1e6:.1f}",
            str(len(trace.spans)),
            Text(printable(trace.fault), style="red")
            if trace.fault
            else Text("well", style="green"),
        )
    return table


def _telling(traces: Sequence[Trace]) -> int:
    """How many digits of their ids tell traces apart."""
    most = max((len(trace.id) for trace in traces), default=_SHORT)
    for digits in range(_SHORT, most):
        if len({trace.id[:digits] for trace in traces}) == len(traces):
            return digits
    return most


def _answered_by(call: Span) -> str:
    """The model and the variant, whose name alone says both where it begins with the model's."""
    model, variant = _said(call, "orchid.model"), _said(call, "orchid.variant")
    if variant == model or variant.startswith(f"{model}-"):
        return variant
    return f"{model} {variant}".strip()


def summary(trace: Trace) -> Text:
    """What it was, how long it took, and how much of that is accounted for."""
    call, found = trace.call, trace.coverage()
    said = [_said(call, key) for key in _SAID_BY_THE_LIST if call.attributes.get(key)]
    processes = len({span.process for span in trace.spans})
    text = Text.assemble((trace.id, "bold"), f"  {_clock(trace.root.begun_ns)}  {' '.join(said)}\n")
    whole = max(1, found.total_ns)
    work, ways = 100 * found.work_ns / whole, 100 * found.ways_ns / whole
    text.append(f"{found.total_ns / 1e6:.2f} ms in {processes} processes, ")
    text.append(f"{100 * found.share:.1f} % accounted for: {work:.1f} % work and waiting, ")
    text.append(f"{ways:.1f} % between processes")
    if trace.fault:
        text.append(f"\nended: {printable(trace.fault)}", style="red")
    return text


def waterfall(trace: Trace, width: int, *, attributes: bool = False) -> Table:
    """A line a span: its name at its depth, who it is of, begin and length, and a bar."""
    root = trace.root
    rows = list(trace.rows())
    names = max(len(row.span.name) + 2 * row.depth for row in rows)
    processes = max(len(row.span.process) for row in rows)
    bar = min(_MOST_BAR, max(_LEAST_BAR, width - names - processes - 22))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold dim")
    table.add_column("span", no_wrap=True)
    table.add_column("process", no_wrap=True, style="dim")
    table.add_column("at ms", justify="right", no_wrap=True)
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("", min_width=bar, overflow="fold")
    for depth, span in rows:
        # Driver processes of one load are numbered.
        style = _STYLES.get(span.process.partition("-")[0], _WORKER_STYLE)
        name = Text("  " * depth + printable(span.name), style="red" if span.fault else "")
        at, took = (span.begun_ns - root.begun_ns) / 1e6, span.took_ns / 1e6
        drawn = Text(_bar(span, root, bar), style=f"dim {style}" if span.kind == CLIENT else style)
        table.add_row(name, Text(printable(span.process)), f"{at:.2f}", f"{took:.2f}", drawn)
        pad = "  " * (depth + 1)
        for event in span.events:
            if event.name not in _HIDDEN:
                at = (event.at_ns - root.begun_ns) / 1e6
                mark = Text(_mark(event, root, bar), style="yellow")
                table.add_row(
                    Text(f"{pad}◆ {printable(event.name)}", "yellow"), "", f"{at:.2f}", "", mark
                )
        if attributes and span.attributes:
            table.add_row("", "", "", "", Text(_all_said(span), style="dim", overflow="fold"))
        if attributes and span.links:
            more = f"its run was shared with {len(span.links)} more that are recorded"
            table.add_row("", "", "", "", Text(more, style="dim"))
    return table


def _bar(span: Span, root: Span, width: int) -> str:
    """Blocks where the span is in the root's time, to an eighth of a column; never nothing."""
    scale = width * 8 / max(1, root.took_ns)
    begin = round((span.begun_ns - root.begun_ns) * scale)
    end = max(begin + 1, round((span.ended_ns - root.begun_ns) * scale))
    begin, end = max(0, min(begin, width * 8 - 1)), min(end, width * 8)
    blanks, columns = begin // 8, (end - begin + 7) // 8
    rest = (end - begin) % 8
    full = "█" * (columns - 1 if rest else columns)
    return " " * blanks + full + (_EIGHTHS[rest] if rest else "")


def _mark(event: Event, root: Span, width: int) -> str:
    place = int((event.at_ns - root.begun_ns) * width / max(1, root.took_ns))
    return " " * max(0, min(place, width - 1)) + "◆"


def _all_said(span: Span) -> str:
    pairs = (f"{key.removeprefix(_NAME)}={_short(value)}" for key, value in span.attributes.items())
    return " ".join(pairs)


def _short(value: object) -> str:
    if not isinstance(value, float):
        return printable(str(value))
    # Four digits, but no powers of ten.
    return f"{value:.0f}" if abs(value) >= 1000.0 else f"{value:.4g}"


def _said(span: Span, key: str) -> str:
    return printable(str(span.attributes.get(key, "")))


def _clock(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns / 1e9):%H:%M:%S.%f}"[:-3]
