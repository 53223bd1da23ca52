"""Which generations count, and which met their targets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.generation.plan import GenerationPlan, draw_generations, prompt_ids
from bench.generation.record import (
    CUT,
    OK,
    GenerationRecord,
    load_generations,
    reduce_generations,
    save_generations,
)

MS = 1_000_000
PLAN = GenerationPlan("t", "m", 1000, rate_per_s=2.0, seconds=10.0, warmup_s=1.0)


def record(
    due_ms: int, first_ms: int, last_ms: int, tokens: int = 11, **more: int
) -> GenerationRecord:
    values = {"code": OK, "done_ns": last_ms * MS, "wanted_tokens": 11, **more}
    return GenerationRecord(
        due_ns=due_ms * MS, first_ns=first_ms * MS, last_ns=last_ms * MS, tokens=tokens, **values
    )


def test_both_targets_and_every_token_are_needed() -> None:
    met = record(2000, 2500, 3000)
    assert met.attained(PLAN) and met.first_token_ms == 500.0 and met.token_ms == 50.0
    assert not record(2000, 2501, 3000).attained(PLAN)
    assert not record(2000, 2500, 3001).attained(PLAN)
    assert not record(2000, 2500, 2600, tokens=10).attained(PLAN)
    assert not record(2000, 2500, 3000, code=8).attained(PLAN)


def test_attainment_is_over_what_was_offered_in_the_window() -> None:
    records = [
        record(500, 600, 1000),  # warm-up
        record(2000, 2100, 2500),
        record(3000, 4000, 4400),
        GenerationRecord(4000 * MS, 11, 8, done_ns=4001 * MS),
        GenerationRecord(5000 * MS, 11, CUT, first_ns=5100 * MS, last_ns=5200 * MS, tokens=3),
    ]
    result = reduce_generations(PLAN, records)
    assert result.offered == 4 and result.slo_attainment == 0.25 and result.complete == 0.5
    assert result.codes == {OK: 2, 8: 1, CUT: 1}
    assert result.completed_per_s == pytest.approx(0.2)
    assert result.first_token_ms is not None and result.first_token_ms[0] == pytest.approx(100.0)


def test_a_closed_loop_counts_what_ended_in_the_window() -> None:
    plan = GenerationPlan("t", "m", 1000, in_flight=2, seconds=1.0, warmup_s=1.0)
    result = reduce_generations(plan, [record(0, 500, 900), record(0, 500, 1500)])
    assert result.offered == 1 and result.completed_per_s == 1.0


def test_nothing_offered_has_no_percentiles() -> None:
    result = reduce_generations(PLAN, [])
    assert result.slo_attainment == 0.0 and result.first_token_ms is None


def test_records_survive_their_file(tmp_path: Path) -> None:
    records = [record(1, 2, 3), GenerationRecord(5, 7, CUT)]
    save_generations(tmp_path / "r.json", records)
    assert load_generations(tmp_path / "r.json") == records


def test_one_seed_one_schedule_inside_the_ranges() -> None:
    one, again = draw_generations(PLAN), draw_generations(PLAN)
    assert np.array_equal(one.due_ns, again.due_ns)
    assert np.array_equal(one.prompt_tokens, again.prompt_tokens)
    assert one.prompt_tokens.min() >= 64 and one.prompt_tokens.max() <= 448
    assert len(one.due_ns) == len(one.answer_tokens)


def test_any_stretch_of_a_closed_loop_asks_as_much_as_another() -> None:
    plan = GenerationPlan(target="t", model="m", vocabulary=1000, in_flight=16)
    drawn, again = draw_generations(plan), draw_generations(plan)
    assert not len(drawn.due_ns) and np.array_equal(drawn.answer_tokens, again.answer_tokens)
    for lengths, (low, high) in (
        (drawn.prompt_tokens, plan.prompt_tokens),
        (drawn.answer_tokens, plan.answer_tokens),
    ):
        stretches = lengths.reshape(-1, 16)
        assert np.allclose(stretches.mean(axis=1), (low + high) / 2, atol=0.5)
        assert low <= lengths.min() and lengths.max() <= high
        assert not np.array_equal(stretches[0], stretches[1])


def test_prompts_differ_from_their_first_tokens_on() -> None:
    first = prompt_ids(1, 0, 64, 49152)
    assert first == prompt_ids(1, 0, 64, 49152) and first[:16] != prompt_ids(1, 1, 64, 49152)[:16]


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate_per_s": 0.0},
        {"in_flight": 2},
        {"prompt_tokens": (9, 8)},
        {"answer_tokens": (0, 8)},
        {"seconds": 0.0},
        {"vocabulary": 1},
    ],
)
def test_a_plan_that_cannot_be_played_is_refused(wrong: dict[str, object]) -> None:
    values = {"target": "t", "model": "m", "vocabulary": 1000, "rate_per_s": 2.0, **wrong}
    with pytest.raises(ValueError, match="expected"):
        GenerationPlan(**values)  # type: ignore[arg-type]
