"""Tables of records fit a terminal, and names in them go on at a hyphen."""

from __future__ import annotations

import io

from rich.console import Console

from deploy.cli.record_tables import sums_table
from deploy.records.summary import Sums


def group(*names: str, requests: float = 123_456.0) -> Sums:
    """Many requests, each figure as long as it gets."""
    return Sums(
        names,
        requests,
        requests,
        requests,
        12_345.0,
        1_234_567.0,
        1.0,
        2.0,
        2.5,
        9e9,
        0.0,
        0.0,
        1,
        1,
    )


def drawn(names: list[str], sums: list[Sums], width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(sums_table(names, sums, width), highlight=False)
    text = console.file
    assert isinstance(text, io.StringIO)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_no_name_breaks_within_a_word() -> None:
    names = ("too-late", "deadline-passed-queued")
    lines = drawn(["outcome", "reason"], [group(*names), group("answered", "")], 80)
    assert max(map(len, lines)) <= 80
    told = {word for line in lines for word in line.split() if word[0].isalpha()}
    assert {"answered", "deadline-", "queued"} <= told, lines
    assert {"passed-", "passed-queued"} & told, lines


def test_names_stay_whole_where_there_is_room() -> None:
    lines = drawn(["reason"], [group("deadline-passed-queued", requests=5.0)], 100)
    assert any("deadline-passed-queued" in line for line in lines)


def test_an_empty_table_and_a_name_without_hyphens_are_drawn() -> None:
    assert len(drawn(["tenant"], [], 80)) >= 1
    lines = drawn(["tenant", "class"], [group("x" * 60, "y" * 60)], 80)
    assert max(map(len, lines)) <= 80
    assert sum(line.count("x") for line in lines) == 60
