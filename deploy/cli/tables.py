"""Status as rich tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from deploy.charge_views import CohortView
from deploy.cli.output import printable
from deploy.fleet_views import FleetStatus, GeneratorView, PoolView

_STATE_STYLE = {"ready": "green", "suspect": "yellow", "draining": "yellow", "lost": "red"}


def status_tables(status: FleetStatus) -> Iterator[RenderableType]:
    """A line on the control plane, its workers, then each model with its variants."""
    yield Text(
        f"control plane {status.controlplane_id}: policy {status.policy}, "
        f"up {_duration(status.uptime_s)}, {status.resident_bytes >> 20} MiB, "
        f"expired work executed {status.expired_work_executed}"
    )
    yield Text()
    yield _workers(status)
    for worker in status.workers:
        if worker.trouble:
            yield Text(f"{printable(worker.id)} {printable(worker.trouble)}", style="red")
    if any(worker.charges.run_cpu_ms for worker in status.workers):
        yield Text()
        yield _charges(status)
    for pool in status.pools:
        yield Text()
        yield _pool_line(pool)
        yield _variants(pool)
        for cohort in pool.cohorts:
            yield _cohort_line(cohort)
    for generator in status.generators:
        yield Text()
        yield _generator_line(generator)
        if generator.lanes:
            yield _lanes(generator)
            yield _lane_costs(generator)
        for cohort in generator.cohorts:
            yield _cohort_line(cohort)
    if status.tenants:
        yield Text()
        yield _tenants(status)
    if status.reloads.fault:
        yield Text(f"configuration not taken: {status.reloads.fault}", style="red")


def _table(*left: str) -> Table:
    """Narrow columns without lines: everything shall fit a terminal of 80 columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold dim")
    for heading in left:
        table.add_column(heading, no_wrap=True)
    return table


def _workers(status: FleetStatus) -> Table:
    table = _table()
    table.add_column("worker", overflow="fold")
    for heading in ("class", "state"):
        table.add_column(heading, no_wrap=True)
    table.add_column("address", overflow="fold")
    for heading in ("pid", "runs", "waits", "done", "cpu %", "MiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for worker in status.workers:
        table.add_row(
            _name(worker.id),
            worker.worker_class,
            Text(worker.state, style=_STATE_STYLE.get(worker.state, "")),
            _name(worker.address),
            str(worker.pid),
            str(worker.running),
            str(worker.queued),
            str(worker.completed),
            f"{worker.cpu_percent:.0f}",
            str(worker.resident_bytes >> 20),
        )
    return table


def _charges(status: FleetStatus) -> Table:
    """What workers spent since they registered, and how much of that was charged to somebody."""
    table = _table()
    table.add_column("worker", overflow="fold")
    for heading in ("run s", "charged", "besides s", "token-s", "charged"):
        table.add_column(heading, justify="right", no_wrap=True)
    for worker in status.workers:
        charges = worker.charges
        held = charges.live_token_ms
        table.add_row(
            _name(worker.id),
            f"{charges.run_cpu_ms / 1e3:.1f}",
            _share(charges.charged_cpu_ms, charges.run_cpu_ms),
            f"{charges.overhead_ms / 1e3:.1f}",
            f"{held / 1e3:.0f}" if held else "",
            _share(charges.charged_live_token_ms, held),
        )
    return table


def _name(text: str) -> Text:
    """A cell of a name that somebody chose: no markup, and nothing that steers the terminal."""
    return Text(printable(text))


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}%" if whole else ""


def _tenants(status: FleetStatus) -> Table:
    table = _table()
    table.add_column("tenant", overflow="fold")
    for heading in ("CPU\nms/s", "queued", "admitted", "kept\nout", "CPU\nms", "ahead\nms",
                    "apart\nms", "KV\nblocks", "open", "held"):  # fmt: skip
        table.add_column(heading, justify="right", no_wrap=True)
    for tenant in status.tenants:
        table.add_row(
            _name(tenant.name or "(others)"),
            str(tenant.reserved_cpu_ms_per_s),
            str(tenant.queued),
            str(tenant.admitted),
            str(tenant.refused),
            f"{tenant.charged_cpu_ms:.0f}",
            f"{tenant.ahead_ms:.0f}",
            f"{tenant.apart_cpu_ms:.0f}",
            str(tenant.reserved_kv_block_s_per_s),
            str(tenant.generations),
            str(tenant.held_kv_blocks),
        )
    return table


def _pool_line(pool: PoolView) -> Text:
    outcomes = ", ".join(f"{name} {n}" for name, n in sorted(pool.outcomes.items()) if n)
    return Text(
        f"model {pool.model} on {pool.workers} worker(s): {printable(pool.state)}"
        + (f", {pool.overload.text}" if pool.overload.level else "")
        + (f"; {outcomes}" if outcomes else "")
        + f"\nqueued {pool.queued}, in flight {pool.in_flight}, "
        f"predicted work {pool.predicted_work_ms:.1f} ms, door margin {pool.door_margin:.2f}"
        + f"\n{pool.manifest_digest}"
        + "".join(f"\n{cascade.line()}" for cascade in pool.cascades)
    )


def _cohort_line(cohort: CohortView) -> Text:
    who = f"tenant {printable(cohort.tenant) or '(none)'}"
    if cohort.request_class:
        who += f", class {printable(cohort.request_class)}"
    sizes = f", {cohort.tokens} to {2 * cohort.tokens - 1} tokens" if cohort.tokens else ""
    return Text(
        f"{who}{sizes}: takes {cohort.price:.2f} times what its size says ({cohort.runs} runs)",
        style="yellow",
    )


def _variants(pool: PoolView) -> Table:
    table = _table("variant")
    for heading in ("quality", "p50 ms", "correction", "sigma", "answered"):
        table.add_column(heading, justify="right")
    table.add_column("note", overflow="fold")
    for variant in sorted(pool.variants, key=lambda v: -v.quality):
        table.add_row(
            _name(variant.name),
            f"{variant.quality:.4f}" if variant.measured else "",
            f"{variant.predicted_p50_us / 1e3:.2f}",
            f"{variant.correction:.2f}",
            f"{variant.sigma:.3f}",
            str(variant.answered),
            _name(variant.note),
            style="" if variant.routable else "dim",
        )
    return table


def _generator_line(generator: GeneratorView) -> Text:
    outcomes = ", ".join(f"{name} {n}" for name, n in sorted(generator.outcomes.items()) if n)
    moved = f"; taken over from lost workers {generator.redispatched}"
    return Text(
        f"model {generator.model} generates on {len(generator.lanes)} worker(s): "
        f"{printable(generator.state)}; open {generator.open}"
        + (f", {generator.overload.text}" if generator.overload.level else "")
        + (f"; {outcomes}" if outcomes else "")
        + (moved if generator.redispatched else "")
        + f"\n{generator.manifest_digest}"
    )


def _lanes(generator: GeneratorView) -> Table:
    """What the workers hold; with what it costs in one table no terminal would be wide enough."""
    table = _lane_table("waiting", "reading", "writing", "free blocks", "preempted", "shed")
    for lane in generator.lanes:
        free = lane.free_blocks + lane.evictable_blocks
        table.add_row(
            _name(lane.variant),
            _name(lane.worker),
            str(lane.waiting),
            str(lane.prefilling),
            str(lane.decoding),
            f"{free}/{lane.total_blocks}",
            str(lane.preemptions),
            str(lane.shed),
        )
    return table


def _lane_costs(generator: GeneratorView) -> Table:
    table = _lane_table("quality", "step ms", "prompt/s", "correction", "answered")
    for lane in generator.lanes:
        rate = 1e3 / lane.prompt_token_ms if lane.prompt_token_ms else 0.0
        table.add_row(
            _name(lane.variant),
            _name(lane.worker),
            f"{lane.quality:.4f}" if lane.measured else "",
            f"{lane.step_ms + lane.sequence_ms:.1f}",
            f"{rate:.0f}",
            f"{lane.correction:.2f}",
            str(lane.answered),
        )
    return table


def _lane_table(*right: str) -> Table:
    table = _table()
    for heading in ("variant", "worker"):
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
