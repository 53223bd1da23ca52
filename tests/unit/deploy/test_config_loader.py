"""Configuration errors say where they are, what came, and what would have been right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deploy.config import ConfigError, load_config


@dataclass(frozen=True, slots=True)
class Queue:
    max_items: int = 100
    max_work_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Klass:
    minimum_quality: float = 0.0
    prohibited: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Settings:
    listen: str = "127.0.0.1:0"
    policy: str = "orchid"
    queue: Queue = field(default_factory=Queue)
    models: tuple[str, ...] = ()
    classes: Mapping[str, Klass] = field(default_factory=dict)
    repository: Path = Path("models")
    spinning: bool = False

    def __post_init__(self) -> None:
        if self.policy not in ("orchid", "cheap"):
            raise ValueError("policy must be orchid or cheap")


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "orchid.yaml"
    path.write_text(text)
    return path


def test_defaults_need_no_source() -> None:
    assert load_config(Settings, "controlplane") == Settings()


def test_the_file_section_fills_nested_values_and_leaves_other_sections_alone(
    tmp_path: Path,
) -> None:
    path = written(
        tmp_path,
        "controlplane:\n  listen: 0.0.0.0:1\n  queue: {max_items: 7}\n  models: [a, b]\n"
        "  classes:\n    batch: {minimum_quality: 0.5, prohibited: [x]}\n"
        "worker:\n  whatever: 1\n",
    )
    assert load_config(Settings, "controlplane", path) == Settings(
        listen="0.0.0.0:1",
        queue=Queue(max_items=7),
        models=("a", "b"),
        classes={"batch": Klass(0.5, ("x",))},
    )


def test_variables_win_over_the_file_key_by_key(tmp_path: Path) -> None:
    path = written(tmp_path, "controlplane:\n  queue: {max_items: 7, max_work_ms: 3}\n")
    env = {
        "ORCHID_CONTROLPLANE_QUEUE__MAX_ITEMS": "9",
        "ORCHID_CONTROLPLANE_LISTEN": "8900",
        "ORCHID_CONTROLPLANE_MODELS": "a, b",
        "ORCHID_CONTROLPLANE_CLASSES": "{x: {prohibited: [y]}}",
        "ORCHID_CONTROLPLANE_CLASSES__Z__MINIMUM_QUALITY": "0.25",
        "ORCHID_CONTROLPLANE_SPINNING": "true",
        "ORCHID_WORKER_NONSENSE": "not read for this section",
        "ORCHID_REPOSITORY": "not a section",
    }
    assert load_config(Settings, "controlplane", path, env) == Settings(
        listen="8900",
        queue=Queue(max_items=9, max_work_ms=3.0),
        models=("a", "b"),
        classes={"x": Klass(prohibited=("y",)), "z": Klass(0.25)},
        spinning=True,
    )


def test_overrides_win_over_everything() -> None:
    env = {"ORCHID_CONTROLPLANE_POLICY": "orchid"}
    loaded = load_config(Settings, "controlplane", None, env, {"policy": "cheap"})
    assert loaded.policy == "cheap"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "controlplane:\n  lisen: x\n",
            r"orchid.yaml:2: controlplane.lisen: unknown key 'lisen'; did you mean 'listen'",
        ),
        (
            "controlplane:\n  queue:\n    max_itms: 1\n",
            r"orchid.yaml:3: controlplane.queue.max_itms: .* did you mean 'max_items'",
        ),
        ("controlplane:\n  classes: {a: {prohibit: []}}\n", r"did you mean 'prohibited'"),
        ("controlplane:\n  zzz: 1\n", r"unknown key 'zzz'; known are classes, listen, models"),
        (
            "controlplan: {}\n",
            r"orchid.yaml:1: controlplan: unknown section .* did you mean 'controlplane'",
        ),
        (
            "controlplane:\n  queue: {max_items: many}\n",
            r"orchid.yaml:2: controlplane.queue.max_items: .*valid integer.*got 'many'",
        ),
        ("controlplane: 3\n", r"orchid.yaml:1: controlplane: expected keys and values, got 3"),
        ("[1]\n", r"expected sections controlplane, decode, worker"),
        ("a: [\n", r"orchid.yaml:2: is not valid YAML: while parsing a flow node"),
        ("controlplane:\n\tpolicy: x\n", r"orchid.yaml:2: is not valid YAML: .*character '.t'"),
        (
            "controlplane:\n  policy: orchid\n  queue: {}\n  policy: cheap\n",
            r"orchid.yaml:4: controlplane.policy: is there twice, first at .*orchid.yaml:2: ",
        ),
        # Cut while it was written, perhaps; whose defaults would be in force is nobody's wish.
        ("", r"orchid.yaml: is empty; a configuration has a section: controlplane, decode"),
        ("# nothing but a word\n", r"orchid.yaml: is empty"),
        ("controlplane: &a {queue: *a}\n", r"a mapping contains itself"),
        ("controlplane: {policy: fast}\n", r"^controlplane: policy must be orchid or cheap"),
    ],
)
def test_a_fault_in_the_file_is_placed_and_explained(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(Settings, "controlplane", written(tmp_path, text))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "ORCHID_CONTROLPLANE_POLCY",
            "x",
            "ORCHID_CONTROLPLANE_POLCY: unknown key 'polcy'; did you mean 'policy'",
        ),
        ("ORCHID_CONTROLPLANE_QUEUE__MAX_ITEM", "1", "did you mean 'max_items'"),
        (
            "ORCHID_CONTROLPLANE_QUEUE__MAX_ITEMS",
            "x",
            "ORCHID_CONTROLPLANE_QUEUE__MAX_ITEMS: .*integer.*got 'x'",
        ),
        ("ORCHID_CONTROLPLANE_QUEUE", "[", "ORCHID_CONTROLPLANE_QUEUE: .*got '\\['"),
    ],
)
def test_a_fault_in_a_variable_names_the_variable(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(Settings, "controlplane", None, {name: value})


def test_a_file_of_other_bytes_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "orchid.yaml"
    path.write_bytes(b"\xaa\xff")
    with pytest.raises(ConfigError, match=r"orchid.yaml: is not UTF-8 text"):
        load_config(Settings, "controlplane", path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(Settings, "controlplane", tmp_path / "none.yaml")
