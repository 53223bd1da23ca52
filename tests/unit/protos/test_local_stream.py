"""Messages behind their lengths come out as they went in, however they were cut."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.local_stream import FrameFault, Frames, address_of, header, same_user


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(1, 60), max_size=30))
def test_messages_are_whole_however_they_are_cut(messages: list[bytes], cuts: list[int]) -> None:
    sent = b"".join(header(len(message)) + message for message in messages)
    frames, received, at = Frames(64), [], 0
    for cut in (*cuts, len(sent) + 1):
        received += frames.feed(sent[at : at + cut])
        at += cut
        if at >= len(sent):
            break
    assert received == messages


def test_a_message_in_many_pieces_is_put_together_once() -> None:
    message = bytes(range(256)) * 64
    frames = Frames(1 << 20)
    sent = header(len(message)) + message + header(1) + b"x"
    pieces = [sent[at : at + 100] for at in range(0, len(sent), 100)]
    found = [each for piece in pieces for each in frames.feed(piece)]
    assert found == [message, b"x"]


@pytest.mark.parametrize("split", [0, 2, 3])
def test_a_message_that_is_too_large_is_refused_at_its_length(split: int) -> None:
    frames = Frames(10)
    head = header(11)
    assert frames.feed(head[:split]) == []
    with pytest.raises(FrameFault, match="a message of 11 bytes; at most 10 may come"):
        frames.feed(head[split:])


@pytest.mark.parametrize("name", ["", "x" * 101, "ünicode", "nul\0"])
def test_names_that_are_no_addresses_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a socket's name has 1 to 100 ASCII characters"):
        address_of(name)


def test_both_ends_of_a_pair_are_of_one_user(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert same_user(one)
        assert same_user(other)
        monkeypatch.setattr("os.geteuid", lambda: -2)
        assert not same_user(one)
