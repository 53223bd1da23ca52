"""What being watched costs: throughput at saturation without telemetry and with each kind of it.

One cluster a mode, all alike and all alive; the load goes to one after the other, in an order
that moves on with every repeat, so that whatever the machine does befalls all of them. The model
is tiny, so that a request is nearly all path: telemetry weighs most there.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.load.metrics import LoadResult
from bench.load.plan import LoadPlan
from bench.load.run import run_load
from bench.overhead import MODEL, VARIANT, token_workloads
from bench.report import Report, host_facts, make_report
from deploy.cluster import ClusterSpec, LocalCluster

OFF, METRICS, TRACING, FILE = MODES = ("off", "metrics", "tracing", "file")


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """`in_flight` requests saturate; `sample_ratio` of them are traced; 0 < `scrape_s`.

    `endpoint` is an OTLP gRPC collector, empty for one that only counts.
    """

    repeats: int = 9
    seconds: float = 2.0
    warmup_s: float = 0.5
    in_flight: int = 16
    sample_ratio: float = 0.1
    scrape_s: float = 1.0
    words: int = 24
    seed: int = 1
    endpoint: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured run; CPU is each process's, for a request."""

    mode: str
    repeat: int
    answered_per_s: float
    controlplane_cpu_ms: float
    worker_cpu_ms: float
    p50_ms: float
    p99_ms: float
    scrapes: int
    scrape_ms: float
    scrape_bytes: int


def run_telemetry(
    settings: TelemetrySettings, notify: Callable[[str, int, int], None] = lambda *_: None
) -> Report:
    """Runs every mode `repeats` times; `notify` gets the mode, the run's number, and how many.

    Raises ClusterError or DriverError when a part does not work, ValueError when a run had a
    failure, or nothing was scraped, received or written where it should have been.
    """
    from worker.models.synthetic import build_synthetic

    host = host_facts()
    samples: list[Sample] = []
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orchid-telemetry-")))
        build_synthetic(base / "models", MODEL)
        workload = token_workloads(base / "models", settings.words)["ids"]
        receiver = None if settings.endpoint else stack.enter_context(_receiver())
        endpoint = settings.endpoint or (receiver.address if receiver is not None else "")
        clusters = {
            mode: stack.enter_context(LocalCluster(_spec(mode, base, settings, endpoint)))
            for mode in MODES
        }
        for cluster in clusters.values():
            cluster.wait_ready(timeout_s=60)
        order = list(MODES)
        for repeat in range(settings.repeats):
            for mode in order:
                notify(mode, len(samples), settings.repeats * len(MODES))
                cluster = clusters[mode]
                with _Scraper(cluster, settings.scrape_s) as scraper:
                    result = run_load(_plan(cluster, settings), workload)
                samples.append(_sample(mode, repeat, result, scraper))
            order.append(order.pop(0))
        spans = receiver.spans() if receiver is not None else 0
        written = sum(path.stat().st_size for path in (base / "spans").rglob("*") if path.is_file())
    if receiver is not None and not spans:
        raise ValueError("no span was received, though requests were traced")
    if not written:
        raise ValueError("no span was written, though requests were traced")
    return make_report(
        "telemetry",
        host=host,
        settings={
            **asdict(settings), "model": MODEL, "variant": VARIANT, "modes": MODES,
            "spans_received": spans, "span_bytes_written": written,
        },
        points=[asdict(sample) for sample in samples],
        summary=summarise(samples),
    )  # fmt: skip


def summarise(samples: Sequence[Sample]) -> dict[str, float]:
    """Medians over the repeats; costs are medians of what is lost within a repeat.

    `metrics_cost`, `tracing_cost` and `file_cost` are shares of the throughput without
    telemetry, `*_cpu_ratio` CPU a request (control plane and worker) over that without.
    """

    def of(mode: str, value: Callable[[Sample], float]) -> list[float]:
        ordered = sorted((s for s in samples if s.mode == mode), key=lambda s: s.repeat)
        return [value(sample) for sample in ordered]

    def rate(sample: Sample) -> float:
        return sample.answered_per_s

    def cpu(sample: Sample) -> float:
        return sample.controlplane_cpu_ms + sample.worker_cpu_ms

    found: dict[str, float] = {}
    for mode in MODES:
        found[f"{mode}_rps"] = median(of(mode, rate))
        found[f"{mode}_cpu_ms"] = median(of(mode, cpu))
        found[f"{mode}_p99_ms"] = median(of(mode, lambda s: s.p99_ms))
    for mode in MODES[1:]:
        pairs = zip(of(mode, rate), of(OFF, rate), strict=True)
        found[f"{mode}_cost"] = median(1.0 - with_it / without for with_it, without in pairs)
        pairs = zip(of(mode, cpu), of(OFF, cpu), strict=True)
        found[f"{mode}_cpu_ratio"] = median(with_it / without for with_it, without in pairs)
    found["scrape_ms"] = median(of(METRICS, lambda s: s.scrape_ms))
    found["scrape_bytes"] = median(of(METRICS, lambda s: s.scrape_bytes))
    return found


def _spec(mode: str, base: Path, settings: TelemetrySettings, endpoint: str) -> ClusterSpec:
    controlplane: dict[str, Any] = {}
    worker: dict[str, Any] = {}
    if mode == TRACING:
        controlplane = {"telemetry": {"otlp_endpoint": endpoint}}
        worker = {"otlp_endpoint": endpoint}
    elif mode == FILE:
        folder = str(base / "spans")
        controlplane = {"telemetry": {"directory": folder}}
        worker = {"trace_directory": folder}
    if controlplane:
        controlplane["telemetry"]["sample_ratio"] = settings.sample_ratio
    return ClusterSpec(
        1,
        base / mode,
        listen="127.0.0.1:0",
        repository=base / "models",
        metrics="127.0.0.1:0" if mode == METRICS else "",
        controlplane=controlplane,
        worker=worker,
    )


def _plan(cluster: LocalCluster, settings: TelemetrySettings) -> LoadPlan:
    return LoadPlan(
        target=cluster.address,
        model=MODEL,
        mode="closed",
        concurrency=settings.in_flight,
        duration_s=settings.seconds,
        warmup_s=settings.warmup_s,
        protocol="oip",
        payload="ids",
        variant=VARIANT,
        seed=settings.seed,
        watch=cluster.pids(),
    )


def _sample(mode: str, repeat: int, result: LoadResult, scraper: _Scraper) -> Sample:
    if result.latency is None or result.outcomes.get("OK", 0) < result.offered:
        raise ValueError(f"{mode}: not every request was answered: {dict(result.outcomes)}")
    if mode == METRICS and not scraper.times_s:
        raise ValueError("nothing was scraped, though metrics were served")
    cpu_ms: Mapping[str, float] = result.cpu_ms_per_request
    return Sample(
        mode=mode,
        repeat=repeat,
        answered_per_s=result.answered_per_s,
        controlplane_cpu_ms=cpu_ms["controlplane"],
        worker_cpu_ms=cpu_ms["worker-0"],
        p50_ms=result.latency.p50_ms,
        p99_ms=result.latency.p99_ms,
        scrapes=len(scraper.times_s),
        scrape_ms=1e3 * median(scraper.times_s) if scraper.times_s else 0.0,
        scrape_bytes=scraper.largest,
    )


class _Scraper:
    """Scrapes every process of a cluster that serves metrics, as Prometheus would."""

    def __init__(self, cluster: LocalCluster, interval_s: float) -> None:
        self._addresses = tuple(cluster.metrics_addresses().values())
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._scrape, name="scraper")
        self.times_s: list[float] = []
        self.largest = 0

    def __enter__(self) -> _Scraper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _scrape(self) -> None:
        while self._addresses:
            for address in self._addresses:
                began = time.perf_counter()
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
                    self.largest = max(self.largest, len(answer.read()))
                self.times_s.append(time.perf_counter() - began)
            if self._ended.wait(self._interval_s):
                return


@dataclass(frozen=True, slots=True)
class _Receiver:
    """A collector in a process of its own."""

    address: str
    process: subprocess.Popen[str]

    def spans(self) -> int:
        """How many it has received."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline().split()[0])


@contextmanager
def _receiver() -> Iterator[_Receiver]:
    with subprocess.Popen(
        [sys.executable, "-m", "bench.otlp_receiver"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if not address:
                raise ValueError("the collector did not start")
            yield _Receiver(address, process)
        finally:
            process.kill()
