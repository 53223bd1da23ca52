"""`orchid token` makes entries that the control plane reads."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from controlplane.security.identities import read_identities
from deploy.cli import app


def test_a_drawn_token_is_known_by_its_entry() -> None:
    entries = []
    tokens = []
    for arguments in (
        ["shop", "--tenant", "shop: {1}"],
        ["plane", "--role", "operate", "--role", "worker"],
    ):
        result = CliRunner().invoke(app, ["token", *arguments])
        assert result.exit_code == 0, result.output
        entries.append(result.stderr)
        tokens.append(result.stdout.strip())
        assert tokens[-1] not in result.stderr
    known = read_identities(("identities:\n" + "".join(entries)).encode())
    shop, plane = (known.of_token(each) for each in tokens)
    assert shop is not None and (shop.tenant, shop.roles) == ("shop: {1}", frozenset({"infer"}))
    assert plane is not None and plane.roles == frozenset({"operate", "worker"})


@pytest.mark.parametrize(
    ("arguments", "told"), [(["x"], "tenant"), (["x", "--role", "root"], "no role root")]
)
def test_what_makes_no_entry_is_said(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(app, ["token", *arguments])
    assert result.exit_code == 1 and told in result.output
