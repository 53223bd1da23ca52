"""The feed: one look a second for all, only while somebody listens, and nobody is waited for."""

import asyncio

import pytest

from controlplane.page.feed import MOST_BEHIND, Feed, Full, Listener
from tests.unit.controlplane.virtual_loop import virtual


class CountingView:
    """Numbers its samples and says which ones a message has."""

    def __init__(self) -> None:
        self.samples = 0
        self.rendered: list[bool] = []

    def sample(self) -> None:
        self.samples += 1

    def render(self, *, whole: bool) -> bytes:
        self.rendered.append(whole)
        return f"{'whole' if whole else 'last'} {self.samples}".encode()


def feed_of(view: CountingView, most: int = 16) -> Feed:
    feed = Feed(view, loop=asyncio.get_running_loop(), most=most)
    feed.start()
    return feed


async def take(listener: Listener) -> str:
    message = await listener.next()
    return message.decode() if message is not None else "closed"


@virtual
async def test_nothing_is_rendered_while_nobody_listens() -> None:
    view = CountingView()
    feed = feed_of(view)
    await asyncio.sleep(10.5)
    assert (view.samples, view.rendered) == (11, [])
    feed.close()
    await asyncio.sleep(10)
    assert view.samples == 11


@virtual
async def test_all_listeners_share_one_snapshot_a_second() -> None:
    view = CountingView()
    feed = feed_of(view)
    listeners = [feed.listen() for _ in range(5)]
    assert [await take(each) for each in listeners] == ["whole 1"] * 5
    assert [await take(each) for each in listeners] == ["last 2"] * 5
    assert [await take(each) for each in listeners] == ["last 3"] * 5
    assert view.rendered == [True, False, False]
    feed.close()


@virtual
async def test_who_missed_a_message_gets_the_whole_history() -> None:
    view = CountingView()
    feed = feed_of(view)
    quick, slow = feed.listen(), feed.listen()
    assert (await take(quick), await take(slow)) == ("whole 1", "whole 1")
    for number in (2, 3, 4):
        assert await take(quick) == f"last {number}"
    assert await take(slow) == "whole 4"
    assert await take(slow) == "last 5"
    feed.close()


@virtual
async def test_who_takes_nothing_is_let_go_and_its_place_is_free() -> None:
    view = CountingView()
    feed = feed_of(view, most=1)
    stuck = feed.listen()
    with pytest.raises(Full, match="1 listen already"):
        feed.listen()
    await asyncio.sleep(MOST_BEHIND + 2.5)
    assert (feed.listeners, feed.dropped) == (0, 1)
    assert await take(stuck) == "closed"
    assert await take(feed.listen()) == f"whole {view.samples}"
    feed.close()


@virtual
async def test_closing_ends_those_who_wait_and_takes_no_more() -> None:
    feed = feed_of(CountingView())
    listener = feed.listen()
    await take(listener)
    waiting = asyncio.create_task(take(listener))
    await asyncio.sleep(0)
    feed.close()
    assert await waiting == "closed"
    await listener.closed()
    with pytest.raises(Full):
        feed.listen()


@virtual
async def test_programs_share_the_snapshot_too() -> None:
    view = CountingView()
    feed = feed_of(view)
    assert [feed.now(whole=True) for _ in range(100)] == [b"whole 1"] * 100
    await asyncio.sleep(1.5)
    assert feed.now(whole=True) == b"whole 2"
    assert view.rendered == [True, True]
    feed.close()
