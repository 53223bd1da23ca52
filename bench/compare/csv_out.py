"""The points of a comparison as one flat CSV table, for other tools."""

from __future__ import annotations

import csv
from pathlib import Path

from bench.compare.figures import FIGURES, figures_of
from bench.report import Report

_COUNTS = ("offered", "on_time_answers", "late", "refused", "shed", "lost")


def write_csv(report: Report, path: Path) -> None:
    """One row a run: policy, load, seed, live or simulated, every figure, every ending."""
    best = report.settings["baseline"]["variant"]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["policy", "load", "seed", "kind", *FIGURES, *_COUNTS])
        for point in report.points:
            figures = figures_of(point, best)
            head = [point[key] for key in ("policy", "load_factor", "seed", "kind")]
            values = [figures.get(name, "") for name in FIGURES]
            writer.writerow([*head, *values, *(point[name] for name in _COUNTS)])
