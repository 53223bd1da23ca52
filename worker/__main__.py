"""Composition root of the worker process: clocks and generators are made here."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast, get_args, get_origin, get_type_hints

import numpy as np
import psutil
import uvloop

from worker.app import WorkerApp
from worker.config import WorkerConfig
from worker.cpu_plan import throttle_reader
from worker.errors import WorkerError
from worker.loop import Clocks
from worker.meter import LoadMeter, host_times
from worker.services import Means
from worker.telemetry import start_logging
from worker.tracing import start_tracing

log = logging.getLogger("worker")

# The engine thread must not wait 5 ms, Python's default, for a busy event loop.
_SWITCH_INTERVAL_S = 0.0005


def make_means(config: WorkerConfig) -> Means:
    """The process's clocks, meter, tracing and generator."""
    # One thread runs everything unless the engine has a pool of its own.
    cpu_ns = time.thread_time_ns if config.intra_op_threads == 1 else time.process_time_ns
    process = psutil.Process()
    throttling = throttle_reader()
    return Means(
        clocks=Clocks(now_ns=time.monotonic_ns, cpu_ns=cpu_ns),
        wall_ns=time.time_ns,
        throttling=throttling,
        meter=LoadMeter(
            now_ns=time.monotonic_ns,
            process_cpu_ns=time.process_time_ns,
            host=host_times,
            resident_bytes=lambda: int(process.memory_info().rss),
            throttled_periods=lambda: throttling().throttled_periods,
        ),
        tracing=start_tracing(config, config.own_id, time.time_ns() - time.monotonic_ns()),
        generator=np.random.default_rng(),
        wait_s=time.sleep,
    )


async def run(
    config: WorkerConfig,
    *,
    ready: Callable[[str], None] | None = None,
    metrics_ready: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serves until `stop` is set, then drains, or until a Drain call asks to exit.

    `ready` is called with the bound address once the server answers, before it `metrics_ready`
    with that of metrics where they are served; models may still load.
    """
    app = WorkerApp(config, make_means(config))
    try:
        address = await app.start()
        if metrics_ready is not None and app.metrics_address:
            metrics_ready(app.metrics_address)
        if ready is not None:
            ready(address)
        stop = stop or asyncio.Event()
        ends = [asyncio.create_task(app.wait()), asyncio.create_task(stop.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        if stop.is_set():
            report = await app.drain(config.drain_timeout_ms / 1e3)
            log.info(
                "drained finished=%d abandoned=%d", report.finished_items, report.abandoned_items
            )
    finally:
        await app.stop()


async def _run_until_signal(
    config: WorkerConfig,
    ready: Callable[[str], None] | None,
    metrics_ready: Callable[[str], None] | None,
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await run(config, ready=ready, metrics_ready=metrics_ready, stop=stop)


def main(
    config: WorkerConfig,
    *,
    ready: Callable[[str], None] | None = None,
    metrics_ready: Callable[[str], None] | None = None,
) -> None:
    """Runs a worker process until a signal or a Drain call ends it.

    Exits with status 1 and one line of explanation when it cannot start.
    """
    start_logging(config.log_level, config.log_format, config.own_id)
    if config.cpus:
        # Before any thread is made: they all inherit it.
        os.sched_setaffinity(0, config.cpus)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            uvloop.run(_run_until_signal(config, ready, metrics_ready))
        except (WorkerError, OSError) as error:
            log.error("cannot serve: %s", error)
            raise SystemExit(1) from None


def config_from(arguments: Sequence[str]) -> WorkerConfig:
    """Settings from options named as the keys of WorkerConfig, `--worker-class decode`,
    `--tls-ca FILE`.

    Exits with status 2 and a line of explanation for what is unknown or out of range.
    """
    parser = argparse.ArgumentParser(prog="python -m worker")
    types = get_type_hints(WorkerConfig)
    for key in fields(WorkerConfig):
        kind = types[key.name]
        if not is_dataclass(kind):
            _add_option(parser, key.name, kind)
            continue
        for inner, inner_kind in get_type_hints(kind).items():
            if not inner.startswith("__"):
                _add_option(parser, f"{key.name}_{inner}", inner_kind)
    given = vars(parser.parse_args(arguments))
    try:
        values: dict[str, Any] = {}
        for key in fields(WorkerConfig):
            kind = types[key.name]
            if is_dataclass(kind):
                nested = {f.name: given[f"{key.name}_{f.name}"] for f in fields(kind)}
                chosen = {name: value for name, value in nested.items() if value is not None}
                if chosen:
                    values[key.name] = cast(Any, kind)(**chosen)
            elif (value := given[key.name]) is not None:
                values[key.name] = tuple(value) if isinstance(value, list) else value
        return WorkerConfig(**values)
    except ValueError as error:
        parser.error(str(error))


def _add_option(parser: argparse.ArgumentParser, name: str, kind: Any) -> None:
    option = "--" + name.replace("_", "-")
    if get_origin(kind) is tuple:
        parser.add_argument(option, nargs="*", type=get_args(kind)[0])
    elif kind is bool or kind == bool | None:
        parser.add_argument(option, action=argparse.BooleanOptionalAction)
    else:
        parser.add_argument(option, type=kind)


if __name__ == "__main__":
    main(config_from(sys.argv[1:]))
