"""Typed configuration: one YAML file and environment variables into frozen dataclasses.

The file has one section per process (`controlplane:`, `worker:`, and `decode:` for what decode
workers are told beyond that). A variable is
`ORCHID_<SECTION>_<KEY>`, nested keys joined by two underscores, for example
`ORCHID_CONTROLPLANE_QUEUE__MAX_ITEMS=500`; it wins over the file.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

SECTIONS = ("controlplane", "worker", "decode")

T = TypeVar("T")
KeyPath = tuple[str, ...]


class ConfigError(Exception):
    """The configuration cannot be used; the text says where, what came and what was expected."""


def load_config(
    cls: type[T],
    section: str,
    path: Path | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    base: str = "",
    defaults: Mapping[str, Any] | None = None,
) -> T:
    """Builds `cls` from its defaults, the file's section, the environment, and `overrides`.

    Later sources win, key by key. `overrides` are the values of command-line options; a mapping
    there replaces what it names and leaves the rest. What the
    section `base` and its variables say goes before all that, then `defaults`.
    Raises ConfigError for an unreadable or empty file, an unknown key (naming the nearest known
    one), or a value of the wrong type, each with its place.
    """
    values: dict[str, Any] = {}
    places: dict[KeyPath, str] = {}
    for name in filter(None, (base, section)):
        if name == section:
            values |= defaults or {}
        if path is not None:
            values |= _read_section(path, name, places)
        for variable, text in sorted((env or {}).items()):
            keys = _variable_keys(variable, name)
            if keys:
                _insert(cls, values, keys, text, places, variable)
    for key, value in (overrides or {}).items():
        _check_key(cls, key, f"option {key}")
        before = values.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            value = {**before, **value}
        values[key] = value
        places[(key,)] = f"option {key}"
    _check_keys(cls, values, (), places)
    try:
        return TypeAdapter(cls).validate_python(values)
    except ValidationError as error:
        raise ConfigError(_explain(error, section, places)) from None


def _read_section(path: Path, section: str, places: dict[KeyPath, str]) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: {error.reason}") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(_not_yaml(path, error)) from None
    if document is None:
        # A file that was cut while it was written, and not the wish for defaults everywhere.
        raise ConfigError(f"{path}: is empty; a configuration has a section: {_listed(SECTIONS)}")
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: expected sections {_listed(SECTIONS)}, got {document!r:.60}")
    found: dict[KeyPath, str] = {}
    try:
        _remember_places(root, (), path, found)
    except RecursionError:
        raise ConfigError(f"{path}: a mapping contains itself") from None
    for name in document:
        if name not in SECTIONS:
            raise ConfigError(_unknown(found[(str(name),)], "section", str(name), SECTIONS))
    values = document.get(section) or {}
    if not isinstance(values, dict):
        raise ConfigError(f"{found[(section,)]}: expected keys and values, got {values!r:.60}")
    places.update({keys[1:]: place for keys, place in found.items() if keys[0] == section})
    return values


def _not_yaml(path: Path, error: yaml.YAMLError) -> str:
    """What is wrong and in which line, as far as the reader knows."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        problem = f"{error.context or ''} {error.problem or ''}".strip()
        return f"{path}:{error.problem_mark.line + 1}: is not valid YAML: {problem}"
    return f"{path}: is not valid YAML: {error}"


def _remember_places(
    node: yaml.Node | None, keys: KeyPath, path: Path, places: dict[KeyPath, str]
) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = (*keys, str(key.value))
            place = f"{path}:{key.start_mark.line + 1}: {'.'.join(name)}"
            if name in places:
                raise ConfigError(f"{place}: is there twice, first at {places[name]}")
            places[name] = place
            _remember_places(value, name, path, places)


def _variable_keys(name: str, section: str) -> KeyPath:
    prefix = f"ORCHID_{section.upper()}_"
    if not name.startswith(prefix) or name == prefix:
        return ()
    return tuple(part.lower() for part in name[len(prefix) :].split("__"))


def _insert(
    cls: Any,
    values: dict[str, Any],
    keys: KeyPath,
    text: str,
    places: dict[KeyPath, str],
    variable: str,
) -> None:
    """Puts a variable's text at its key path, as the type that stands there wants it."""
    target, inside = cls, values
    for depth, key in enumerate(keys):
        _check_key(target, key, variable)
        target = _child_type(target, key)
        if depth == len(keys) - 1:
            inside[key] = _parse(text, target)
            break
        nested = inside.get(key)
        inside[key] = dict(nested) if isinstance(nested, dict) else {}
        inside = inside[key]
    places[keys] = variable


def _parse(text: str, target: Any) -> Any:
    """A scalar stays text (the validator converts it); a container is YAML or a comma list."""
    plain = _without_none(target)
    origin = typing.get_origin(plain) or plain
    if is_dataclass(plain) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return _yaml_or_text(text)
    if isinstance(origin, type) and issubclass(origin, Collection) and origin not in (str, bytes):
        if text.lstrip().startswith("["):
            return _yaml_or_text(text)
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _yaml_or_text(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _without_none(target: Any) -> Any:
    options = [option for option in typing.get_args(target) if option is not type(None)]
    is_optional = type(None) in typing.get_args(target)
    return options[0] if is_optional and len(options) == 1 else target


def _known_keys(cls: Any) -> tuple[str, ...] | None:
    """Key names of a dataclass; None where any key is allowed."""
    plain = _without_none(cls)
    return tuple(entry.name for entry in fields(plain)) if is_dataclass(plain) else None


def _child_type(cls: Any, key: str) -> Any:
    plain = _without_none(cls)
    if isinstance(plain, type) and is_dataclass(plain):
        return typing.get_type_hints(plain)[key]
    arguments = typing.get_args(plain)
    origin = typing.get_origin(plain)
    if isinstance(origin, type) and issubclass(origin, Mapping) and len(arguments) == 2:
        return arguments[1]
    return Any


def _check_key(cls: Any, key: str, place: str) -> None:
    known = _known_keys(cls)
    if known is not None and key not in known:
        raise ConfigError(_unknown(place, "key", key, known))


def _check_keys(cls: Any, value: Any, keys: KeyPath, places: Mapping[KeyPath, str]) -> None:
    if not isinstance(value, dict):
        return
    for key, nested in value.items():
        path = (*keys, str(key))
        _check_key(cls, str(key), _place(path, places))
        _check_keys(_child_type(cls, str(key)), nested, path, places)


def _unknown(place: str, what: str, name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {_listed(known)}"
    return f"{place}: unknown {what} {name!r}; {hint}"


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


def _place(keys: KeyPath, places: Mapping[KeyPath, str]) -> str:
    """The most precise place known for a key path."""
    for length in range(len(keys), 0, -1):
        if keys[:length] in places:
            rest = keys[length:]
            return ".".join((places[keys[:length]], *rest))
    return ".".join(keys)


def _explain(error: ValidationError, section: str, places: Mapping[KeyPath, str]) -> str:
    lines = []
    for fault in error.errors(include_url=False):
        keys = tuple(str(part) for part in fault["loc"])
        place = _place(keys, places) if keys else section
        # Of a fault between keys the input is the whole section.
        whole = fault["type"] == "missing" or isinstance(fault["input"], Mapping)
        came = "" if whole else f", got {fault['input']!r:.80}"
        message = fault["msg"].removeprefix("Value error, ")
        lines.append(f"{place}: {message}{came}")
    return "\n".join(lines)
