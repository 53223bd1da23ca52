"""Encoder and decode workers on one machine: what each lane has alone, and beside the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.generation.plan import GenerationPlan
from bench.generation.record import GenerationResult
from bench.generation.run import run_generations
from bench.load.metrics import LoadResult
from bench.load.plan import LoadPlan, Workload
from bench.load.processes import CommonStart
from bench.load.run import run_load
from bench.report import Report, host_facts, make_report
from bench.sweep import Notify, most_accurate
from deploy.budget import CoreBudget
from deploy.cluster import ClusterSpec, LocalCluster

_READY_S = 180
_GENERATION_TARGET_MS = 60_000.0


@dataclass(frozen=True, slots=True)
class LanesSettings:
    """What to play, `rounds` times: each lane for `seconds` alone, then both together.

    `encoder_in_flight` requests and `streams` generations are in flight at any time. Answers
    have few tokens, so that many end within a run. `variant` answers the encoder's requests,
    empty the most accurate one.
    """

    encoder: str
    decoder: str
    vocabulary: int
    variant: str = ""
    rounds: int = 2
    seconds: float = 4.0
    warmup_s: float = 1.0
    encoder_in_flight: int = 1
    streams: int = 4
    prompt_tokens: tuple[int, int] = (48, 80)
    answer_tokens: tuple[int, int] = (24, 40)
    seed: int = 1


def lanes_seconds(settings: LanesSettings) -> float:
    """About how long the bench takes once the cluster is ready, for progress bars."""
    return settings.rounds * 3 * (settings.warmup_s + settings.seconds)


def run_lanes(
    settings: LanesSettings,
    budget: CoreBudget,
    repository: Path,
    workload: Workload,
    directory: Path,
    notify: Notify,
) -> Report:
    """Plays both lanes through the control plane, under the core budget `orchid up` has.

    Summary, medians over the rounds: `encoder_<p50_ms|p95_ms|per_s>_<alone|together>`,
    `decode_<tokens_per_s|token_p50_ms|token_p95_ms|first_token_p95_ms>_<alone|together>`, and for
    each of these figures `..._ratio`, together over alone within a round. Raises ClusterError,
    DriverError, or ValueError when a lane answers nothing.
    """
    host = host_facts()
    spec = ClusterSpec(
        workers=budget.encoders,
        decode_threads=budget.decode_threads,
        worker={"cpus": budget.encoder_cpus},
        decode={"cpus": budget.decode_cpus},
        directory=directory,
        listen="127.0.0.1:0",
        repository=repository,
        models=(settings.encoder, settings.decoder),
    )
    points: list[dict[str, Any]] = []
    rounds: list[dict[str, float]] = []
    with LocalCluster(spec) as cluster:
        status = cluster.wait_ready(timeout_s=_READY_S)
        variant = settings.variant or most_accurate(status, settings.encoder)
        players = _Players(settings, workload, cluster.address, variant)
        for number in range(settings.rounds):
            alone, together = players.play(number, notify)
            figures = _figures(alone, "alone") | _figures(together, "together")
            rounds.append(figures | _ratios(figures))
            for name, lanes in (("alone", alone), ("together", together)):
                encoder, decode = lanes
                points.append({"round": number, "lane": "encoder", name: True, **_point(encoder)})
                points.append({"round": number, "lane": "decode", name: True, **decode.as_point()})
    return make_report(
        "lanes",
        host=host,
        settings={**asdict(settings), "variant": variant, "budget": asdict(budget)},
        points=points,
        summary={name: median(each[name] for each in rounds) for name in rounds[0]},
    )


_Lanes = tuple[LoadResult, GenerationResult]


class _Players:
    """Plays one lane or both against a control plane."""

    def __init__(
        self, settings: LanesSettings, workload: Workload, target: str, variant: str
    ) -> None:
        self._settings = settings
        self._workload = workload
        self._requests = LoadPlan(
            target=target,
            model=settings.encoder,
            mode="closed",
            concurrency=settings.encoder_in_flight,
            duration_s=settings.seconds,
            warmup_s=settings.warmup_s,
            variant=variant,
            seed=settings.seed,
        )
        self._generations = GenerationPlan(
            target=target,
            model=settings.decoder,
            vocabulary=settings.vocabulary,
            in_flight=settings.streams,
            seconds=settings.seconds,
            warmup_s=settings.warmup_s,
            prompt_tokens=settings.prompt_tokens,
            answer_tokens=settings.answer_tokens,
            first_token_ms=_GENERATION_TARGET_MS,
            token_ms=_GENERATION_TARGET_MS,
            door="controlplane",
            seed=settings.seed,
        )

    def play(self, number: int, notify: Notify) -> tuple[_Lanes, _Lanes]:
        """Each lane alone, then both; every other round the other way round."""
        if number % 2:
            together = self._together(notify)
            return self._alone(notify), together
        return self._alone(notify), self._together(notify)

    def _alone(self, notify: Notify) -> _Lanes:
        tick = self._tick(notify, "encoder alone")
        encoder = run_load(self._requests, self._workload, on_tick=tick)
        tick(self._total_s)
        tick = self._tick(notify, "decode alone")
        decode = run_generations(self._generations, on_tick=tick)
        tick(self._total_s)
        return _answered(encoder, decode)

    def _together(self, notify: Notify) -> _Lanes:
        tick = self._tick(notify, "both together")
        start = CommonStart(2)
        with ThreadPoolExecutor(1) as pool:
            beside = pool.submit(run_generations, self._generations, start_at=start)
            encoder = run_load(self._requests, self._workload, on_tick=tick, start_at=start)
            decode = beside.result()
        tick(self._total_s)
        return _answered(encoder, decode)

    @property
    def _total_s(self) -> float:
        return self._settings.warmup_s + self._settings.seconds

    def _tick(self, notify: Notify, what: str) -> Callable[[float], None]:
        total = self._total_s
        notify(what, 0.0, total)
        return lambda elapsed: notify(what, min(max(elapsed, 0.0), total), total)


def _answered(encoder: LoadResult, decode: GenerationResult) -> _Lanes:
    if encoder.latency is None:
        raise ValueError(f"no request was answered: {dict(encoder.outcomes)}")
    if decode.first_token_ms is None or decode.token_ms is None:
        raise ValueError(f"no generation ended: {dict(decode.codes)}")
    return encoder, decode


def _figures(lanes: _Lanes, company: str) -> dict[str, float]:
    encoder, decode = lanes
    assert encoder.latency is not None
    assert decode.token_ms is not None
    assert decode.first_token_ms is not None
    return {
        f"encoder_p50_ms_{company}": encoder.latency.p50_ms,
        f"encoder_p95_ms_{company}": encoder.latency.p95_ms,
        f"encoder_per_s_{company}": encoder.answered_per_s,
        f"decode_tokens_per_s_{company}": decode.tokens_per_s,
        f"decode_token_p50_ms_{company}": decode.token_ms[0],
        f"decode_token_p95_ms_{company}": decode.token_ms[1],
        f"decode_first_token_p95_ms_{company}": decode.first_token_ms[1],
    }


def _ratios(figures: dict[str, float]) -> dict[str, float]:
    names: Sequence[str] = [n.removesuffix("_alone") for n in figures if n.endswith("_alone")]
    return {f"{n}_ratio": figures[f"{n}_together"] / figures[f"{n}_alone"] for n in names}


def _point(encoder: LoadResult) -> dict[str, Any]:
    """The encoder's result without its histogram, which nothing draws."""
    point = encoder.as_point()
    point["latency"] = {k: v for k, v in point["latency"].items() if k != "histogram"}
    return point
