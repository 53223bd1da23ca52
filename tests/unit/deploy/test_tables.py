"""`orchid status` as it is read."""

from __future__ import annotations

import io

from rich.console import Console

from deploy.charge_views import CohortView
from deploy.cli.cluster_output import print_metrics
from deploy.cli.tables import status_tables
from deploy.fleet_views import (
    FleetStatus,
    GeneratorView,
    LaneView,
    PoolView,
    VariantView,
    WorkerView,
)
from deploy.tenant_views import TenantView


def shown(
    pools: tuple[PoolView, ...], generators: tuple[GeneratorView, ...], width: int = 120
) -> dict[str, str]:
    """The lines of a status by their first word; lines that begin alike are joined."""
    status = FleetStatus("cp", "1", "orchid", 1.0, (), pools, 0, 0, 0, 0.0, 0, {}, generators)
    console = Console(width=width, record=True, file=io.StringIO())
    for table in status_tables(status):
        console.print(table)
    lines = console.export_text().splitlines()
    found: dict[str, str] = {}
    for line in lines:
        if words := line.split():
            found[words[0]] = f"{found[words[0]]} | {line}" if words[0] in found else line
    return found


def test_a_quality_of_zero_is_shown_and_the_lack_of_one_is_not() -> None:
    variants = tuple(
        VariantView(name, True, "", 0.0, measured, 1000.0, 1.0, 0.1, 0)
        for name, measured in (("useless", True), ("unknown", False))
    )
    pool = PoolView("m", "sha256:a", "ready", 1, 0, 0, 0.0, variants, {}, (), 1.25)
    rows = shown((pool,), ())
    assert "0.0000" in rows["useless"]
    assert "0.0000" not in rows["unknown"]


def test_what_waits_is_a_line_of_its_own_on_a_narrow_terminal() -> None:
    pool = PoolView("sentiment", "sha256:a", "ready", 2, 7, 2, 91.2, (), {"answered": 4}, (), 1.25)
    rows = shown((pool,), (), width=80)
    assert rows["model"] == "model sentiment on 2 worker(s): ready; answered 4"
    assert rows["queued"] == "queued 7, in flight 2, predicted work 91.2 ms, door margin 1.25"


def test_metrics_are_a_line_each_that_can_be_copied() -> None:
    console = Console(width=40, record=True, file=io.StringIO())
    addresses = {"controlplane": "127.0.0.1:9464", "a-worker-with-a-long-name": "127.0.0.1:9465"}
    print_metrics(console, addresses, {"controlplane"})
    assert console.export_text().splitlines() == [
        "metrics: controlplane https://127.0.0.1:9464/metrics",
        "         a-worker-with-a-long-name http://127.0.0.1:9465/metrics",
    ]


def test_a_generating_model_shows_what_its_workers_hold() -> None:
    lane = LaneView(
        worker="decode-0",
        variant="smollm2-135m-int8",
        quality=0.0,
        measured=False,
        open=4,
        most_tokens=512,
        correction=1.1,
        answered=7,
        step_ms=9.0,
        prompt_token_ms=2.0,
        sequence_ms=0.5,
        thousand_cached_ms=3.0,
        waiting=1,
        prefilling=2,
        decoding=3,
        pending_prompt_tokens=90,
        cached_tokens=500,
        total_blocks=4096,
        free_blocks=1200,
        evictable_blocks=20,
        generated_tokens=900,
        prefix_hit_tokens=0,
        preemptions=5,
        shed=6,
    )
    outcomes = {"answered": 7, "cancelled": 0}
    generator = GeneratorView("writer", "sha256:w", "ready", 4, 1, (lane,), outcomes)
    rows = shown((), (generator,))
    assert "writer generates on 1 worker(s): ready; open 4; answered 7" in rows["model"]
    assert "taken over from lost workers 1" in rows["model"]
    rows = shown((), (generator,), width=80)
    cells = " ".join(rows["smollm2-135m-int8"].split())
    name = "smollm2-135m-int8 decode-0"
    assert cells == f"{name} 1 2 3 1220/4096 5 6 | {name} 9.5 500 1.10 7"
    headings = " ".join(rows["variant"].split())
    held = "waiting reading writing free blocks preempted shed"
    costs = "quality step ms prompt/s correction answered"
    assert headings == f"variant worker {held} | variant worker {costs}"


def test_everything_is_readable_at_80_columns() -> None:
    worker = WorkerView(
        id="worker-12", address="127.0.0.1:43210", worker_class="encoder", state="draining",
        pid=1234567, threads=1, cpu_model="cpu", simd="avx2", engine="1", queued=256, running=16,
        in_flight=9, completed=12_345_678, cpu_percent=100.0, resident_bytes=4 << 30,
        expired_executed=0, since_report_ms=1.0, trouble="does not describe itself: \x1b[2J why",
    )  # fmt: skip
    tenant = TenantView(
        name="a-tenant-of-some-length", reserved_cpu_ms_per_s=12_000, queued=1234,
        queued_work_ms=1.0, admitted=1_234_567, refused=12_345, charged_cpu_ms=1e7,
        in_flight_cpu_ms=1.0, ahead_ms=12_345.0, apart_cpu_ms=12_345.0,
        reserved_kv_block_s_per_s=4096, generations=128, held_kv_blocks=4096, live_token_ms=5,
    )  # fmt: skip
    variant = VariantView(
        "sentiment-mpnet12-int8", False, "as good and faster: mpnet8-int8", 0.9123, True, 123456.0,
        1.25, 0.123, 1_234_567,
    )  # fmt: skip
    pool = PoolView("sentiment", "sha256:a", "ready", 12, 0, 0, 0.0, (variant,), {}, (), 1.25)
    status = FleetStatus(
        "cp", "1", "price", 1.0, (worker,), (pool,), 0, 0, 0, 0.0, 0, {}, (), (tenant,)
    )
    console = Console(width=80, record=True, file=io.StringIO())
    for table in status_tables(status):
        console.print(table)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "worker-12 does not describe itself: " in text and "\x1b" not in text
    for word in ("12345678", "1234567", "encoder", "draining", "4096", "12345", "0.9123"):
        assert word in text


def test_names_are_no_markup_and_steer_no_terminal() -> None:
    variants = tuple(
        VariantView(name, True, name, 0.9, True, 1000.0, 1.0, 0.1, 0)
        for name in ("[/]", "\x1b[31mred")
    )
    cohort = CohortView("m\x1b[2J", "c\nd", 8, 2.0, 9)
    pool = PoolView(
        "m", "sha256:a", "ready", 1, 0, 0, 0.0, variants, {}, (), 1.25, cohorts=(cohort,)
    )
    rows = shown((pool,), ())
    assert "[/]" in rows["[/]"] and "red" in rows["\\x1b[31mred"]
    assert "tenant m\\x1b[2J, class c\\nd, 8 to 15 tokens" in rows["tenant"]
