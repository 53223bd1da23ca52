"""Certificates: what is checked at the start, and what happens when files change."""

from __future__ import annotations

import logging
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bench.certificates import Authority
from protos.tls import Certificates, TlsConfig, TlsFault, lifetime


def now_s() -> float:
    return time.time_ns() / 1e9


def made(**files: Any) -> Certificates:
    given: dict[str, Any] = {k: str(v) if isinstance(v, Path) else v for k, v in files.items()}
    return Certificates(
        TlsConfig(**given),
        wall_s=now_s,
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"certificate": "a"}, "tls.key is missing"),
        ({"key": "a"}, "tls.certificate is missing"),
        ({"client_ca": "a"}, "tls.client_ca is for callers"),
        ({"require_client_certificate": True}, "needs tls.certificate"),
        ({"certificate": "a", "key": "b", "require_client_certificate": True}, "client_ca"),
        ({"server_name": "x"}, "tls.server_name is for servers that are dialled"),
    ],
)
def test_settings_that_contradict_themselves(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        TlsConfig(**values)


def test_authorities_of_callers_are_those_of_servers_unless_they_are_named() -> None:
    assert TlsConfig(ca="a").callers_ca == "a"
    assert TlsConfig(ca="a", certificate="c", key="k", client_ca="b").callers_ca == "b"
    assert TlsConfig(ca="a").dials and not TlsConfig(ca="a").serves
    assert TlsConfig(certificate="c", key="k").serves


def test_each_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("one", "localhost")
    _, other = authority.issue("two", "localhost")
    nothing = tmp_path / "nothing.crt"
    nothing.write_text("no certificate")
    missing = tmp_path / "missing"
    cases: list[tuple[dict[str, Path], str]] = [
        ({"certificate": missing, "key": key}, f"tls.certificate: cannot read {missing}: No such"),
        ({"certificate": certificate, "key": missing}, f"tls.key: cannot read {missing}"),
        ({"certificate": certificate, "key": other}, f"tls.key: {other} is not the key of"),
        ({"certificate": nothing, "key": key}, f"tls.certificate: {nothing} and {key} are no"),
        ({"ca": nothing}, f"tls.ca: {nothing} holds no certificate"),
        (
            {"certificate": certificate, "key": key, "client_ca": nothing},
            f"tls.client_ca: {nothing} holds no certificate",
        ),
    ]
    for files, message in cases:
        with pytest.raises(TlsFault, match=re.escape(message)):
            made(**files)


def test_a_key_with_a_passphrase_is_refused_and_not_asked_for(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    certificate, key = Authority(tmp_path).issue("one")
    secret = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        secret.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"passphrase"),
        )
    )
    with pytest.raises(TlsFault, match="without a passphrase"):
        made(certificate=certificate, key=key)


@pytest.mark.parametrize("days", [(-3.0, 90.0), (-3.0, -1.0), (0.0, 12_000.0)])
def test_the_lifetime_of_a_certificate_is_read(tmp_path: Path, days: tuple[float, float]) -> None:
    from cryptography import x509

    certificate, _ = Authority(tmp_path).issue("one", "localhost", days=days)
    pem = certificate.read_bytes()
    known = x509.load_pem_x509_certificate(pem)
    assert lifetime(pem) == (known.not_valid_before_utc, known.not_valid_after_utc)


def test_what_is_no_certificate_has_no_lifetime() -> None:
    for text in (b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"):
        with pytest.raises(TlsFault):
            lifetime(text)


@pytest.mark.parametrize(
    ("days", "warning"),
    [((-9.0, -2.0), "has expired"), ((-9.0, 3.0), "expires on"), ((1.0, 9.0), "only from")],
)
def test_a_certificate_at_its_end_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, days: tuple[float, float], warning: str
) -> None:
    certificate, key = Authority(tmp_path).issue("one", days=days)
    with caplog.at_level(logging.WARNING):
        made(certificate=certificate, key=key)
    assert [r.getMessage() for r in caplog.records if warning in r.getMessage()]


def test_a_changed_certificate_is_taken_and_half_a_change_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("one", "localhost")
    told: list[str] = []
    held = Certificates(
        TlsConfig(certificate=str(certificate), key=str(key)), wall_s=now_s, on_change=told.append
    )
    first = held.loaded
    assert held.loaded is first and not told
    new_certificate, new_key = authority.issue("two", "localhost")
    certificate.write_bytes(new_certificate.read_bytes())
    with caplog.at_level(logging.WARNING):
        # The key does not fit yet.
        assert held.loaded is first
    assert "are not taken: tls.key" in caplog.text and not told
    key.write_bytes(new_key.read_bytes())
    assert held.loaded.certificate == new_certificate.read_bytes()
    assert told == [str(certificate)]
    certificate.unlink()
    assert held.loaded.certificate == new_certificate.read_bytes()


def test_times_of_both_forms_are_read() -> None:
    from protos import tls

    assert tls._time(0x17, b"491231235959Z") == datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert tls._time(0x17, b"500101000000Z") == datetime(1950, 1, 1, tzinfo=UTC)
    assert tls._time(0x18, b"20500101000000Z") == datetime(2050, 1, 1, tzinfo=UTC)
