"""Calls that go on: their caller is looked at again once the identities have changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from controlplane.errors import Forbidden, Unauthenticated
from controlplane.http.calls import Answer
from controlplane.rpc.guarding import protected
from controlplane.rpc.server import NATIVE
from controlplane.security.guard import INFER, OPERATE, Standing
from controlplane.security.identities import Identity
from protos.orchid.v1 import inference_pb2
from tests.unit.controlplane.security.test_guard import HASH, House

SECOND = 1_000_000_000
SHOP = f"{{name: shop, tenant: shop, roles: [infer], token_sha256: [{HASH}]}}"
NOBODY = "{name: nobody, roles: [operate], certificates: [nobody.example]}"


def changed(folder: Path, house: House, entry: str) -> None:
    """Another file of identities, and time enough for it to be seen."""
    partial = folder / "identities.partial"
    partial.write_text(f"identities:\n  - {entry}\n")
    partial.replace(folder / "identities.yaml")
    house.ns += SECOND


def standing(house: House, accepted: frozenset[str] = INFER) -> Standing:
    def ask() -> Identity:
        return house.guard.admit("svc/Stream", accepted, "Bearer secret", lambda: (), "peer")

    return Standing(house.guard, ask)


def test_who_is_known_goes_on_and_who_is_revoked_ends_each_time(tmp_path: Path) -> None:
    house = House(tmp_path, SHOP)
    stands = standing(house)
    house.ns += 10 * SECOND
    stands.check()
    changed(tmp_path, house, SHOP.replace("tenant: shop", "tenant: store"))
    stands.check()
    assert stands.identity.tenant == "store"
    changed(tmp_path, house, NOBODY)
    for _ in range(2):
        with pytest.raises(Unauthenticated, match="not known"):
            stands.check()
    assert house.lines() == [("svc/Stream", "", "unknown token")] * 2


def test_a_role_that_was_taken_away_ends_it_too(tmp_path: Path) -> None:
    house = House(tmp_path, SHOP)
    stands = standing(house)
    changed(tmp_path, house, SHOP.replace("[infer]", "[operate]"))
    with pytest.raises(Forbidden, match="takes the role infer"):
        stands.check()
    changed(tmp_path, house, NOBODY)
    with pytest.raises(Unauthenticated):
        standing(house, OPERATE)


class FakeContext:
    """What the guard and a method see of a call."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", "Bearer secret"),)

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    def peer(self) -> str:
        return "ipv4:10.0.0.1:5"

    def time_remaining(self) -> None:
        return None

    async def abort(self, *said: object) -> None:
        raise AssertionError(said)

    async def write(self, message: str) -> None:
        self.written.append(message)


async def test_an_answer_that_is_written_on_and_on_ends(tmp_path: Path) -> None:
    house, context = House(tmp_path, SHOP), FakeContext()

    async def behaviour(request: Any, call: Any) -> None:
        assert request.request_class.tenant == "shop"
        await call.write("one")
        changed(tmp_path, house, NOBODY)
        await call.write("two")

    method = NATIVE.methods_by_name["Generate"]
    with pytest.raises(Unauthenticated):
        await protected(method, behaviour, house.guard)(inference_pb2.GenerateRequest(), context)
    assert context.written == ["one"]


async def test_pieces_of_an_http_answer_end(tmp_path: Path) -> None:
    house = House(tmp_path, SHOP)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    answer = Answer("id", send)
    answer.standing = standing(house)
    await answer.begin({})
    await answer.piece(b"data: one\n\n")
    changed(tmp_path, house, NOBODY)
    with pytest.raises(Unauthenticated):
        await answer.piece(b"data: two\n\n")
    assert [message.get("body") for message in sent] == [None, b"data: one\n\n"]
