"""`orchid records`: sums, exports, traces that the simulator plays, and faults with remedies."""

from __future__ import annotations

import csv
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bench.sim.model import two_variants
from bench.sim.settings import SimSettings
from bench.sim.workload import read_trace
from bench.sim.world import simulate
from controlplane.records.demand import AFTERWARDS, COLUMNS, DemandRecord, Use
from controlplane.records.store import RecordStore
from deploy.cli.records import app
from deploy.config import ConfigError
from deploy.records.reading import RecordsError, reading
from deploy.records.settings import FILE, records_overrides
from deploy.records.summary import spending, summarise
from tests.unit.controlplane.records.samples import generation, record, sample

RUNNER = CliRunner(env={"COLUMNS": "200"})
MS = 1_000_000

TRAFFIC = [
    record(1.0),
    record(2.0, tenant="lab", variant="fast", measured=Use(compute_us=4_000)),
    record(3.0, outcome="too-late", on_time=0, measured=Use()),
    record(3.0, outcome=AFTERWARDS, asked=0, on_time=0, estimated=Use(), tokens=0,
           measured=Use(compute_us=6_000)),
    record(4.0, outcome="refused", on_time=0, dispatches=0, variant="", measured=Use()),
    generation(0.5),
]  # fmt: skip


def write(state: Path, records: list[DemandRecord], **changes: Any) -> Path:
    given: dict[str, Any] = {"rows": 1000, "file_bytes": 1 << 30, "begun_us": 1, **changes}
    store = RecordStore(state / FILE, **given)
    store.start()
    for each in records:
        store.put(each)
    store.sample(sample())
    live = {"live_token_ms": 5_000, "charged_token_ms": 4_400}
    store.sample(sample(session=2, worker="decode-0", run_cpu_us=112_000, process_cpu_us=130_000,
                        charged_cpu_us=112_000, **live))  # fmt: skip
    store.close()
    assert not store.failed
    return state / FILE


@pytest.fixture
def state(tmp_path: Path) -> Path:
    write(tmp_path, TRAFFIC)
    return tmp_path


def run(state: Path, *arguments: object) -> tuple[int, str]:
    told = [*(str(each) for each in arguments), "--state", str(state)]
    result = RUNNER.invoke(app, told)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def test_sums_by_tenant(state: Path) -> None:
    with reading(state / FILE) as database:
        shop, lab = summarise(database, ["tenant"])
        (whole,) = summarise(database)
    assert (shop.group, shop.requests, shop.answered, shop.on_time) == (("shop",), 4, 2, 2)
    assert shop.refused == 1 and shop.on_time_share == 0.5
    # The run of the one that was too late is paid for by those in time.
    assert shop.cpu_ms == 10 + 6 + 22 + 90
    assert shop.cost_ms == 64
    # What ran after its request had ended is held to no estimate.
    assert (shop.estimated_ms, shop.compared_ms) == (8 + 120, 10 + 112)
    assert shop.ratio == pytest.approx(122 / 128)
    assert (lab.cpu_ms, lab.cost_ms) == (4, 4)
    assert whole.requests == 5 and whole.cpu_ms == shop.cpu_ms + lab.cpu_ms
    assert whole.live_token_ms == 4_400 and whole.estimated_live_token_ms == 4_000


def test_sums_by_several_and_since(state: Path) -> None:
    with reading(state / FILE) as database:
        found = summarise(database, ["lane", "variant", "outcome"], since_us=2_000_000)
    groups = {each.group: each.requests for each in found}
    assert groups == {
        ("encoder", "fast", "answered"): 1,
        ("encoder", "best", "too-late"): 1,
        ("encoder", "best", AFTERWARDS): 0,
        ("encoder", "", "refused"): 1,
    }


def test_a_record_of_a_share_counts_for_those_it_stands_for(tmp_path: Path) -> None:
    write(tmp_path, [record(weight=4.0), record(weight=4.0, on_time=0, outcome="cancelled")])
    with reading(tmp_path / FILE) as database:
        (whole,) = summarise(database)
    assert (whole.requests, whole.on_time, whole.cpu_ms, whole.cost_ms) == (8, 4, 80, 20)


def test_what_workers_spent_is_held_against_what_was_charged(state: Path) -> None:
    with reading(state / FILE) as database:
        spent = spending(database)
    assert (spent.workers, spent.run_ms) == (2, 132)
    assert spent.charged_ms == pytest.approx(131.8)
    assert (spent.process_ms, spent.live_token_ms, spent.charged_token_ms) == (180, 5000, 4400)
    assert spent.whole and spent.dropped == 0


def test_the_command_shows_tables(state: Path) -> None:
    code, output = run(state)
    assert code == 0
    lines = " ".join(output.split())
    assert "5 requests, 60.0 % answered in time; 132 CPU-ms of workers, 44.00 for each" in lines
    assert "runs of 2 worker(s) took 132 CPU-ms, 99.8 % of it charged" in lines
    assert "their processes 48 besides" in lines
    assert "arenas held 5 token-seconds, 88.0 % of it charged" in lines
    assert "the records hold 100.0 % of the runs' CPU time" in lines
    for name in ("tenant", "class", "variant", "shop", "lab", "(none)", "q4"):
        assert name in output
    code, output = run(state, "--by", "lane,model")
    assert code == 0 and "writer" in output and "tenant" not in output


def test_the_command_gives_json(state: Path) -> None:
    code, output = run(state, "--json", "--by", "variant")
    assert code == 0
    told = json.loads(output)
    assert told["total"]["requests"] == 5
    assert {each["group"][0] for each in told["by"]["variant"]} == {"best", "fast", "q4", ""}
    assert told["workers"]["run_ms"] == 132


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
def test_an_export_has_every_record_and_can_go_on(state: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    code, output = run(state, "export", path)
    assert (code, output.strip()) == (0, f"written: {path}, 6 records")
    code, output = run(state, "export", path)
    assert code == 1 and "--resume" in output
    # A line that was not written to its end is written again.
    with path.open("ab") as file:
        file.write(b"7,12")
    write(state, [record(9.0, tenant="a\nb")], begun_us=2)
    code, output = run(state, "export", path, "--resume")
    assert (code, output.strip()) == (0, f"written: {path}, 1 records")
    rows: list[dict[str, Any]]
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert rows[-1]["tenant"] == "a b"
    else:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [int(row["id"]) for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert set(rows[0]) == {"id", *COLUMNS}
    code, output = run(state, "export", path, "--resume")
    assert "0 records" in output


def test_what_an_export_cannot_do_is_said(state: Path, tmp_path: Path) -> None:
    code, output = run(state, "export", tmp_path / "out.parquet")
    assert code == 1 and ".jsonl or .csv" in output
    code, output = run(state, "export", tmp_path / "no" / "out.csv")
    assert code == 1 and "cannot write" in output
    (tmp_path / "other.csv").write_text("what,else\n1,2\nx,y\n")
    code, output = run(state, "export", tmp_path / "other.csv", "--resume")
    assert code == 1 and "does not end with a record" in output
    code, output = run(state, "export", tmp_path / "t.csv", "--trace", "--resume")
    assert code == 1


def test_a_trace_of_records_is_played_by_the_simulator(tmp_path: Path) -> None:
    # Put in the order of their ends, which is not that of their arrivals.
    times = [0.010 * number for number in range(200)]
    write(tmp_path, [record(1 + at, tokens=10 + k % 30) for k, at in enumerate(reversed(times))])
    path = tmp_path / "trace.csv"
    code, output = run(tmp_path, "export", path, "--trace")
    assert code == 0 and "200 requests" in output
    traffic = read_trace(path, np.random.default_rng(1))
    assert len(traffic) == 200
    assert traffic.arrived_ns[0] == 0 and traffic.arrived_ns[-1] == 1990 * MS
    assert set((traffic.deadline_ns - traffic.arrived_ns).tolist()) == {100 * MS}
    assert traffic.tokens[0] == 10 + 199 % 30
    result = simulate(traffic, two_variants().table(), SimSettings(policy="price"))
    assert result.offered == 200 and result.on_time > 0.95
    with path.open() as file:
        head = file.readline()
    assert head.strip().endswith("variant,outcome,service_us,tenant,class")


def test_a_trace_is_of_one_model_and_of_all_that_was_offered(state: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    assert run(state, "export", path, "--trace")[0] == 0
    with path.open(newline="") as file:
        outcomes = [row["outcome"] for row in csv.DictReader(file)]
    assert outcomes == ["answered", "answered", "too-late", "refused"]
    write(state, [record(9.0, model="other")], begun_us=2)
    code, output = run(state, "export", path, "--trace")
    assert code == 1 and "several models: m, other" in output and "--model" in output
    code, output = run(state, "export", path, "--trace", "--model", "other")
    assert code == 0 and "1 requests" in output
    code, output = run(state, "export", path, "--trace", "--model", "othr")
    assert code == 1 and "there are: m, other" in output


def test_faults_have_remedies(state: Path, tmp_path: Path) -> None:
    code, output = run(tmp_path / "nowhere")
    assert code == 1 and "no records in" in output and "orchid up" in output
    code, output = run(state, "--by", "tennant")
    assert code == 1 and "--by takes lane, model, tenant" in output
    code, output = run(state, "--since", "soon")
    assert code == 1 and "90s, 10m, 2h, 7d" in output
    assert run(state, "--since", "10m")[0] == 0
    # Further back than there is time: all of them.
    assert "5 requests" in run(state, "--since", "9" * 30 + "d")[1]


def test_names_steer_neither_terminal_nor_table(state: Path) -> None:
    write(state, [record(5.0, tenant="\x1b[31mred\nnext\u202e[/]")], begun_us=2)
    code, output = run(state, "--by", "tenant")
    assert code == 0
    assert "\\x1b[31mred\\nnext\\u202e[/]" in output
    assert not set("\x1b\u202e") & set(output)


@pytest.mark.parametrize("damage", [b"no store at all" * 400, None])
def test_a_torn_file_is_said_to_be_torn(state: Path, damage: bytes | None) -> None:
    file = state / FILE
    if damage is not None:
        file.write_bytes(damage)
    else:
        with file.open("r+b") as handle:
            handle.seek(4096)
            handle.write(b"\xff" * 4096 * 4)
    code, output = run(state)
    assert code == 1 and "is torn" in output and "recover" in output


def test_another_database_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / FILE
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE mine (a)")
    database.close()
    with pytest.raises(RecordsError, match="database of something else"), reading(path):
        pass


def test_reading_goes_on_while_somebody_writes(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / FILE, rows=10_000, file_bytes=1 << 30, begun_us=1)
    store.start()
    store.put(record())
    while not store.written:
        store._writer.join(0.02)
    with reading(tmp_path / FILE) as database:
        assert summarise(database)[0].requests == 1
        store.put(record())
        while store.written < 2 and not store.failed:
            store._writer.join(0.02)
        assert summarise(database)[0].requests == 2
    store.close()


def test_a_local_cluster_keeps_records_unless_told_otherwise(tmp_path: Path) -> None:
    usual = records_overrides(None, {}, tmp_path)
    assert usual == {"records": {"file": str(tmp_path / FILE)}}
    assert records_overrides(None, {}, tmp_path, off=True) == {"records": {"file": ""}}
    config = tmp_path / "orchid.yaml"
    config.write_text("controlplane:\n  records:\n    file: /elsewhere/r.sqlite\n")
    assert records_overrides(config, {}, tmp_path) == {}
    config.write_text("controlplane:\n  records:\n    share: 2\n")
    with pytest.raises(ConfigError, match="records"):
        records_overrides(config, {}, tmp_path)
