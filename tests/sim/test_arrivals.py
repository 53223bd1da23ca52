"""Arrival processes, lengths and recorded traces."""

from pathlib import Path

import numpy as np
import pytest

from bench.sim.arrivals import FlashCrowd, MarkovModulated, Poisson, process
from bench.sim.service import Noise
from bench.sim.workload import FixedLength, SampledLengths, read_trace, retimed, write_trace
from controlplane.policy.profiles import Candidate, VariantProfile
from tests.sim.worlds import TABLE, workload, world


def generator(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("kind", ["poisson", "mmpp", "flash"])
def test_arrivals_are_in_order_inside_the_span(kind: str) -> None:
    times = process(kind, 100.0, 20.0).times_s(generator(), 20.0)
    assert np.all(np.diff(times) >= 0)
    assert times[0] >= 0 and times[-1] < 20.0


def test_a_poisson_process_has_its_rate_and_variance() -> None:
    counts = [len(Poisson(50.0).times_s(generator(seed), 4.0)) for seed in range(200)]
    assert np.mean(counts) == pytest.approx(200.0, rel=0.02)
    assert np.var(counts) == pytest.approx(200.0, rel=0.3)


def test_a_modulated_process_has_the_mean_rate_and_more_variance() -> None:
    counts = [len(MarkovModulated(50.0).times_s(generator(seed), 40.0)) for seed in range(100)]
    assert np.mean(counts) == pytest.approx(2000.0, rel=0.05)
    assert np.var(counts) > 3 * 2000.0


def test_a_flash_crowd_comes_when_it_is_said_to() -> None:
    times = FlashCrowd(100.0, peak=3.0, begin_s=5.0, lasts_s=5.0).times_s(generator(), 15.0)
    before, during = (times < 5.0).sum(), ((times >= 5.0) & (times < 10.0)).sum()
    assert during == pytest.approx(3.0 * before, rel=0.2)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_must_be_a_number_above_zero(rate: float) -> None:
    with pytest.raises(ValueError, match="rate must be above 0"):
        process("poisson", rate, 1.0)


def test_unknown_arrivals_are_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'surge'; known: poisson, mmpp, flash"):
        process("surge", 1.0, 1.0)


def test_noise_has_mean_one_and_its_spread() -> None:
    profile = VariantProfile(s0_ns=1.0, s1_ns=0.0, sigma=0.2)
    candidate = Candidate("v", "t", 0.9, profile, 512, True)
    luck = generator().standard_normal(20_000)
    factors = np.array([Noise().factor(candidate, value, 1.0) for value in luck.tolist()])
    assert factors.mean() == pytest.approx(1.0, abs=0.01)
    assert factors.std() == pytest.approx(0.2, abs=0.01)
    assert Noise(tail_share=0.1, tail_factor=5.0).factor(candidate, 0.0, 0.05) > 4.0


def test_measured_quantiles_stand_in_place_of_the_lognormal() -> None:
    profile = VariantProfile(s0_ns=1.0, s1_ns=0.0, sigma=0.2)
    noise = Noise(measured={"v": (1.0, 2.0, 4.0), "": (3.0, 3.0)})
    known, other = (Candidate(name, "t", 0.9, profile, 512, True) for name in ("v", "w"))
    assert noise.factor(known, 0.0, 1.0) == pytest.approx(2.0)
    assert noise.factor(known, -9.0, 1.0) == pytest.approx(1.0)
    assert noise.factor(known, 9.0, 1.0) == pytest.approx(4.0)
    # Half a standard deviation of luck is the 69th percentile.
    assert noise.factor(known, 0.5, 1.0) == pytest.approx(2.0 + 2.0 * (2 * 0.69146 - 1), rel=1e-4)
    assert noise.factor(other, 0.3, 1.0) == 3.0
    with pytest.raises(ValueError, match="numbers above 0"):
        Noise(measured={"v": (0.0, 1.0)})


def test_lengths_have_their_mean() -> None:
    assert FixedLength(7).draw(generator(), 3).tolist() == [7, 7, 7]
    sampled = SampledLengths((10, 20, 60))
    assert sampled.mean() == 30.0
    assert sampled.draw(generator(), 10_000).mean() == pytest.approx(30.0, rel=0.05)


def test_a_trace_comes_back_as_it_was_written(tmp_path: Path) -> None:
    traffic = workload(0.8, seconds=2.0, factors=(0.5, 2.0))
    write_trace(tmp_path / "trace.csv", traffic)
    back = read_trace(tmp_path / "trace.csv", generator())
    assert np.array_equal(back.arrived_ns, traffic.arrived_ns // 1000 * 1000)
    assert np.array_equal(back.tokens, traffic.tokens)
    assert world(back).run() == world(read_trace(tmp_path / "trace.csv", generator())).run()


def test_a_trace_answers_what_if() -> None:
    traffic = workload(0.9, seconds=3.0)
    as_it_was = world(traffic).run()
    assert world(retimed(traffic, speed=2.0)).run().accuracy < as_it_was.accuracy
    assert world(traffic, workers=6).run().share_most_accurate > as_it_was.share_most_accurate
    tight = retimed(traffic, deadline_ms=20.0)
    assert world(tight).run().share_most_accurate < as_it_was.share_most_accurate


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,c\n", "the first line must begin"),
        ("arrived_us,tokens,deadline_us\n1,2\n", ":2: expected three whole numbers"),
        ("arrived_us,tokens,deadline_us\n5,1,1\n4,1,1\n", ":3: arrivals must be in order"),
        ("arrived_us,tokens,deadline_us\n5,0,1\n", ":2: a time is negative or a size"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_trace(path, generator())


def test_requests_that_no_variant_takes_are_refused() -> None:
    traffic = workload(0.5, seconds=1.0)
    traffic.tokens[:5] = 10_000
    assert max(c.max_tokens for c in TABLE.candidates) < 10_000
    assert world(traffic).run().refused >= 5
