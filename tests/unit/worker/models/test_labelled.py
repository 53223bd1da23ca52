"""Labelled items as users write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.models.errors import CheckpointError
from worker.models.labelled import read_population

LABELS = ("sports", "arts", "science")


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "mine.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_lines_of_json_have_texts_with_names_or_indices_of_labels(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '{"text": "a goal", "label": "sports"}\n\n{"label": 2, "text": "an\\ttom"}\n',
    )
    found = read_population(path, LABELS)
    assert (found.name, found.texts, found.labels) == ("mine", ("a goal", "an\ttom"), (0, 2))
    assert found.token_ids == ()


def test_lines_of_json_may_have_token_ids(tmp_path: Path) -> None:
    path = written(tmp_path, '{"token_ids": [2, 7], "label": 1}\n{"token_ids": [3], "label": 0}\n')
    found = read_population(path, LABELS)
    assert (found.texts, found.token_ids, found.labels) == ((), ((2, 7), (3,)), (1, 0))


def test_other_files_have_a_label_a_tab_and_a_text(tmp_path: Path) -> None:
    found = read_population(written(tmp_path, "arts\ta play\nsports\ta goal\n"), LABELS)
    assert (found.texts, found.labels) == (("a play", "a goal"), (1, 0))


def test_content_is_the_source(tmp_path: Path) -> None:
    line = '{"text": "a goal", "label": 0}\n'
    one = read_population(written(tmp_path, line), LABELS).source
    assert read_population(written(tmp_path, line), LABELS).source == one
    assert read_population(written(tmp_path, line * 2), LABELS).source != one


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ('{"text": "a", "label": "music"}', "sports, arts, science or its index in line 1"),
        ('{"text": "a", "label": 3}', "index in line 1"),
        ('{"text": "a", "label": 0}\n{"text": "a"}', "line 2 of mine.jsonl; got label"),
        ('{"text": "a", "label": 0, "more": 1}', "got more"),
        ('{"label": 0}', "got neither"),
        ('{"token_ids": [], "label": 0}', "got neither"),
        ('{"text": "a", "token_ids": [1], "label": 0}', "got both"),
        ('{"text": "a", "label": 0}\n{"token_ids": [1], "label": 0}', "the other one in line 2"),
        ('{"text": "a", "label"', "line 1"),
        ("music\ta", "line 1"),
    ],
)
def test_the_first_line_of_another_form_is_named(tmp_path: Path, lines: str, fault: str) -> None:
    with pytest.raises(CheckpointError, match=fault):
        read_population(written(tmp_path, lines + "\n"), LABELS)


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="UTF-8"):
        read_population(written(tmp_path, b'{"text": "\xff"}'), LABELS)
