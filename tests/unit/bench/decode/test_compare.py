"""Turns, medians and ratios, on subjects whose times are known."""

from __future__ import annotations

from collections.abc import Callable

from bench.decode.compare import Measure, agreement, compare, ratios


class Known:
    """A subject whose steps take what `seconds` says of the batch, in turns that are noted."""

    version = "known 1"

    def __init__(self, name: str, seconds: Callable[[int], float], turns: list[str]) -> None:
        self._name = name
        self._seconds = seconds
        self._turns = turns
        self._batch = 0
        self.opened: list[tuple[int, int]] = []

    def prefill(self, tokens: int) -> float:
        self._turns.append(self._name)
        return self._seconds(0) * tokens

    def first_token(self, number: int, tokens: int) -> int:
        return number % 2 if self._name == "quick" else 0

    def open(self, batch: int, cached: int) -> None:
        self._batch = batch
        self.opened.append((batch, cached))

    def steps(self, count: int) -> list[float]:
        self._turns.append(self._name)
        return [self._seconds(self._batch)] * count

    def close(self) -> None:
        self._batch = 0


def test_ratios_are_of_rates_within_a_round_and_best_is_the_worst_for_us() -> None:
    turns: list[str] = []
    ours = Known("ours", lambda batch: 0.001 if batch == 0 else 0.010, turns)
    slow = Known("slow", lambda batch: 0.004 if batch == 0 else 0.015, turns)
    quick = Known("quick", lambda batch: 0.002 if batch == 0 else 0.008, turns)
    measures = (Measure("prefill64", 0, 64), Measure("decode_b2_9", 2, 9))
    found = compare(
        {"ours": ours, "slow": slow, "quick": quick},
        measures,
        rounds=3,
        steps=2,
        notify=lambda text: None,
    )
    assert found[0].typical("ours") == 1000
    assert found[1].typical("ours") == 200
    summary = ratios(found, "ours", ["slow", "quick"])
    assert {name: round(value, 6) for name, value in summary.items()} == {
        "prefill64_vs_slow": 4,
        "prefill64_vs_quick": 2,
        "prefill64_vs_best": 2,
        "decode_b2_9_vs_slow": 1.5,
        "decode_b2_9_vs_quick": 0.8,
        "decode_b2_9_vs_best": 0.8,
    }
    assert ours.opened == slow.opened == [(2, 9)]
    # After one warm-up each, the order of turns changes from round to round.
    assert turns[3:9] == ["quick", "slow", "ours", "ours", "slow", "quick"]


def test_agreement_is_the_share_of_prompts_with_the_same_next_token() -> None:
    subjects = {name: Known(name, lambda batch: 1.0, []) for name in ("ours", "slow", "quick")}
    points = agreement(subjects, "ours", prompts=4, tokens=8)
    assert {point["subject"]: point["share"] for point in points} == {
        "ours": 1.0,
        "slow": 1.0,
        "quick": 0.5,
    }


def test_without_peers_there_is_no_ratio() -> None:
    subject = Known("ours", lambda batch: 0.5, [])
    found = compare(
        {"ours": subject}, (Measure("decode", 1, 5),), rounds=1, steps=1, notify=lambda text: None
    )
    assert ratios(found, "ours", []) == {}
    assert found[0].points()[0]["tok_s"] == 2
