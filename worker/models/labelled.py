"""Reads a user's labelled items: lines of a label, a tab and a text, or of JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from worker.models.errors import CheckpointError
from worker.models.populations import Population, labelled_population
from worker.models.quality import read_labelled


@dataclass(frozen=True, slots=True)
class _Line:
    """One item: a text or its token ids, and the name or the index of its label."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    label: str | int
    text: str | None = None
    token_ids: tuple[int, ...] | None = None


_LINE: TypeAdapter[_Line] = TypeAdapter(_Line)


def read_population(path: Path, labels: Sequence[str]) -> Population:
    """Read labelled items; the file's stem is the population's name.

    A file whose first line begins with ``{`` has JSON objects, one a line, with ``label`` and
    either ``text`` or ``token_ids``, the same in all lines; others have ``label<TAB>text``.
    A label is one of ``labels``, in JSON also its index. Raises CheckpointError naming the first
    line of another form.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"text in UTF-8 in {path.name}", str(error), "convert the file"
        ) from None
    if not content.lstrip().startswith("{"):
        return labelled_population(read_labelled(path, labels))
    texts, ids, indices = [], [], []
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        item = _read_line(line, number, path.name)
        indices.append(_label(item, labels, number, path.name))
        if item.text is not None:
            texts.append(item.text)
        else:
            ids.append(item.token_ids or ())
        if texts and ids:
            raise CheckpointError(
                f"texts or token_ids in all lines of {path.name}",
                f"the other one in line {number}",
                "put them into two files",
            )
    return Population(
        path.stem,
        tuple(texts),
        tuple(indices),
        hashlib.sha256(content.encode()).hexdigest(),
        token_ids=tuple(ids),
    )


def _read_line(line: str, number: int, name: str) -> _Line:
    try:
        item = _LINE.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the line"
        raise CheckpointError(
            f"an object with label and text or token_ids in line {number} of {name}",
            f"{where}: {first['msg']}",
            "correct the file",
        ) from None
    if (item.text is None) == (not item.token_ids):
        raise CheckpointError(
            f"either text or token_ids in line {number} of {name}",
            "neither" if item.text is None else "both",
            "correct the file",
        )
    return item


def _label(item: _Line, labels: Sequence[str], number: int, name: str) -> int:
    if isinstance(item.label, int):
        if 0 <= item.label < len(labels):
            return item.label
    elif item.label in labels:
        return list(labels).index(item.label)
    raise CheckpointError(
        f"a label of {', '.join(labels)} or its index in line {number} of {name}",
        f"label {str(item.label)[:40]!r}",
        "correct the file",
    )
