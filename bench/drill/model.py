"""The drill's model: two variants that take what the fixture says, here and simulated."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.drill.arithmetic import Fixture
from bench.drill.scene import COMPACT, FULL, MODEL, SURPRISE, TOKENS
from controlplane.policy.profiles import Candidate, VariantProfile, VariantTable

_PROBE_ITERATIONS = 20_000
_PROBE_RUNS = 15
_MOST_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Line:
    """Service in ms of a run: `fixed + per_token * tokens`."""

    fixed: float
    per_token: float


def lines(fixture: Fixture) -> dict[str, Line]:
    """The cost of each variant, through what short and long requests take on it."""
    short, long = fixture.kinds
    span = TOKENS[long.name] - TOKENS[short.name]

    def through(short_ms: float, long_ms: float) -> Line:
        each = (long_ms - short_ms) / span
        return Line(short_ms - each * TOKENS[short.name], each)

    return {
        FULL: through(short.full_ms, long.full_ms),
        COMPACT: through(short.compact_ms, long.compact_ms),
    }


def table(fixture: Fixture, compact_quality: float) -> VariantTable:
    """The variants as the simulated control plane sees them."""
    qualities = {FULL: fixture.full_quality, COMPACT: compact_quality}
    candidates = []
    for name, line in lines(fixture).items():
        profile = VariantProfile(
            s0_ns=line.fixed * 1e6,
            s1_ns=line.per_token * 1e6,
            sigma=0.02,
            reference_tokens=32,
            p50_ns=(line.fixed + 32 * line.per_token) * 1e6,
        )
        candidates.append(Candidate(name, "words", qualities[name], profile, _MOST_TOKENS))
    return VariantTable.build(candidates, resolution=0.002)


def iteration_ms(folder: Path, at_once: int = 1) -> float:
    """CPU time of one iteration of paced work on this machine, `at_once` running side by side.

    The middle of some runs: cores that work at the same time are slower than one that works alone,
    and the drill's workers do.
    """
    from worker.engine import Session
    from worker.models.synthetic import Pace, build_paced

    probe = build_paced(folder, "probe", {"probe": Pace(_PROBE_ITERATIONS)}, {"probe": 0.5})
    feeds: dict[str, NDArray[Any]] = {
        "input_ids": np.zeros(4, np.int64),
        "row_offsets": np.array([0, 4], np.int32),
    }

    def measure(session: Session) -> list[int]:
        times = []
        for _ in range(_PROBE_RUNS):
            before = time.thread_time_ns()
            session.run(feeds)
            times.append(time.thread_time_ns() - before)
        return times

    sessions = [Session(probe / "probe.onnx") for _ in range(at_once)]
    with ThreadPoolExecutor(at_once) as pool:
        times = [each for found in pool.map(measure, sessions) for each in found]
    return median(times) / 1e6 / _PROBE_ITERATIONS


def build(repository: Path, fixture: Fixture, each_ms: float, compact_quality: float) -> Path:
    """Writes the model, an iteration of whose work takes `each_ms`; again for other evidence."""
    from worker.models.synthetic import Pace, build_paced

    paces = {}
    for name, line in lines(fixture).items():
        per_token = round(line.per_token / each_ms)
        heavy = round((SURPRISE - 1.0) * line.per_token / each_ms)
        paces[name] = Pace(round(line.fixed / each_ms), per_token, heavy)
    qualities = {FULL: fixture.full_quality, COMPACT: compact_quality}
    return build_paced(repository, MODEL, paces, qualities, max_tokens=_MOST_TOKENS)
