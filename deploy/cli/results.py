"""What the measuring commands share: summaries, reports, lists and language models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from deploy.cli.output import fail, fail_for_model

if TYPE_CHECKING:
    from bench.report import Report

BUILD_LANGUAGE_MODEL = "build it with `orchid models build --language-model`"


def print_summary(report: Report) -> None:
    """The flat figures as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in report.summary.items():
        table.add_row(name, f"{value:.4g}")
    Console().print(table, highlight=False)


def finish(report: Report, json: Path | None) -> None:
    """Writes the report where it was asked for."""
    from bench.report import write_report

    if json is not None:
        write_report(json, report)
        typer.echo(f"written: {json}")


def vocabulary_of(repository: Path, model: str, option: str) -> int:
    """Size of a language model's vocabulary; ends with code 1 for others, which `option` names."""
    from worker.models.errors import ModelError
    from worker.models.repository import find_model

    try:
        generation = find_model(repository, model).generation
    except ModelError as error:
        fail_for_model(error, BUILD_LANGUAGE_MODEL)
    if generation is None:
        fail(f"{model} generates no text", f"name a language model with {option}")
    return generation.vocabulary


def numbers(text: str, count: int = 0, separator: str = ",") -> list[float]:
    """The finite numbers in a text; ValueError when there are none, or not `count` of them."""
    from math import isfinite

    try:
        found = [float(part) for part in text.split(separator)]
    except ValueError:
        raise ValueError(f"expected numbers separated by {separator!r}, got {text!r}") from None
    if not all(map(isfinite, found)):
        raise ValueError(f"expected finite numbers, got {text!r}")
    if count and len(found) != count:
        raise ValueError(f"expected {count} numbers separated by {separator!r}, got {text!r}")
    return found


def names(text: str) -> list[str]:
    """The names in a text, by comma."""
    return [name.strip() for name in text.split(",") if name.strip()]
