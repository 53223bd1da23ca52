"""Where `orchid up` serves the status page."""

import socket

import pytest

from deploy.status_page import DEFAULT_PAGE, OFF, PagePlan, page_plan


def nothing_missing() -> str:
    return ""


def test_what_is_asked_for_is_taken_as_it_is() -> None:
    for asked, listen in (("127.0.0.1:9", "127.0.0.1:9"), (OFF, "")):
        plan = page_plan(asked, "127.0.0.1:1", missing=lambda: "uvicorn", is_free=lambda _: False)
        assert plan == PagePlan(listen)
    configured = page_plan(None, "127.0.0.1:1", missing=lambda: "uvicorn")
    assert configured == PagePlan("127.0.0.1:1")


def test_nobody_asked_for_the_default_so_it_never_stands_in_the_way() -> None:
    assert page_plan(None, "", missing=nothing_missing, is_free=lambda _: True) == PagePlan(
        DEFAULT_PAGE
    )
    taken = page_plan(None, "", missing=nothing_missing, is_free=lambda _: False)
    assert taken.listen == "127.0.0.1:0" and DEFAULT_PAGE in taken.why
    absent = page_plan(None, "", missing=lambda: "starlette")
    assert absent.listen == "" and "'starlette' of the extra `http`" in absent.why


def test_a_port_that_is_taken_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        address = f"127.0.0.1:{busy.getsockname()[1]}"
        monkeypatch.setattr("deploy.status_page.DEFAULT_PAGE", address)
        assert page_plan(None, "", missing=nothing_missing).listen == "127.0.0.1:0"
    assert page_plan(None, "", missing=nothing_missing).listen == address
