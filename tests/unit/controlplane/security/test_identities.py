"""The file of identities: what it may say, and what happens when it changes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from controlplane.policy.rates import Rate
from controlplane.security.identities import IdentityFault, IdentityFile, read_identities

SECOND = 1_000_000_000


def sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def document(*entries: str) -> bytes:
    return ("identities:\n" + "".join(f"  - {entry}\n" for entry in entries)).encode()


SHOP = (
    f"{{name: shop, tenant: shop, roles: [infer], token_sha256: [{sha256('one')}, "
    f"{sha256('two')}], requests_per_s: 5, burst: 9}}"
)
NODE = "{name: node, roles: [worker], certificates: [worker.example, 'spiffe://example/worker']}"


def test_tokens_and_certificates_name_identities() -> None:
    known = read_identities(document(SHOP, NODE))
    shop = known.of_token("one")
    assert shop is not None and shop is known.of_token("two")
    assert (shop.name, shop.tenant, shop.roles) == ("shop", "shop", frozenset({"infer"}))
    assert shop.rate == Rate(5.0, 9)
    assert known.of_token("three") is None and known.of_token("") is None
    node = known.of_certificate(["unknown", "spiffe://example/worker"])
    assert node is not None and node.name == "node" and not node.rate.bounded
    assert known.of_certificate([]) is None and known.of_certificate(["shop"]) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "the document"),
        (b"identities: 5", "identities: Input should be a valid array"),
        (b"identities: [", "line 2: is not YAML"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"identities: &a [*a]", "is not YAML"),
        (b"{identities: [], more: 1}", "more"),
        (document("{name: x, roles: [infer], token_sha256: [ab]}"), "token_sha256"),
        (document("{name: x, roles: [root], certificates: [a]}"), "roles"),
        (document("{name: x, roles: [], certificates: [a]}"), "roles"),
        (document("{name: x, roles: [operate]}"), "neither token_sha256 nor certificates"),
        (document("{name: x, roles: [infer], certificates: [a]}"), "no tenant to charge"),
        (document("{name: x, roles: [operate], certificates: [a], burst: -1}"), "burst"),
        (document(NODE, NODE), "'node' appears twice"),
        (document(NODE, NODE.replace("name: node", "name: other")), "of another"),
        (document(SHOP, SHOP.replace("name: shop", "name: other")), "a token of another"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(text: bytes, message: str) -> None:
    with pytest.raises(IdentityFault, match=message) as caught:
        read_identities(text)
    assert sha256("one") not in str(caught.value)


class Clock:
    ns = 0

    def now_ns(self) -> int:
        return self.ns


def replaced(path: Path, content: bytes) -> None:
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    partial.replace(path)


def test_a_changed_file_is_taken_within_a_second_and_a_broken_one_never(tmp_path: Path) -> None:
    path, clock, told = tmp_path / "identities.yaml", Clock(), list[str]()
    path.write_bytes(document(SHOP))
    file = IdentityFile(path, now_ns=clock.now_ns, on_change=told.append)
    assert file.current().of_token("one") is not None
    replaced(path, document(SHOP.replace(sha256("one"), sha256("new"))))
    # The file is looked at once a second, not at each request.
    assert file.current().of_token("new") is None
    clock.ns += SECOND
    assert file.current().of_token("new") is not None
    assert file.current().of_token("one") is None
    assert told == [""]
    replaced(path, b"identities: [")
    clock.ns += SECOND
    assert file.current().of_token("new") is not None
    assert len(told) == 2 and "is not YAML" in told[1]
    path.unlink()
    for _ in range(5):
        clock.ns += SECOND
        assert file.current().of_token("new") is not None
    # Once, not each second that it is missing.
    assert len(told) == 3 and "No such file" in told[2]
    replaced(path, document(SHOP))
    clock.ns += SECOND
    assert file.current().of_token("one") is not None
    path.unlink()
    clock.ns += SECOND
    file.current()
    assert told[3] == "" and "No such file" in told[4] and len(told) == 5


def test_a_file_that_is_not_there_keeps_the_process_from_starting(tmp_path: Path) -> None:
    path = tmp_path / "missing.yaml"
    with pytest.raises(IdentityFault, match=f"identities: cannot read {path}: No such file"):
        IdentityFile(path, now_ns=Clock().now_ns, on_change=print)
