"""Writes records to files for other tools, and as traces for the simulator."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from bench.sim.workload import TRACE_COLUMNS
from deploy.records.reading import RecordsError

LINES, COMMAS = ".jsonl", ".csv"
SUFFIXES = (LINES, COMMAS)
# What a trace has after the columns that the simulator reads.
TRACE = (*TRACE_COLUMNS, "variant", "outcome", "service_us", "tenant", "class")


def export_records(
    database: sqlite3.Connection, path: Path, *, since_us: int = 0, resume: bool = False
) -> int:
    """Writes one line a record, the oldest first, as the ending of `path` says; returns how many.

    With `resume` only those that are newer than the last one there are added. Raises RecordsError.
    """
    if path.suffix not in SUFFIXES:
        raise RecordsError(
            f"{path}: records are exported to {' or '.join(SUFFIXES)}",
            "tools that want Parquet read both",
        )
    last = _last_id(path) if resume else 0
    cursor = database.execute(
        "SELECT * FROM requests WHERE id > ? AND at_us >= ? ORDER BY id", (last, since_us)
    )
    names = [column[0] for column in cursor.description]
    with path.open("a" if last else "w", newline="", encoding="utf-8") as file:
        if path.suffix == LINES:
            return _write_lines(file, names, cursor)
        return _write_commas(file, names, cursor, head=not last)


def export_trace(
    database: sqlite3.Connection, path: Path, *, model: str = "", since_us: int = 0
) -> int:
    """Writes what was offered of one model as `orchid sim --trace` plays it; returns how many.

    Without a `model` there must be one only. Refused requests are offered as well. Raises
    RecordsError.
    """
    offered = "FROM requests WHERE asked = 1 AND lane = 'encoder' AND tokens > 0 AND at_us >= ?"
    models = [
        str(name)
        for (name,) in database.execute(f"SELECT DISTINCT model {offered}", (since_us,))
        if name
    ]
    if model and model not in models:
        known = ", ".join(sorted(models)) or "none"
        raise RecordsError(f"no request of model {model!r} with tokens; there are: {known}")
    if not model and len(models) != 1:
        if not models:
            raise RecordsError("no request with tokens is recorded, so there is nothing to play")
        raise RecordsError(f"several models: {', '.join(sorted(models))}", "--model names one")
    rows = database.execute(
        "SELECT at_us, tokens, deadline_us, variant, outcome, measured_compute_us, tenant, "
        f"request_class {offered} AND model = ? ORDER BY at_us, id",
        (since_us, model or models[0]),
    )
    count, begun_us = 0, 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(TRACE)
        for at_us, *rest in rows:
            if not count:
                begun_us = at_us
            writer.writerow([at_us - begun_us, *map(_one_line, rest)])
            count += 1
    return count


def _write_lines(file: TextIO, names: list[str], rows: Iterator[Any]) -> int:
    count = 0
    for row in rows:
        file.write(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) + "\n")
        count += 1
    return count


def _write_commas(file: TextIO, names: list[str], rows: Iterator[Any], *, head: bool) -> int:
    writer, count = csv.writer(file), 0
    if head:
        writer.writerow(names)
    for row in rows:
        writer.writerow(map(_one_line, row))
        count += 1
    return count


def _one_line(cell: Any) -> Any:
    """A cell without line breaks: names are what callers like."""
    return " ".join(cell.splitlines()) if isinstance(cell, str) else cell


def _last_id(path: Path) -> int:
    """The id of the last record in a file, whose last line is cut off if it is not whole."""
    if not path.exists():
        return 0
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole != len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
    lines = content[:whole].splitlines()
    if not lines:
        return 0
    last = lines[-1].decode("utf-8", "replace")
    try:
        if path.suffix == LINES:
            return int(json.loads(last)["id"])
        first = last.partition(",")[0]
        return 0 if first == "id" else int(first)
    except (ValueError, KeyError, TypeError):
        raise RecordsError(
            f"{path} does not end with a record", "export to another file, or without --resume"
        ) from None
