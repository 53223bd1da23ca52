"""The picture of `orchid bench decode`, drawn from its JSON alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.decode.compare import MEASURES
from bench.report import Report

Point = Mapping[str, Any]
# One colour a runtime; our precisions in shades of one.
COLOURS = {
    "orchid-q4": "#7b2d8b",
    "orchid-int8": "#b06cbf",
    "orchid-fp32": "#d9b8df",
    "llamacpp_q4_0": "#d97706",
    "llamacpp_q4_1": "#fbbf24",
    "openvino": "#2b6cb0",
    "ortgenai": "#0f766e",
}
_OTHER = "#666666"


def plot_decode(report: Report, path: Path) -> None:
    """Draw the runtimes on every measure, and our own steps by batch; writes a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.6), constrained_layout=True)
    _compared(axes[0], report.points, [m for m in MEASURES if not m.is_prefill])
    axes[0].set(title="decode, tokens a second", xlabel="sequences @ cached tokens")
    _compared(axes[1], report.points, [m for m in MEASURES if m.is_prefill])
    axes[1].set(title="prompt of 256, tokens a second")
    _steps(axes[2], [point for point in report.points if point["name"] == "step"])
    axes[2].set(
        title="our q4 steps, dotted: memory's floor", xlabel="sequences in a step", ylabel="ms"
    )
    for axis in axes:
        axis.grid(alpha=0.25, axis="y")
        axis.legend(fontsize="small")
    facts = f"{report.host.cpu_model}, {report.settings['threads']} threads"
    figure.suptitle(f"{report.bench}: {facts}, commit {report.commit[:10]}", fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _compared(axis: Any, points: Sequence[Point], measures: Sequence[Any]) -> None:
    subjects = list(dict.fromkeys(p["subject"] for p in points if p["name"] == measures[0].name))
    width = 0.8 / max(1, len(subjects))
    for index, subject in enumerate(subjects):
        rates = [
            next(p["tok_s"] for p in points if p["name"] == m.name and p["subject"] == subject)
            for m in measures
        ]
        at = [place + (index - (len(subjects) - 1) / 2) * width for place in range(len(measures))]
        axis.bar(at, rates, width, label=subject, color=COLOURS.get(subject, _OTHER))
    labels = [f"{m.batch} @ {m.tokens}" if m.batch else m.name for m in measures]
    axis.set_xticks(range(len(measures)), labels)


def _steps(axis: Any, points: Sequence[Point]) -> None:
    subjects = list(dict.fromkeys(point["subject"] for point in points))
    chosen = "orchid-q4" if "orchid-q4" in subjects else subjects[0]
    mine = [point for point in points if point["subject"] == chosen]
    lengths = sorted({point["cached"] for point in mine})
    for index, cached in enumerate(lengths):
        line = sorted((p for p in mine if p["cached"] == cached), key=lambda p: int(p["batch"]))
        batches = [point["batch"] for point in line]
        colour = f"C{index}"
        label = f"{cached} cached"
        axis.plot(batches, [p["ms"] for p in line], marker="o", color=colour, label=label)
        axis.plot(batches, [p["floor_ms"] for p in line], linestyle=":", color=colour)
    axis.set_ylim(bottom=0)
