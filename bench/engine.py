"""What the engine reaches on one thread, beside what the machine and the stock runtime can do.

All figures come from one process, with the compared runs in turns, and are medians over the
rounds of the ratio within a round, so that a slow minute of the machine hits both sides. Times
are CPU time of the running thread, which on an idle machine is the time on the clock.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.engine_models import MPNET8, BenchGraphs, build_graphs, floating_point_operations
from bench.report import Report, host_facts, make_report
from worker.engine import Session, machine_class, measure_fma_rate, runtime_info
from worker.models.architecture import EncoderConfig

Feeds = Mapping[str, NDArray[Any]]
Progress = Callable[[str], None]
# One long and seven short inputs: where padding hurts.
UNEVEN = (32, 32, 32, 32, 32, 32, 32, 512)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """`rounds` is how often each comparison is repeated, `lengths` the single inputs measured.

    `headline` is the length that `fma_fraction` is for; `stock_shapes` are [batch, seq].
    """

    rounds: int = 7
    lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    headline: int = 256
    stock_shapes: tuple[tuple[int, int], ...] = ((1, 32), (1, 256), (4, 128))
    fma_seconds: float = 0.1
    seed: int = 1


def run_engine(
    settings: EngineSettings, progress: Progress, *, config: EncoderConfig = MPNET8
) -> Report:
    """Build the model in a scratch folder, measure, and return the report.

    Summary names: `fma_fraction` (achieved over measured multiply-add rate, ragged, one thread),
    `ragged_vs_sum_ratio` and `ragged_vs_padded_ratio` (an uneven batch in one ragged run over its
    members alone, and over the padded graph), `vs_wheel_ratio` (this engine over the onnxruntime
    package's own session on the same stock graph, the worst of the shapes).
    """
    host = host_facts()
    with tempfile.TemporaryDirectory(prefix="orchid-bench-") as scratch:
        folder = Path(scratch)
        progress("building the model")
        graphs = build_graphs(folder, config, seed=settings.seed)
        bench = _Bench(settings, config, graphs, folder / "prepared")
        progress("rate of single inputs")
        rates = bench.rates()
        progress("uneven batch against its members")
        against_sum = bench.against_members()
        progress("stock graph in the stock runtime")
        stock = bench.against_wheel()
        progress("uneven batch against padding")
        against_padded = bench.against_padding()
    headline = next(point for point in rates if point["tokens"] == settings.headline)
    return make_report(
        "engine",
        host=host,
        settings={
            **asdict(settings),
            "model": asdict(config),
            "machine_class": machine_class(),
            "simd": runtime_info().simd,
        },
        points=[*rates, against_sum, against_padded, *stock],
        summary={
            "fma_fraction": headline["fma_fraction"],
            "fma_gflops": headline["fma_gflops"],
            "ragged_vs_sum_ratio": against_sum["ratio"],
            "ragged_vs_padded_ratio": against_padded["ratio"],
            "vs_wheel_ratio": max(point["ratio"] for point in stock),
        },
    )


class _Bench:
    """The sessions of one bench run."""

    def __init__(
        self, settings: EngineSettings, config: EncoderConfig, graphs: BenchGraphs, cache: Path
    ) -> None:
        self._settings = settings
        self._config = config
        self._graphs = graphs
        self._ids = np.random.default_rng(settings.seed)
        self._ragged = Session(graphs.ragged, cache=cache)
        self._padded = Session(graphs.padded, cache=cache)

    def rates(self) -> list[dict[str, Any]]:
        """One point a length: time, achieved rate, and the floor at the measured FMA rate."""
        points = []
        for length in self._settings.lengths:
            feeds = self._ragged_feeds([length])
            self._ragged.run(feeds)
            times, rates = [], []
            for _ in range(self._settings.rounds):
                rates.append(measure_fma_rate(self._settings.fma_seconds))
                times.append(_seconds(partial(self._ragged.run, feeds)))
            operations = floating_point_operations(self._config, [length])
            achieved = [operations / 1e9 / t / r for t, r in zip(times, rates, strict=True)]
            points.append(
                {
                    "name": "single",
                    "tokens": length,
                    "gflop": operations / 1e9,
                    "ms": median(times) * 1e3,
                    "floor_ms": operations / 1e6 / median(rates),
                    "fma_gflops": median(rates),
                    "fma_fraction": median(achieved),
                }
            )
        return points

    def against_members(self) -> dict[str, Any]:
        """The uneven batch in one ragged run against its members one by one."""
        together = self._ragged_feeds(UNEVEN)
        alone = [self._ragged_feeds([length]) for length in UNEVEN]

        def members() -> None:
            for feeds in alone:
                self._ragged.run(feeds)

        return self._compare(
            "ragged_vs_sum", partial(self._ragged.run, together), members, UNEVEN, UNEVEN
        )

    def against_padding(self) -> dict[str, Any]:
        """The uneven batch in one ragged run against the padded graph of the same weights."""
        together = self._ragged_feeds(UNEVEN)
        padded = self._padded_feeds(UNEVEN)
        return self._compare(
            "ragged_vs_padded",
            partial(self._ragged.run, together),
            partial(self._padded.run, padded),
            UNEVEN,
            [max(UNEVEN)] * len(UNEVEN),
        )

    def against_wheel(self) -> list[dict[str, Any]]:
        """This engine against the package's own session on the same stock graph."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        wheel = onnxruntime.InferenceSession(
            str(self._graphs.padded), options, providers=["CPUExecutionProvider"]
        )
        points = []
        for batch, length in self._settings.stock_shapes:
            feeds = self._padded_feeds([length] * batch)
            point = self._compare(
                "vs_wheel",
                partial(self._padded.run, feeds),
                partial(wheel.run, None, feeds),
                [length] * batch,
                [length] * batch,
            )
            points.append({**point, "batch": batch, "tokens": length})
        return points

    def _compare(
        self,
        name: str,
        ours: Callable[[], object],
        other: Callable[[], object],
        our_lengths: Sequence[int],
        other_lengths: Sequence[int],
    ) -> dict[str, Any]:
        """Median ratio of `ours` to `other`, and the ratio their operation counts alone give."""
        ours()
        other()
        times = []
        for number in range(self._settings.rounds):
            # Whoever runs second finds warmer caches, so the order alternates.
            if number % 2:
                theirs = _seconds(other)
                times.append((_seconds(ours), theirs))
            else:
                times.append((_seconds(ours), _seconds(other)))
        operations = floating_point_operations(self._config, our_lengths)
        others = floating_point_operations(self._config, other_lengths)
        return {
            "name": name,
            "ms": median(a for a, _ in times) * 1e3,
            "other_ms": median(b for _, b in times) * 1e3,
            "ratio": median(a / b for a, b in times),
            "floor_ratio": operations / others,
        }

    def _ragged_feeds(self, lengths: Sequence[int]) -> Feeds:
        offsets = np.cumsum([0, *lengths]).astype(np.int32)
        return {"input_ids": self._tokens(int(offsets[-1])), "row_offsets": offsets}

    def _padded_feeds(self, lengths: Sequence[int]) -> Feeds:
        shape = (len(lengths), max(lengths))
        mask = np.arange(shape[1])[None, :] < np.array(lengths)[:, None]
        ids = self._tokens(shape[0] * shape[1]).reshape(shape)
        return {"input_ids": ids * mask, "attention_mask": mask.astype(np.int64)}

    def _tokens(self, count: int) -> NDArray[np.int64]:
        return self._ids.integers(0, self._config.vocabulary, count, dtype=np.int64)


def _seconds(run: Callable[[], object]) -> float:
    begin = time.thread_time()
    run()
    return time.thread_time() - begin
