"""Which Host headers name this machine's loopback, and what a browser's password becomes."""

import base64

import pytest

from controlplane.page.guard import as_bearer
from protos.exposure import is_loopback


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8901", "127.0.0.1", "127.0.0.1:8901", "127.8.9.1:1", "[::1]:8901",
     "[::1]"],
)  # fmt: skip
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["", ":8901", "example.org", "example.org:8901", "10.0.0.1:8901", "localhost.example.org",
     "127.0.0.1.example.org", "0.0.0.0:8901", "[::]:8901", "localhost:evil", "127.0.0.1@x"],
)  # fmt: skip
def test_elsewhere(host: str) -> None:
    assert not is_loopback(host)


def basic(credentials: bytes) -> str:
    return "Basic " + base64.b64encode(credentials).decode()


def test_a_browsers_password_is_the_token() -> None:
    assert as_bearer(basic(b"me:se:cret")) == "Bearer se:cret"
    assert as_bearer(basic("x:schlüssel".encode()).replace("Basic", "bAsIc")) == "Bearer schlüssel"
    for other in ("", "Bearer t", "Basic", "Basic ???", basic(b"\xff:\xff"), "Digest a"):
        assert as_bearer(other) in (other, "Bearer ")
