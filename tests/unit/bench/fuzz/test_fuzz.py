"""Every reader of bytes from outside survives changed messages; `orchid bench fuzz` sends more."""

from __future__ import annotations

import json

import pytest

from bench.fuzz import mutate
from bench.fuzz.mutate import Dice
from bench.fuzz.run import Tally, names, run_batch
from bench.fuzz.targets import Target, targets

MESSAGES = 600


@pytest.mark.parametrize("name", names())
def test_no_message_is_answered_with_a_fault_of_ours(name: str) -> None:
    tally = run_batch(name, 7, 0, MESSAGES)
    assert tally.findings == []
    assert tally.messages == tally.accepted + tally.refused + tally.undecodable == MESSAGES
    # Changed messages must get past the first check, or nothing behind it is tried.
    assert tally.accepted >= MESSAGES // 100


def test_the_same_seed_gives_the_same_messages() -> None:
    seeds = (b"\x08\x96\x01\x12\x07testing", b"\x1a\x03\x08\x96\x01")
    for change in (mutate.raw, mutate.protobuf):
        first = [change(Dice(3, 1), seeds) for _ in range(1)]
        assert first == [change(Dice(3, 1), seeds) for _ in range(1)]
        dice = Dice(3, 2)
        assert len({change(dice, seeds) for _ in range(200)}) > 100


def test_changed_documents_are_json_more_often_than_not() -> None:
    dice, sound = Dice(5), (json.dumps({"a": [1, {"b": "c"}], "d": None}).encode(),)
    parsed = 0
    for _ in range(500):
        try:
            json.loads(mutate.document(dice, sound))
        except ValueError:
            continue
        parsed += 1
    assert parsed > 250


def test_what_breaks_is_kept_with_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: bytes) -> None:
        raise RuntimeError("no")

    target = Target("x", (b"abc",), mutate.raw, broken, (ValueError,))
    monkeypatch.setattr("bench.fuzz.run._by_name", lambda: {"x": target})
    tally = run_batch("x", 1, 0, 50)
    assert tally.failed == 50 and len(tally.findings) == 20
    first = tally.findings[0]
    assert (first.kind, first.error, first.data) == (
        "internal",
        "RuntimeError: no",
        b"abc".hex(),
    )
    whole = Tally("x")
    whole.add(tally)
    whole.add(tally)
    assert whole.failed == 100 and len(whole.findings) == 20


def test_every_target_has_valid_messages() -> None:
    assert all(target.seeds for target in targets())
