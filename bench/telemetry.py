"""What being watched costs: CPU a request, and throughput at saturation, with and without it.

Two clusters, and what is compared is compared within one: the first serves metrics and sends spans
to a collector, the second keeps spans in files. Load goes to one and the other in turns, in short
slices, in which the cluster is scraped again and again, or every call asks to be recorded, or
neither; their order is drawn. So two processes that are not alike, and a machine that is slow for a
while, are no cost. What is told is the part of it that the usual rates take: ten times as much of a
cost is seen where a tenth would be lost in what a shared machine does by itself. The model is tiny,
so that a request is nearly all path: telemetry weighs most there.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from opentelemetry.sdk.environment_variables import OTEL_BSP_SCHEDULE_DELAY

from bench.load.codec import OipCodec
from bench.load.cpu import process_cpu_ns
from bench.load.plan import LoadPlan
from bench.overhead import MODEL, VARIANT, token_workloads
from bench.report import Report, host_facts, make_report
from bench.slices import Slice, Sliced, SliceDriver, SliceTargets, slice_driver
from bench.telemetry_cost import FILE, FILE_OFF, METRICS, OFF, TRACING, Sample, summarise
from bench.unsampled import unsampled_ns
from deploy.cluster import ClusterSpec, LocalCluster
from deploy.members import CONTROLPLANE
from deploy.politeness import give_way

# What is watched by metrics and a collector, and what keeps files.
_WATCHED, _KEPT = range(2)
# Twice without anything, so that how alike two of the same are is seen, too.
_OF_A_REPEAT = ((OFF, METRICS, OFF, TRACING), (FILE_OFF, FILE, FILE_OFF, FILE))
MODES = tuple(dict.fromkeys(mode for modes in _OF_A_REPEAT for mode in modes))
# More than can be recorded: what is compared is a share, not a rate.
_NO_BOUND = 1e6
# Spans are with the collector before the cluster's next slice begins.
_EXPORT_EVERY_MS = "100"
_SETTLE_S = 1.0
_WARMUP_S = 0.7


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """`repeats` times every kind of slice, `seconds` each, with `in_flight` requests.

    Slices with metrics have `scrapes` of each process, those with traces record every call; costs
    are told for a scrape every `scrape_s`, and for a `share` of the calls. `endpoint` is an OTLP
    gRPC collector, empty for one that only counts, and gives way to the rest.
    """

    repeats: int = 100
    seconds: float = 0.25
    in_flight: int = 16
    share: float = 0.1
    scrapes: int = 2
    scrape_s: float = 1.0
    words: int = 24
    seed: int = 1
    endpoint: str = ""


def run_telemetry(
    settings: TelemetrySettings, notify: Callable[[str, int, int], None] = lambda *_: None
) -> Report:
    """Runs every slice; `notify` gets the mode, the slice's number, and how many.

    Raises ClusterError or DriverError when a part does not work, ValueError when a slice had a
    failure, or nothing was received or written where it should have been.
    """
    from worker.models.synthetic import build_synthetic

    host = host_facts()
    path_ns = unsampled_ns()
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orchid-telemetry-")))
        build_synthetic(base / "models", MODEL)
        receiver = None if settings.endpoint else stack.enter_context(_receiver())
        endpoint = settings.endpoint or (receiver.address if receiver is not None else "")
        clusters = [stack.enter_context(LocalCluster(spec)) for spec in _specs(base, endpoint)]
        for cluster in clusters:
            cluster.wait_ready(timeout_s=60)
        driver = stack.enter_context(slice_driver(_targets(clusters, base / "models", settings)))
        samples = _Bench(settings, clusters, driver, notify).run()
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
        summary=summarise(
            samples,
            scraped=settings.seconds / (settings.scrapes * settings.scrape_s),
            traced=settings.share,
            unsampled_ns=path_ns,
        ),
    )  # fmt: skip


def _specs(base: Path, endpoint: str) -> Iterator[ClusterSpec]:
    folder = str(base / "spans")
    yield ClusterSpec(
        1,
        base / "watched",
        listen="127.0.0.1:0",
        repository=base / "models",
        metrics="127.0.0.1:0",
        controlplane={"telemetry": {"otlp_endpoint": endpoint, "traces_per_s": _NO_BOUND}},
        worker={"otlp_endpoint": endpoint},
        env={OTEL_BSP_SCHEDULE_DELAY: _EXPORT_EVERY_MS},
    )
    yield ClusterSpec(
        1,
        base / "kept",
        listen="127.0.0.1:0",
        repository=base / "models",
        metrics="",
        controlplane={"telemetry": {"directory": folder, "traces_per_s": _NO_BOUND}},
        worker={"trace_directory": folder},
    )


def _targets(
    clusters: Sequence[LocalCluster], repository: Path, settings: TelemetrySettings
) -> SliceTargets:
    addresses = tuple(cluster.address for cluster in clusters)
    plan = LoadPlan(
        addresses[0], MODEL, settings.seconds, mode="closed", protocol="oip", payload="ids",
        variant=VARIANT,
    )  # fmt: skip
    text = token_workloads(repository, settings.words)["ids"].texts[0]
    codec = OipCodec()
    return SliceTargets(
        addresses, codec.unary_method, codec.body(plan, text).hex(), settings.in_flight
    )


class _Bench:
    """Slices at two clusters in turns.

    Spans leave a process after the slice that made them, so a cluster's CPU time is read from the
    beginning of a slice to that of its next one; meanwhile the other cluster has the load.
    """

    def __init__(
        self,
        settings: TelemetrySettings,
        clusters: Sequence[LocalCluster],
        driver: SliceDriver,
        notify: Callable[[str, int, int], None],
    ) -> None:
        self._settings = settings
        self._pids = [cluster.pids() for cluster in clusters]
        self._metrics = tuple(clusters[_WATCHED].metrics_addresses().values())
        self._driver = driver
        self._notify = notify
        self._order = np.random.default_rng(settings.seed)
        self._open: dict[int, _Open] = {}
        self._samples: list[Sample] = []

    def run(self) -> list[Sample]:
        """All samples, in the order in which they ended."""
        for target, mode in ((_WATCHED, TRACING), (_KEPT, FILE)):
            self._load(target, mode, _WARMUP_S)
        time.sleep(_SETTLE_S)
        total = self._settings.repeats * sum(map(len, _OF_A_REPEAT))
        for repeat in range(self._settings.repeats):
            drawn = [self._order.permutation(modes).tolist() for modes in _OF_A_REPEAT]
            for pair in zip(*drawn, strict=True):
                for target, mode in enumerate(pair):
                    self._notify(mode, len(self._samples) + len(self._open), total)
                    self._close(target)
                    before = self._cpu_ns(target)
                    sliced, scrapes = self._load(target, mode, self._settings.seconds)
                    self._open[target] = _Open(mode, repeat, before, sliced, scrapes)
        time.sleep(_SETTLE_S)
        for target in (_WATCHED, _KEPT):
            self._close(target)
        return self._samples

    def _load(self, target: int, mode: str, seconds: float) -> tuple[Sliced, list[_Scrape]]:
        """One slice; the scrapes fall into the midst of it."""
        self._driver.begin(Slice(target, seconds, traced=mode in (TRACING, FILE)))
        scrapes: list[_Scrape] = []
        if mode == METRICS:
            for _ in range(self._settings.scrapes):
                time.sleep(seconds / (2 * self._settings.scrapes))
                scrapes += [_scraped(address) for address in self._metrics]
        sliced = self._driver.end()
        if sliced.failed or not sliced.calls:
            raise ValueError(f"{mode}: {sliced.failed} of {sliced.calls} calls had no answer")
        return sliced, scrapes

    def _close(self, target: int) -> None:
        ended = self._open.pop(target, None)
        if ended is not None:
            self._samples.append(ended.sample(self._cpu_ns(target)))

    def _cpu_ns(self, target: int) -> dict[str, int]:
        return {name: process_cpu_ns(pid) for name, pid in self._pids[target].items()}


class _Scrape(NamedTuple):
    """How long one took, and what it brought."""

    took_s: float
    size: int


class _Open(NamedTuple):
    """A slice whose spans may still be on their way."""

    mode: str
    repeat: int
    before_ns: Mapping[str, int]
    sliced: Sliced
    scrapes: Sequence[_Scrape]

    def sample(self, after_ns: Mapping[str, int]) -> Sample:
        """What it came to, once nothing of it is left."""
        spent = {name: after_ns[name] - before for name, before in self.before_ns.items()}
        workers = sum(ns for name, ns in spent.items() if name != CONTROLPLANE)
        calls, scrapes = self.sliced.calls, self.scrapes
        return Sample(
            mode=self.mode,
            repeat=self.repeat,
            calls=calls,
            answered_per_s=self.sliced.per_s,
            late_per_s=self.sliced.late_per_s,
            controlplane_cpu_ms=spent[CONTROLPLANE] / calls / 1e6,
            worker_cpu_ms=workers / calls / 1e6,
            p50_ms=self.sliced.p50_ms,
            p99_ms=self.sliced.p99_ms,
            scrapes=len(scrapes),
            scrape_ms=1e3 * median(each.took_s for each in scrapes) if scrapes else 0.0,
            scrape_bytes=max((each.size for each in scrapes), default=0),
        )


def _scraped(address: str) -> _Scrape:
    began = time.perf_counter()
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        size = len(answer.read())
    return _Scrape(time.perf_counter() - began, size)


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
        # A session of its own can give way to the processes that are measured.
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if not address:
                raise ValueError("the collector did not start")
            give_way(process.pid)
            yield _Receiver(address, process)
        finally:
            process.kill()
