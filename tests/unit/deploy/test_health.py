"""Asking who is not there."""

from __future__ import annotations

import pytest

from deploy import health


def test_nobody_is_unavailable() -> None:
    assert health.unready("127.0.0.1:1", timeout_s=1.0).startswith(("UNAVAILABLE", "DEADLINE"))


def test_waiting_ends_with_the_first_good_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["NOT_SERVING", "NOT_SERVING", ""]
    asked: list[tuple[str, str, float]] = []

    def answer(address: str, service: str, timeout_s: float) -> str:
        asked.append((address, service, timeout_s))
        return answers[len(asked) - 1]

    monkeypatch.setattr(health, "_POLL_S", 0.0)
    monkeypatch.setattr(health, "unready", answer)
    assert health.await_ready("host:1", "m", timeout_s=0.5, wait_s=30.0) == ""
    assert asked == [("host:1", "m", 0.5)] * 3


def test_without_waiting_it_asks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "unready", lambda *_: "NOT_SERVING")
    assert health.await_ready("host:1", timeout_s=0.5) == "NOT_SERVING"
