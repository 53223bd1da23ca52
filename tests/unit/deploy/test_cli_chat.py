"""`orchid chat`: turns that are kept, and what is told after each answer."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import cast

import pytest

from deploy.cli.chat import Conversation
from deploy.generation import Generated, GenerationQuestion, Generator


class Scripted:
    """Answers every question with how many turns it has."""

    def __init__(self) -> None:
        self.asked: list[GenerationQuestion] = []

    def generate(self, question: GenerationQuestion, say: Callable[[str], None]) -> Generated:
        self.asked.append(question)
        text = f"{len(question.turns)} turns"
        say(text)
        return Generated(text=text, finish="stop", variant="chat-q4", worker="decode-0")


def test_each_answer_is_followed_by_what_is_told_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n\n/clear\nagain\nmore\n/exit\nnever\n"))
    scripted, told = Scripted(), list[str]()
    conversation = Conversation(
        cast(Generator, scripted),
        GenerationQuestion(model="chat"),
        "127.0.0.1:1",
        "be short",
        lambda: told.append("a trace"),
    )
    conversation.run()
    assert [len(question.turns) for question in scripted.asked] == [2, 2, 4]
    assert scripted.asked[-1].turns[0] == ("system", "be short")
    assert len(told) == 3
    said = capsys.readouterr()
    assert said.out.split("\n")[:3] == ["2 turns", "2 turns", "4 turns"]
    assert said.err.count("chat-q4 on decode-0") == 3
