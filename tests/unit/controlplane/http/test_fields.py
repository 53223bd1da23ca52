"""What a body's fields may hold, and what is said of those that may not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.errors import InvalidRequest
from controlplane.http.fields import ChatBody, Reader, content_list, kind_of
from controlplane.http.foreign import FOREIGN, refuse_foreign
from controlplane.http.problems import InvalidField

READER = Reader(ChatBody)


def read(**fields: Any) -> ChatBody:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    made = READER.read(json.dumps(body).encode())
    assert isinstance(made, ChatBody)
    return made


def test_numbers_are_numbers_and_null_is_nothing() -> None:
    assert read(temperature=1).temperature == 1.0
    assert read(temperature=None, stop=None, n=None).temperature is None
    for wrong in ("1", True, [1], float("nan"), float("inf")):
        with pytest.raises(InvalidField) as told:
            read(temperature=wrong)
        assert told.value.field == "temperature"


def test_the_nested_field_is_named_by_its_path() -> None:
    with pytest.raises(InvalidField) as told:
        read(stream=True, stream_options={"include_usage": 1})
    assert told.value.field == "stream_options.include_usage"
    with pytest.raises(InvalidField) as told:
        read(messages=[{"role": "user", "content": "x"}, {"role": 7}])
    assert told.value.field == "messages.1.role"


def test_every_field_that_is_refused_by_name_is_read() -> None:
    refuse_foreign(read())
    for name in FOREIGN:
        refuse_foreign(read(**{name: None}))
        with pytest.raises(InvalidField) as told:
            # None of them asks for nothing with this value.
            refuse_foreign(read(**{name: 0.5}))
        assert told.value.field == name


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "null"),
        (True, "true"),
        (5, "5"),
        (10**40, "an integer of more than 20 digits"),
        (0.5, "0.5"),
        ("the caller's words", "a string"),
        (["the caller's words"], "an array"),
        ({"the caller's": "words"}, "an object"),
    ],
)
def test_what_came_is_told_by_kind(value: object, words: str) -> None:
    assert kind_of(value) == words


texts = st.lists(st.text(), min_size=1, max_size=4)
rows = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=4), min_size=1, max_size=4)


@given(value=texts)
def test_texts_come_through(value: list[str]) -> None:
    assert content_list("input", value, 4) == tuple(value)
    assert content_list("input", value[0], 4) == (value[0],)


@given(value=rows)
def test_token_ids_come_through(value: list[list[int]]) -> None:
    assert content_list("input", value, 4) == tuple(map(tuple, value))
    if value[0]:
        assert content_list("input", value[0], 4) == (tuple(value[0]),)


@given(raw=st.binary(max_size=40))
def test_bytes_are_read_or_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        READER.read(raw)
