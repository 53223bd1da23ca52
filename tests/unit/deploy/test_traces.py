"""Traces read back from files: trees, what they account for, and how they are drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from deploy.cli import app
from deploy.cli.trace_tables import recent_table, summary, waterfall
from deploy.config import load_config
from deploy.traces.client import ClientTrace
from deploy.traces.settings import USUAL_SHARE, tracing_overrides
from deploy.traces.spans import CLIENT, INTERNAL, SERVER, Event, Span, read_latest, read_spans
from deploy.traces.tree import Trace, traces_of

RUNNER = CliRunner(env={"COLUMNS": "140"})
ONE, TWO = "a1" * 16, "b2" * 16
MS = 1_000_000


def span(
    span_id: str,
    parent: str,
    begun_ms: float,
    ended_ms: float,
    name: str = "part",
    kind: int = INTERNAL,
    **changes: Any,
) -> Span:
    fields: dict[str, Any] = {
        "trace_id": ONE,
        "process": "p",
        "attributes": {},
        "begun_ns": int(begun_ms * MS),
        "ended_ns": int(ended_ms * MS),
        **changes,
    }
    return Span(span_id=span_id, parent_id=parent, name=name, kind=kind, **fields)


def whole() -> list[Span]:
    """A client's call of 20 ms: 1 ms each way, 2 ms of it in nobody's span."""
    return [
        span("root", "", 0, 20, "orchid infer", process="client"),
        span("call", "root", 0, 20, "Infer", CLIENT, process="client"),
        span(
            "served", "call", 1, 19, "orchid.request", SERVER,
            attributes={"orchid.model": "m", "orchid.variant": "m-a"},
        ),
        span("queue", "served", 1, 5, "orchid.queue"),
        span("sent", "served", 5, 17, "orchid.dispatch", CLIENT),
        span("worked", "sent", 6, 16, "worker.execute", SERVER, process="worker-0"),
        span(
            "run", "worked", 6, 16, "worker.run", process="worker-0",
            events=(Event("step", 7 * MS, {}), Event("first_token", 8 * MS, {})),
        ),
    ]  # fmt: skip


def test_rows_are_the_tree_in_order() -> None:
    rows = list(Trace(whole()[::-1]).rows())
    assert [(row.depth, row.span.span_id) for row in rows] == [
        (0, "root"), (1, "call"), (2, "served"), (3, "queue"), (3, "sent"), (4, "worked"),
        (5, "run"),
    ]  # fmt: skip


def test_leaves_are_work_and_what_is_left_of_answered_calls_are_ways() -> None:
    found = Trace(whole()).coverage()
    assert found.total_ns == 20 * MS
    assert found.work_ns == 14 * MS
    assert found.ways_ns == 4 * MS
    assert found.share == pytest.approx(0.9)


def test_a_call_whose_other_side_is_missing_accounts_for_nothing() -> None:
    found = Trace(whole()[:5]).coverage()
    assert (found.work_ns, found.ways_ns) == (4 * MS, 2 * MS)
    assert Trace(whole()[:1]).coverage().share == 0.0


def test_overlaps_count_once_and_only_inside_the_root() -> None:
    spans = [
        span("root", "", 10, 20),
        span("a", "root", 5, 15),
        span("b", "root", 12, 14),
        span("c", "root", 18, 30),
    ]
    assert Trace(spans).coverage().work_ns == 7 * MS


def test_a_parent_that_nobody_kept_makes_a_root() -> None:
    trace = Trace([span("a", "gone", 0, 3), span("b", "gone", 1, 9)])
    assert trace.root.span_id == "b" and trace.call.span_id == "b"
    assert [row.depth for row in trace.rows()] == [0, 0]


def test_traces_are_told_apart_latest_first() -> None:
    later = span("x", "", 50, 60, trace_id=TWO)
    assert [trace.id for trace in traces_of([*whole(), later])] == [TWO, ONE]


def drawn(*things: object) -> str:
    console = Console(width=140, record=True, file=None, force_terminal=False)
    with console.capture() as captured:
        for thing in things:
            console.print(thing)
    return captured.get()


def test_a_waterfall_has_a_line_a_span_and_marks_for_events() -> None:
    trace = Trace(whole())
    text = drawn(summary(trace), waterfall(trace, 140, attributes=True))
    assert "90.0 % accounted for" in text and "20.0 % between" in text
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "█" in lines["worker.run"] and "10.00" in lines["worker.run"]
    assert "◆ first_token" in text and "step" not in text
    assert "variant=m-a" in text
    queue, run = lines["orchid.queue"], lines["worker.run"]
    assert queue.index("█") < run.index("█")


def test_the_list_names_call_model_and_end() -> None:
    failed = span("y", "", 50, 60, "orchid.generate", SERVER, trace_id=TWO, fault="refused")
    text = drawn(recent_table(traces_of([*whole(), failed])))
    first, second = text.splitlines()[1:3]
    assert TWO[:8] in first and "generate" in first and "refused" in first
    assert "request" in second and "m-a" in second and "20.0" in second


def kept(folder: Path, name: str, count: int = 1) -> str:
    """A client's trace as a command leaves it; returns its id."""
    clock = iter(range(0, 100 * MS, MS))
    trace = ClientTrace(name, lambda: next(clock))
    for _ in range(count):
        with trace.call("Infer") as call:
            assert trace.id in dict(call.metadata)["traceparent"]
    trace.write(folder, 10**18)
    return trace.id


def test_the_command_lists_and_draws_what_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    first, second = kept(folder, "orchid infer", 2), kept(folder, "orchid generate")
    with (folder / "client.jsonl").open("a") as file:
        file.write('{"resourceSpans": [{"scop')
    listed = RUNNER.invoke(app, ["trace", "--state", str(tmp_path)])
    assert first[:8] in listed.stdout and second[:8] in listed.stdout
    one = RUNNER.invoke(app, ["trace", "recent", "-n", "1", "--state", str(tmp_path)])
    assert (first[:8] in one.stdout) != (second[:8] in one.stdout)
    slow = RUNNER.invoke(app, ["trace", "recent", "--slow", "--state", str(tmp_path)])
    assert slow.exit_code == 0 and "none of the kept traces failed or took" in slow.output
    shown = RUNNER.invoke(app, ["trace", first[:12].upper(), "--state", str(tmp_path)])
    assert shown.exit_code == 0 and shown.stdout.count("Infer") == 2
    unknown = RUNNER.invoke(app, ["trace", "ffffffffffff0", "--state", str(tmp_path)])
    assert unknown.exit_code == 1 and "no trace" in unknown.output
    many = RUNNER.invoke(app, ["trace", "", "--state", str(tmp_path)])
    assert many.exit_code == 1 and "give more digits" in many.output
    nowhere = RUNNER.invoke(app, ["trace", "--state", str(tmp_path / "none")])
    assert nowhere.exit_code == 1 and "orchid up" in nowhere.output


def test_the_latest_are_read_from_the_ends_of_large_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [kept(tmp_path, "orchid infer") for _ in range(30)]
    monkeypatch.setattr("deploy.traces.spans._TAIL_BYTES", 2000)
    latest = {each.trace_id for each in read_latest(tmp_path)}
    assert ids[-1] in latest and ids[0] not in latest
    assert {each.trace_id for each in read_spans(tmp_path, ids[0])} == {ids[0]}


def test_a_cluster_keeps_spans_unless_its_configuration_says_where(tmp_path: Path) -> None:
    plain = tracing_overrides(None, {}, tmp_path)
    assert plain.controlplane == {
        "telemetry": {"directory": str(tmp_path / "traces"), "sample_ratio": USUAL_SHARE}
    }
    assert plain.worker == {"trace_directory": str(tmp_path / "traces")}
    file = tmp_path / "orchid.yaml"
    telemetry = {"directory": "/elsewhere", "sample_ratio": 0.5, "slow_ms": 20}
    worker = {"trace_directory": "/there"}
    file.write_text(json.dumps({"controlplane": {"telemetry": telemetry}, "worker": worker}))
    told = tracing_overrides(file, {}, tmp_path, endpoint="https://collector:4317")
    assert told.controlplane == {"telemetry": {"otlp_endpoint": "https://collector:4317"}}
    assert told.worker == {"otlp_endpoint": "https://collector:4317"}
    chosen = tracing_overrides(file, {}, tmp_path, share=0.0)
    assert chosen.controlplane == {"telemetry": {"sample_ratio": 0.0}}


def test_an_option_of_a_mapping_leaves_the_files_other_keys(tmp_path: Path) -> None:
    from controlplane.config import ControlPlaneConfig

    file = tmp_path / "orchid.yaml"
    file.write_text("controlplane:\n  telemetry:\n    slow_ms: 20\n    sample_ratio: 0.5\n")
    overrides = {"telemetry": {"sample_ratio": 0.25}}
    loaded = load_config(ControlPlaneConfig, "controlplane", file, {}, overrides)
    assert (loaded.telemetry.slow_ms, loaded.telemetry.sample_ratio) == (20, 0.25)


def test_lists_of_traces_are_readable_at_80_columns() -> None:
    told = {"orchid.model": "smollm2-135m", "orchid.variant": "smollm2-135m-int8"}
    slow = span("y", "", 0, 123456, "orchid.generate", SERVER, trace_id=TWO, attributes=told,
                fault="not-received")  # fmt: skip
    console = Console(width=80)
    with console.capture() as captured:
        console.print(recent_table(traces_of([*whole(), slow])))
        console.print(summary(Trace(whole())))
        console.print(waterfall(Trace(whole()), 80))
    text = captured.get()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for word in ("123456.0", TWO[:8], "orchid.dispatch", "accounted for"):
        assert word in text


def listed(*spans: Span) -> list[str]:
    """The lines of a list of traces on a terminal of 80 columns."""
    console = Console(width=80)
    with console.capture() as captured:
        console.print(recent_table(traces_of(spans)))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_the_names_of_a_usual_trace_are_whole_and_in_one_line() -> None:
    spans = [
        span("y", "", 0, took_ms, name, SERVER, trace_id=f"{number:x}" * 32, fault=fault,
             attributes={"orchid.model": model, "orchid.variant": variant})
        for number, (name, model, variant, took_ms, fault) in enumerate((
            ("orchid.generate", "smollm2-135m", "smollm2-135m-int8", 123456, "unauthenticated"),
            ("orchid.request", "sentiment", "mpnet12-int8", 20, ""),
            ("orchid.request", "sentiment", "", 20, "not-found"),
            ("orchid infer", "", "", 20, "unsatisfiable"),
        ))
    ]  # fmt: skip
    heading, *lines = listed(*spans)
    assert " ".join(heading.split()) == "trace began call model variant ms spans ended"
    assert len(lines) == len(spans) and max(map(len, lines)) <= 80
    told = {" ".join(line.split()[2:]) for line in lines}
    assert told == {
        "generate smollm2-135m-int8 123456.0 1 unauthenticated",
        "request sentiment mpnet12-int8 20.0 1 well",
        "request sentiment 20.0 1 not-found",
        "infer 20.0 1 unsatisfiable",
    }


def test_long_names_go_on_between_them_and_ids_are_told_apart() -> None:
    long = {"orchid.model": "a-model-of-some-length", "orchid.variant": "its-variant-int8"}
    one, two = "c3" * 8 + "0" * 16, "c3" * 8 + "1" * 16
    spans = [span("y", "", 0, 20, "orchid.request", SERVER, trace_id=each, attributes=long)
             for each in (one, two)]  # fmt: skip
    lines = listed(*spans)[1:]
    assert [line.split()[0] for line in lines[::2]] in ([one[:17], two[:17]], [two[:17], one[:17]])
    assert all("a-model-of-some-length" in line for line in lines[::2])
    assert [line.strip() for line in lines[1::2]] == ["its-variant-int8"] * 2
