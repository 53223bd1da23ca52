"""The images: what they listen on, who they run as, and what they leave out."""

from __future__ import annotations

import json
import re

import pytest

from deploy.config import ConfigError
from protos.exposure import is_local
from tests.unit.deploy.manifests import DEPLOY, IMAGE_CONFIG, port_of, settings_of

TEXT = re.sub(r"\\\n\s*", " ", (DEPLOY / "containers" / "Containerfile").read_text())


def stages() -> dict[str, tuple[str, list[str]]]:
    """Base and instructions of each stage by name."""
    found: dict[str, tuple[str, list[str]]] = {}
    for line in TEXT.splitlines():
        words = line.split()
        if line.startswith("FROM "):
            lines: list[str] = []
            found[words[3]] = (words[1], lines)
        elif words and found and not line.startswith("#"):
            lines.append(line)
    return found


def whole(name: str) -> list[str]:
    """A stage's instructions, those of the stages it stands on before."""
    base, lines = stages()[name]
    return [*(whole(base) if base in stages() else ()), *lines]


def test_health_checks_ask_where_the_processes_listen() -> None:
    for name in ("controlplane", "worker"):
        env = {f"ORCHID_{name.upper()}_INSECURE": "true"}
        settings = settings_of(name, IMAGE_CONFIG, env)
        (check,) = (line for line in whole(name) if line.startswith("HEALTHCHECK"))
        command = json.loads(check[check.index("[") :])
        assert command[:2] == ["orchid", "ready"]
        # On loopback, so that it is the same whether others need certificates or not.
        assert command[2] == settings.health_listen
        assert is_local(settings.health_listen)
        exposed = next(line for line in whole(name) if line.startswith("EXPOSE")).split()[1:]
        assert str(port_of(settings.listen)) in exposed
        (command_line,) = (line for line in whole(name) if line.startswith("CMD "))
        assert json.loads(command_line.removeprefix("CMD ")) == [name]


def test_every_image_runs_as_a_numeric_user_without_a_compiler() -> None:
    for name in ("controlplane", "worker", "models", "load"):
        users = [line.split()[1] for line in whole(name) if line.startswith("USER")]
        assert users == ["10001:10001"], name
        installed = " ".join(line for line in whole(name) if line.startswith("RUN"))
        assert not re.search(r"g\+\+|gcc|build-essential|python3-dev", installed), name


def test_the_context_has_what_is_copied() -> None:
    ignored = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert "*" in ignored
    for line in TEXT.splitlines():
        words = line.split()
        if words[:1] == ["COPY"] and not words[1].startswith("--from"):
            for source in words[1:-1]:
                assert source.split("/")[0] in kept, source
                assert (DEPLOY.parent / source).exists(), source


@pytest.mark.parametrize("name", ["controlplane", "worker"])
def test_an_image_that_is_told_nothing_refuses_to_speak_plain_text(name: str) -> None:
    with pytest.raises(ConfigError, match="insecure"):
        settings_of(name, IMAGE_CONFIG, {})
