"""Generations on a virtual clock: one seed one result, and what the policies are worth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from bench.report import read_report
from bench.sim.decode_sweep import (
    MEASURED,
    DecodeScale,
    DecodeSweep,
    run_sweep,
    scale_of,
    settings_of,
    summary_of,
)
from bench.sim.decode_workload import GenerationSizes, TokenTargets, draw_load, targets_for
from bench.sim.decode_world import DecodeSimResult, simulate
from deploy.cli import app
from worker.scheduling.cost import StepCost
from worker.scheduling.policies import policy_named

_SWEEP = DecodeSweep(seconds=40.0, seeds=(1,))


@pytest.fixture(scope="module")
def scale() -> DecodeScale:
    return scale_of(_SWEEP)


def _run(scale: DecodeScale, policy: str, load: float, sweep: DecodeSweep) -> DecodeSimResult:
    sweep = replace(sweep, policies=(policy,), loads=(load,))
    (point,) = run_sweep(sweep, scale)
    return point.runs[0]


def test_one_seed_gives_one_result(scale: DecodeScale) -> None:
    first, again = (_run(scale, "slo", 1.3, _SWEEP) for _ in range(2))
    assert first == again
    assert _run(scale, "slo", 1.3, replace(_SWEEP, seeds=(2,))) != first


@pytest.mark.parametrize("policy", ["slo", "serial", "preempt", "never-evict", "limit-8+shed"])
def test_every_generation_ends_in_one_way(scale: DecodeScale, policy: str) -> None:
    result = _run(scale, policy, 1.3, replace(_SWEEP, seconds=20.0))
    assert result.offered == result.finished + result.refused + result.shed
    assert 0.0 <= result.slo_attainment <= result.first_token_attainment <= 1.0


def test_by_targets_is_ahead_when_there_is_too_much(scale: DecodeScale) -> None:
    attained = {
        policy: _run(scale, policy, 1.3, _SWEEP).slo_attainment
        for policy in ("slo", "never-evict", "preempt", "limit-8", "limit-16+shed")
    }
    assert max(attained, key=attained.__getitem__) == "slo"
    assert attained["slo"] > 0.75


def test_first_tokens_come_ten_times_sooner_than_in_series(scale: DecodeScale) -> None:
    batched, serial = (_run(scale, policy, 0.8, _SWEEP) for policy in ("slo", "serial"))
    assert serial.ttft_p95_ms > 10 * batched.ttft_p95_ms


def test_answers_shorter_than_their_limits_and_a_wrong_model_are_coped_with(
    scale: DecodeScale,
) -> None:
    early = _run(scale, "slo", 1.0, replace(_SWEEP, answer_share=0.25))
    assert early.slo_attainment > 0.8
    wrong = _run(scale, "slo", 1.0, replace(_SWEEP, believed=_times(MEASURED, 0.6)))
    assert wrong.slo_attainment > 0.9


def test_a_profile_taken_alone_costs_nothing_once_steps_have_told() -> None:
    """Beside a busy process each sequence takes twice its profile: wide steps most of all."""
    busy = replace(MEASURED, sequence_us=2 * MEASURED.sequence_us)
    sweep = replace(_SWEEP, cost=busy)
    scale = scale_of(sweep)
    for load in (1.0, 1.3):
        right = _run(scale, "slo", load, sweep)
        wrong = _run(scale, "slo", load, replace(sweep, believed=MEASURED))
        other = _run(scale, "limit-16+shed", load, replace(sweep, believed=MEASURED))
        assert wrong.slo_attainment > right.slo_attainment - 0.03
        assert wrong.slo_attainment >= other.slo_attainment


def _times(cost: StepCost, factor: float) -> StepCost:
    return StepCost(
        factor * cost.step_us,
        factor * cost.prefill_us_per_token,
        factor * cost.sequence_us,
        factor * cost.cached_us_per_token,
    )


def test_an_idle_machine_keeps_every_target() -> None:
    settings = settings_of(_SWEEP)
    load = draw_load(np.random.default_rng(3), 0.2, 60.0, GenerationSizes())
    targets = targets_for(MEASURED, GenerationSizes())
    result = simulate(load, targets, policy_named("slo"), settings, np.random.default_rng(3))
    assert result.offered > 5
    assert result.slo_attainment == 1.0


def test_targets_grow_where_the_machine_cannot() -> None:
    fast = StepCost(1000.0, 100.0, 200.0, 0.5)
    assert targets_for(fast, GenerationSizes()) == TokenTargets(500_000_000, 50_000_000)
    assert targets_for(MEASURED, GenerationSizes()) == TokenTargets(500_000_000, 50_000_000)
    slow = targets_for(StepCost(6600.0, 1520.0, 1150.0, 1.9), GenerationSizes())
    assert slow.first_token_ns > 2 * 448 * 1_520_000
    assert slow.token_ns > 50_000_000
    with pytest.raises(ValueError, match="got 5 to 4"):
        GenerationSizes(prompt=(5, 4))


def test_the_summary_is_flat(scale: DecodeScale) -> None:
    sweep = replace(_SWEEP, policies=("slo", "limit-8"), loads=(0.8,), seconds=20.0)
    summary = summary_of(list(run_sweep(sweep, scale)))
    assert {"slo@0.8.slo_attainment", "limit-8@0.8.ttft_p95_ms"} <= set(summary)


def test_the_command_writes_its_result(tmp_path: Path) -> None:
    out = tmp_path / "sim.json"
    arguments = ["bench", "decode-sim", "--policies", "slo,serial", "--loads", "1"]
    result = CliRunner().invoke(
        app, [*arguments, "--seconds", "10", "--seeds", "1", "--json", str(out)]
    )
    assert result.exit_code == 0, result.output
    report = read_report(out)
    assert report.bench == "decode-sim"
    assert "serial@1.slo_attainment" in report.summary
    bad = CliRunner().invoke(app, [*arguments[:2], "--policies", "best"])
    assert bad.exit_code != 0
    assert "policies" in bad.output
