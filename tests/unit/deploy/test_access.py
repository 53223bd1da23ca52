"""How commands reach a cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from deploy.access import Access, AccessError, access_from
from deploy.channels import aio_channel, channel
from deploy.cli.access import reaching


def test_variables_say_whom_to_trust_and_who_calls(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("abc\n")
    found = access_from(
        {
            "ORCHID_TLS_CA": "ca.crt",
            "ORCHID_TLS_CERT": "me.crt",
            "ORCHID_TLS_KEY": "me.key",
            "ORCHID_TLS_SERVER_NAME": "orchid.example",
            "ORCHID_TOKEN_FILE": str(secret),
        }
    )
    assert found == Access(
        ca="ca.crt",
        certificate="me.crt",
        key="me.key",
        server_name="orchid.example",
        token="abc",
    )
    assert found.encrypted and found.metadata == (("authorization", "Bearer abc"),)
    assert not access_from({}).encrypted and access_from({"ORCHID_TLS": "1"}).encrypted
    assert access_from({"ORCHID_TOKEN": "x", "ORCHID_TOKEN_FILE": "/missing"}).token == "x"


def test_files_that_cannot_be_read_are_named() -> None:
    with pytest.raises(AccessError, match="cannot read /missing: No such file"):
        access_from({"ORCHID_TOKEN_FILE": "/missing"})
    with pytest.raises(AccessError, match="cannot read /missing"):
        channel("127.0.0.1:1", access=Access(ca="/missing"))


async def test_a_token_goes_to_other_machines_encrypted_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ORCHID_TOKEN", "abc")
    with pytest.raises(AccessError, match=r"the token would go to 10\.0\.0\.7:1 in plain text"):
        channel("10.0.0.7:1")
    with pytest.raises(AccessError, match="plain text"):
        aio_channel("10.0.0.7:1")
    channel("127.0.0.1:1").close()
    monkeypatch.setenv("ORCHID_INSECURE", "1")
    channel("10.0.0.7:1").close()
    await aio_channel("10.0.0.7:1").close()


def test_options_set_the_variables_that_child_processes_inherit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ORCHID_TLS_CA", "ORCHID_TOKEN"):
        monkeypatch.setenv(name, "")
    seen: list[tuple[str, str, str]] = []

    def command(word: str, short: Annotated[str, typer.Option("--class")] = "") -> None:
        """Does something."""
        seen.append((word, short, os.environ["ORCHID_TLS_CA"] + os.environ["ORCHID_TOKEN"]))

    app = typer.Typer()
    app.command()(reaching(command))
    options = ["w", "--class", "c", "--tls-ca", "ca.crt", "--token", "abc"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    assert seen == [("w", "c", "ca.crtabc")]
    assert "--tls-server-name" in CliRunner().invoke(app, ["--help"]).output
