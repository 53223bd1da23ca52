"""What a generation costs by its worker's profile, whole and in part."""

from __future__ import annotations

import pytest

from controlplane.policy.decode import DecodeProfile
from controlplane.policy.decode_cost import Setting, unfinished_cost, whole_cost

MS = 1_000_000
PROFILE = DecodeProfile(step_ns=4 * MS, prefill_ns=MS, sequence_ns=MS, cached_ns=10_000)
ALONE = Setting(PROFILE, threads=1, width=1, cached_tokens=0)


def test_alone_it_takes_the_time_of_its_steps() -> None:
    cost = whole_cost(ALONE, prompt=100, tokens=20, answers=1)
    assert cost.prefill_ns == 104 * MS
    # Each token a step of 4 + 1 + 1.1 ms: it attends to 110 tokens on average.
    assert cost.decode_ns == pytest.approx(20 * 6.1 * MS)
    assert cost.lasts_ns == pytest.approx(cost.prefill_ns + cost.decode_ns)
    assert cost.live_token_ms == pytest.approx(50 * 104 + 110 * 122)


def test_company_shares_the_step_and_slows_the_token() -> None:
    many = whole_cost(Setting(PROFILE, threads=2, width=4, cached_tokens=300), 100, 20, 1)
    assert many.decode_ns == pytest.approx(2 * 20 * (1 + 1 + 1.1) * MS)
    assert many.lasts_ns - 104 * MS == pytest.approx(20 * (4 + 4 + 4.1) * MS)


def test_what_is_given_up_costs_what_was_done() -> None:
    whole = whole_cost(ALONE, 100, 20, 1)
    written = int(whole.lasts_ns - 104 * MS)
    ended = unfinished_cost(ALONE, 100, 20, 1, read_ns=104 * MS, written_ns=written)
    assert (ended.prefill_ns, ended.decode_ns) == (whole.prefill_ns, whole.decode_ns)
    assert ended.live_token_ms == pytest.approx(whole.live_token_ms)
    half = unfinished_cost(ALONE, 100, 0, 1, read_ns=52 * MS, written_ns=0)
    assert (half.prefill_ns, half.decode_ns) == (52 * MS, 0)
    # Half a prompt, half full on average, for half the time.
    assert half.live_token_ms == pytest.approx(25 * 52)
    # Whoever waits for company longer than reading takes has read it once.
    assert unfinished_cost(ALONE, 100, 0, 1, read_ns=900 * MS, written_ns=0).prefill_ns == 104 * MS


def test_a_prompt_that_was_cached_costs_a_step() -> None:
    cost = unfinished_cost(ALONE, 0, 4, 2, read_ns=4 * MS, written_ns=10 * MS, cached=30)
    assert cost.prefill_ns == 4 * MS
    # It is held all the same, by each of the two answers.
    assert cost.live_token_ms == 30 * 4 + 2 * 31 * 10
