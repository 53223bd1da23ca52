"""What the path costs: Orchid with a tiny model against a bare two-hop echo, in turns.

Both run on the same machine in the same minutes with the same request and response
bytes and the same channel settings; each figure is the median of the repeats. The bare echo
runs twice: on gRPC as it comes, and on fewer threads as Orchid's processes do
(`deploy.transport`). Requests carry token ids, so that what is compared is the path; text,
which costs tokenising on top, is measured beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.load.codec import OipCodec
from bench.load.metrics import LoadResult
from bench.load.plan import LoadPlan, Payload, Protocol, Workload
from bench.load.run import run_load
from bench.report import Report, host_facts, make_report
from deploy.channels import channel as channel_to
from deploy.cluster import ClusterSpec, LocalCluster
from deploy.transport import FEWER_THREADS, SWITCH, as_it_comes

MODEL = "tiny"
VARIANT = "tiny-b"


@dataclass(frozen=True, slots=True)
class OverheadSettings:
    """`in_flight` requests saturate; `words` is the length of the one text behind the ids."""

    repeats: int = 5
    seconds: float = 3.0
    warmup_s: float = 0.7
    in_flight: int = 16
    words: int = 24
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Case:
    """One way to send: `server` is "orchid", "bare" or "lean", a bare echo on fewer threads."""

    name: str
    server: str
    protocol: Protocol
    stream: bool
    concurrency: int
    payload: Payload = "ids"


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured run; CPU is of the front process (control plane or bare front)."""

    case: str
    repeat: int
    answered_per_s: float
    cpu_ms: float
    p50_ms: float
    p99_ms: float
    driver_cpu_ms: float


def cases(in_flight: int) -> tuple[Case, ...]:
    """The runs of one repeat, the two servers next to each other."""
    return (
        Case("bare_saturated", "bare", "echo", False, in_flight),
        Case("orchid_saturated", "orchid", "oip", False, in_flight),
        Case("lean_saturated", "lean", "echo", False, in_flight),
        Case("orchid_native_saturated", "orchid", "native", False, in_flight),
        Case("orchid_text_saturated", "orchid", "oip", False, in_flight, "text"),
        Case("bare_stream", "bare", "echo", True, in_flight),
        Case("orchid_stream", "orchid", "oip", True, in_flight),
        Case("lean_stream", "lean", "echo", True, in_flight),
        Case("orchid_native_stream", "orchid", "native", True, in_flight),
        Case("bare_alone", "bare", "echo", False, 1),
        Case("orchid_alone", "orchid", "oip", False, 1),
        Case("lean_alone", "lean", "echo", False, 1),
    )


def run_overhead(
    settings: OverheadSettings, notify: Callable[[str, int, int], None] = lambda *_: None
) -> Report:
    """Runs every case `repeats` times in turns; `notify` gets the case, its number, and how many.

    Raises ClusterError or DriverError when a part does not work, ValueError when a run had
    no answers or any failure.
    """
    from worker.models.synthetic import build_synthetic

    host = host_facts()
    chosen = cases(settings.in_flight)
    samples: list[Sample] = []
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orchid-overhead-")))
        build_synthetic(base / "models", MODEL)
        workloads = token_workloads(base / "models", settings.words)
        spec = ClusterSpec(1, base / "state", listen="127.0.0.1:0", repository=base / "models")
        cluster = stack.enter_context(LocalCluster(spec))
        cluster.wait_ready(timeout_s=60)
        answer = _one_answer(cluster.address, workloads["ids"])
        servers = {
            "orchid": (cluster.address, cluster.pid("controlplane")),
            "bare": stack.enter_context(bare_echo(base, answer, as_it_comes(os.environ))),
            "lean": stack.enter_context(bare_echo(base, answer, os.environ)),
        }
        total = settings.repeats * len(chosen)
        for repeat in range(settings.repeats):
            for case in chosen:
                notify(case.name, len(samples), total)
                workload = workloads[case.payload]
                samples.append(_measure(case, repeat, servers[case.server], settings, workload))
    return make_report(
        "overhead",
        host=host,
        settings={
            **asdict(settings),
            "model": MODEL,
            "variant": VARIANT,
            "answer_bytes": len(answer),
            "fewer_threads": os.environ.get(SWITCH) == FEWER_THREADS,
        },
        points=[asdict(sample) for sample in samples],
        summary=summarise(samples),
    )


def summarise(samples: Sequence[Sample]) -> dict[str, float]:
    """Medians over the repeats, and their ratios.

    `cpu_ratio` and `p50_ratio` are Orchid over bare; `stream_cpu_ratio` is a streamed over
    a unary request's CPU, both Orchid's, `bare_stream_cpu_ratio` the same of the bare echo:
    what the transport alone leaves of that bar. `stream_over_bare` compares the streams.
    What is called `lean` is the same of the bare echo on fewer threads.
    `rps_per_core` is what one core of control plane carries in unary requests. `text_cpu_ms`
    is a unary request of text.
    """

    def mid(case: str, value: Callable[[Sample], float]) -> float:
        return median(value(sample) for sample in samples if sample.case == case)

    def cpu_ms(sample: Sample) -> float:
        return sample.cpu_ms

    unary, bare = mid("orchid_saturated", cpu_ms), mid("bare_saturated", cpu_ms)
    alone = mid("orchid_alone", lambda s: s.p50_ms)
    bare_alone = mid("bare_alone", lambda s: s.p50_ms)
    native = mid("orchid_native_saturated", cpu_ms)
    lean, lean_stream = mid("lean_saturated", cpu_ms), mid("lean_stream", cpu_ms)
    lean_alone = mid("lean_alone", lambda s: s.p50_ms)
    return {
        "cpu_ratio": unary / bare,
        "p50_ratio": alone / bare_alone,
        "stream_cpu_ratio": mid("orchid_stream", cpu_ms) / unary,
        "rps_per_core": 1e3 / unary,
        "cpu_ms": unary,
        "bare_cpu_ms": bare,
        "text_cpu_ms": mid("orchid_text_saturated", cpu_ms),
        "stream_cpu_ms": mid("orchid_stream", cpu_ms),
        "bare_stream_cpu_ms": mid("bare_stream", cpu_ms),
        "bare_stream_cpu_ratio": mid("bare_stream", cpu_ms) / bare,
        "stream_over_bare": mid("orchid_stream", cpu_ms) / mid("bare_stream", cpu_ms),
        "lean_cpu_ms": lean,
        "lean_p50_ms": lean_alone,
        "lean_cpu_ratio": unary / lean,
        "lean_p50_ratio": alone / lean_alone,
        "lean_stream_cpu_ms": lean_stream,
        "lean_stream_cpu_ratio": lean_stream / lean,
        "native_cpu_ms": native,
        "native_stream_cpu_ms": mid("orchid_native_stream", cpu_ms),
        "native_cpu_ratio": native / bare,
        "p50_ms": alone,
        "bare_p50_ms": bare_alone,
        "rps": mid("orchid_saturated", lambda s: s.answered_per_s),
        "bare_rps": mid("bare_saturated", lambda s: s.answered_per_s),
        "stream_rps": mid("orchid_stream", lambda s: s.answered_per_s),
    }


def _measure(
    case: Case,
    repeat: int,
    server: tuple[str, int],
    settings: OverheadSettings,
    workload: Workload,
) -> Sample:
    address, pid = server
    result: LoadResult = run_load(_plan(case, address, settings, {"front": pid}), workload)
    if result.latency is None or result.outcomes.get("OK", 0) < result.offered:
        raise ValueError(f"{case.name}: not every request was answered: {dict(result.outcomes)}")
    return Sample(
        case=case.name,
        repeat=repeat,
        answered_per_s=result.answered_per_s,
        cpu_ms=result.cpu_ms_per_request["front"],
        p50_ms=result.latency.p50_ms,
        p99_ms=result.latency.p99_ms,
        driver_cpu_ms=result.driver_cpu_ms_per_request,
    )


def _plan(case: Case, address: str, settings: OverheadSettings, watch: dict[str, int]) -> LoadPlan:
    return LoadPlan(
        target=address,
        model=MODEL,
        mode="closed",
        concurrency=case.concurrency,
        duration_s=settings.seconds,
        warmup_s=settings.warmup_s,
        protocol=case.protocol,
        stream=case.stream,
        payload=case.payload,
        variant=VARIANT,
        seed=settings.seed,
        watch=watch,
    )


def token_workloads(repository: Path, words: int) -> dict[Payload, Workload]:
    """One text, and its token ids."""
    from tokenizers import Tokenizer

    from worker.models.manifest import load_manifest

    folder = repository / MODEL
    manifest = load_manifest(folder)
    tokenizer = Tokenizer.from_file(
        str(folder / manifest.tokenizers[manifest.default_tokenizer].path)
    )
    text = " ".join(["good film"] * (words // 2))
    ids = " ".join(map(str, tokenizer.encode(text).ids))
    return {"text": Workload((text,), (-1,)), "ids": Workload((ids,), (-1,))}


def _one_answer(address: str, workload: Workload) -> bytes:
    """The bytes of one real answer, for the echo to send."""
    codec = OipCodec()
    plan = LoadPlan(
        address, MODEL, 1.0, mode="closed", protocol="oip", variant=VARIANT, payload="ids"
    )
    with channel_to(address) as channel:
        call: Any = channel.unary_unary(codec.unary_method)
        answer: bytes = call(codec.body(plan, workload.texts[0]), timeout=10)
    return answer


@contextmanager
def bare_echo(
    base: Path, answer: bytes, environment: Mapping[str, str]
) -> Iterator[tuple[str, int]]:
    """Runs both echo processes; yields the front's address and process id."""
    (base / "answer").write_bytes(answer)
    with ExitStack() as stack:
        back, _ = _start_echo(stack, environment, "back", "--answer", str(base / "answer"))
        yield _start_echo(stack, environment, "front", "--back", back)


def _start_echo(
    stack: ExitStack, environment: Mapping[str, str], *arguments: str
) -> tuple[str, int]:
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-m", "bench.echo", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
    )
    stack.callback(process.kill)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    if not address:
        raise ValueError("the bare echo did not start")
    return address, process.pid
