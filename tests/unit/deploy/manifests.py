"""Reads the files that containers and clusters are made of, for tests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from controlplane.config import ControlPlaneConfig
from deploy.config import load_config
from deploy.services import worker_config
from worker.config import WorkerConfig

DEPLOY = Path(__file__).parents[3] / "deploy"
COMPOSE = DEPLOY / "compose" / "docker-compose.yml"
SECURED = DEPLOY / "compose" / "secured.yml"
KUBERNETES = DEPLOY / "kubernetes"
IMAGE_CONFIG = DEPLOY / "containers" / "orchid.yaml"
CLUSTER_CONFIG = KUBERNETES / "base" / "orchid.yaml"
PARTS = ("controlplane", "worker", "decode")
# A variable of a compose file, and its default.
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")

Object = dict[str, Any]


def yaml_files() -> list[Path]:
    """Every YAML file below deploy."""
    return sorted(path for path in DEPLOY.rglob("*.y*ml") if path.suffix in (".yml", ".yaml"))


def compose(path: Path = COMPOSE) -> Object:
    """A compose file with every variable at its default."""
    text = VARIABLE.sub(r"\2", path.read_text())
    assert "${" not in text, "a variable of the compose file has no default"
    document: Object = yaml.safe_load(text)
    return document


def objects(*folders: str) -> Iterator[Object]:
    """The objects as the files of these folders below kubernetes/ have them."""
    for folder in folders:
        for path in sorted((KUBERNETES / folder).glob("*.yaml")):
            if path.name not in ("kustomization.yaml", "orchid.yaml"):
                yield from (each for each in yaml.safe_load_all(path.read_text()) if each)


def by_kind(kind: str, *folders: str) -> dict[str, Object]:
    """Objects of a kind by name."""
    found = objects(*(folders or ("base",)))
    return {each["metadata"]["name"]: each for each in found if each["kind"] == kind}


def env_of(container: Object) -> dict[str, str]:
    """Variables of a pod's container; what only the cluster knows is made up."""
    env = {each["name"]: each.get("value", "x") for each in container.get("env", ())}
    return {key: value.replace("$(POD_IP)", "10.0.0.1") for key, value in env.items()}


def part_of(name: str) -> str:
    """Which process a service or deployment runs: one of PARTS."""
    return name.removeprefix("orchid-")


def settings_of(
    part: str, config: Path, env: Mapping[str, str]
) -> ControlPlaneConfig | WorkerConfig:
    """What a process would be told; raises ConfigError for a key or value that it refuses."""
    if part == "controlplane":
        return load_config(ControlPlaneConfig, "controlplane", config, env)
    overrides = {"worker_class": "decode"} if part == "decode" else {}
    return worker_config(config, env, overrides)


def port_of(address: str) -> int:
    """The port of host:port."""
    return int(address.rpartition(":")[2])
