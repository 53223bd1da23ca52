"""Reports survive the trip to JSON and refuse numbers that JSON cannot hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.report import command_line, make_report, read_report, write_report


def test_a_report_reads_back_equal(tmp_path: Path) -> None:
    report = make_report(
        "demo", points=[{"rate": 1.5, "name": "a"}], summary={"ratio": 1.25}, settings={"n": 3}
    )
    path = tmp_path / "deep" / "result.json"
    write_report(path, report)
    assert read_report(path) == report
    assert json.loads(path.read_text())["summary"] == {"ratio": 1.25}
    assert [entry.name for entry in path.parent.iterdir()] == ["result.json"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), "1"])
def test_a_summary_value_must_be_a_finite_number(value: object) -> None:
    with pytest.raises(ValueError, match="summary\\['x'\\]"):
        make_report("demo", points=[], summary={"x": value})  # type: ignore[dict-item]


def test_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    write_report(path, make_report("demo", points=[], summary={}))
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 9'))
    with pytest.raises(ValueError, match="schema 9, expected 1"):
        read_report(path)


def test_the_command_names_the_program_not_its_place() -> None:
    assert command_line(["/opt/x/bin/orchid", "bench", "a b"]) == "orchid bench 'a b'"
    assert command_line(["/opt/deploy/cli/__main__.py", "demo"]) == "orchid demo"
