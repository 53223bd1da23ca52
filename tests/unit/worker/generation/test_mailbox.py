"""What waits for a slow reader."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.generation.mailbox import Mailbox
from worker.generation.records import Delta, Finish, Finished, GenerationEvent

events = st.lists(
    st.one_of(
        st.builds(
            lambda index, token: Delta(index, f"{token} ", (token,)),
            st.integers(0, 2),
            st.integers(0, 99),
        ),
        st.builds(lambda index: Finished(index, Finish.LENGTH, "", 1), st.integers(0, 2)),
    ),
    max_size=200,
)


def unread(mailbox: Mailbox) -> list[GenerationEvent]:
    found = []
    while (event := mailbox.take()) is not None:
        found.append(event)
    return found


def of(index: int, some: list[GenerationEvent]) -> tuple[str, tuple[int, ...], int]:
    """One answer's text, tokens, and how many tokens came before its last end."""
    tokens: tuple[int, ...] = ()
    text, before = "", 0
    for event in some:
        if isinstance(event, Delta) and event.index == index:
            text, tokens = text + event.text, tokens + event.tokens
        elif isinstance(event, Finished) and event.index == index:
            before = len(tokens)
    return text, tokens, before


@settings(deadline=None)
@given(events, st.integers(1, 50))
def test_every_answer_is_whole_and_in_order(some: list[GenerationEvent], every: int) -> None:
    mailbox, read = Mailbox(), []
    for start in range(0, len(some), every):
        mailbox.put(some[start : start + every])
        event = mailbox.take()
        assert event is not None
        read.append(event)
    read += unread(mailbox)
    assert len(mailbox) == 0
    for index in range(3):
        assert of(index, read) == of(index, some)


def test_unread_pieces_become_one() -> None:
    mailbox = Mailbox()
    for token in range(1000):
        mailbox.put([Delta(token % 2, "x", (token,))])
    assert len(mailbox) < 20
    first = mailbox.take()
    assert isinstance(first, Delta)
    assert (len(first.text), first.tokens[:3]) == (64, (0, 2, 4))
