"""The guard: who is let in, as whom, how often."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from controlplane.errors import Forbidden, Refused, Unauthenticated
from controlplane.security.guard import INFER, OPERATE, READ, Guard, tenant_of
from controlplane.security.identities import Identity, IdentityFile
from protos.audit import Audit, AuditConfig


class House:
    """A guard, its clock and its audit lines."""

    def __init__(self, folder: Path, *entries: str) -> None:
        self.ns = 0
        self.log = folder / "audit.log"
        file = folder / "identities.yaml"
        file.write_text("identities:\n" + "".join(f"  - {entry}\n" for entry in entries))
        audit = Audit(
            AuditConfig(file=str(self.log)), process="t", wall_s=lambda: 0.0, now_ns=self.now_ns
        )
        identities = IdentityFile(file, now_ns=self.now_ns, on_change=print)
        self.guard = Guard(identities, audit, self.now_ns)

    def now_ns(self) -> int:
        return self.ns

    def lines(self) -> list[tuple[str, str, str]]:
        read = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [(line["event"], line["who"], line["outcome"]) for line in read]


HASH = hashlib.sha256(b"secret").hexdigest()


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(
        tmp_path,
        f"{{name: shop, tenant: shop, roles: [infer], token_sha256: [{HASH}], "
        "certificates: [shop.example], requests_per_s: 2, burst: 2}",
        "{name: admin, roles: [operate], certificates: [admin.example]}",
    )


def nobody() -> Iterable[str]:
    return ()


def admitted(house: House, accepted: frozenset[str], header: str = "", *names: str) -> Identity:
    return house.guard.admit("svc/Method", accepted, header, lambda: names, "ipv4:10.0.0.1:5")


@pytest.mark.parametrize("header", ["Bearer secret", "bearer secret", "BEARER  secret "])
def test_a_token_says_who_calls(house: House, header: str) -> None:
    assert admitted(house, INFER, header).name == "shop"
    assert house.lines() == []


def test_a_certificate_says_who_calls_and_is_not_looked_at_beside_a_token(house: House) -> None:
    assert admitted(house, READ, "", "x", "admin.example").name == "admin"
    seen: list[str] = []

    def names() -> Iterable[str]:
        seen.append("asked")
        return ()

    house.guard.admit("m", INFER, "Bearer secret", names, "")
    assert not seen


@pytest.mark.parametrize("header", ["Bearer wrong", "Basic secret", "secret", "Bearer", "Bearer "])
def test_an_unknown_token_is_refused_even_with_a_good_certificate(
    house: House, header: str
) -> None:
    with pytest.raises(Unauthenticated, match="not known"):
        admitted(house, INFER, header, "shop.example")
    assert house.lines() == [("svc/Method", "", "unknown token")]
    assert "wrong" not in house.log.read_text()


def test_a_caller_who_says_nothing_is_refused(house: House) -> None:
    with pytest.raises(Unauthenticated, match="authorization: Bearer"):
        house.guard.admit("m", INFER, "", nobody, "")
    assert house.lines() == [("m", "", "unauthenticated")]


def test_a_role_that_is_not_held_is_refused_and_told(house: House) -> None:
    with pytest.raises(Forbidden, match="takes the role operate"):
        admitted(house, OPERATE, "Bearer secret")
    with pytest.raises(Forbidden, match="admin may not do this; it takes the role infer"):
        admitted(house, INFER, "", "admin.example")
    assert house.lines() == [
        ("svc/Method", "shop", "wrong role"),
        ("svc/Method", "admin", "wrong role"),
    ]


def test_too_many_requests_are_refused_with_the_time_to_wait(house: House) -> None:
    shop = admitted(house, INFER, "Bearer secret")
    house.guard.spend(shop)
    house.guard.spend(shop)
    with pytest.raises(Refused, match="shop may send 2 requests a second") as refused:
        house.guard.spend(shop)
    assert refused.value.retry_after_ms == 500
    house.ns += 500_000_000
    house.guard.spend(shop)
    admin = admitted(house, OPERATE, "", "admin.example")
    for _ in range(1000):
        house.guard.spend(admin)


def test_a_tenant_is_the_callers_own_unless_it_may_name_any() -> None:
    own = Identity("shop", "shop", frozenset({"infer"}))
    assert tenant_of(own, "") == tenant_of(own, "shop") == "shop"
    with pytest.raises(Forbidden, match="another tenant"):
        tenant_of(own, "other")
    gateway = Identity("gateway", "*", frozenset({"infer"}))
    assert tenant_of(gateway, "other") == "other" and tenant_of(gateway, "") == ""
