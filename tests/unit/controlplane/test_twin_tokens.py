"""Tokenizers that only number the same pieces otherwise: ids of one from those of the other."""

from __future__ import annotations

import json
import time
from array import array

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from controlplane.preprocess import Preprocessor
from controlplane.registry import Registry
from controlplane.twin_tokens import split_of, twin_of
from tests.unit.controlplane.test_preprocess import two_tokenizers

PIECES = ("[UNK]", "a", "b", "film", "good", "##s", "##ly", "go", "##od", "!", "<", "s", ">", "[")


def made(
    pieces: tuple[str, ...], begin: str, end: str, *, lowercase: bool = True, extra: str = ""
) -> bytes:
    """A tokenizer's document, as those of BERT: numbers in the order of begin, end and pieces."""
    vocabulary = {piece: number for number, piece in enumerate((begin, end, *pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    marks = ((begin, vocabulary[begin]), (end, vocabulary[end]))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}", special_tokens=marks
    )
    tokenizer.add_special_tokens([begin, end, *([extra] if extra else [])])
    text: str = tokenizer.to_str()
    return text.encode()


ONE = made(PIECES, "[CLS]", "[SEP]")
OTHER = made(PIECES[::-1], "<s>", "</s>")


def read(document: bytes) -> Tokenizer:
    return Tokenizer.from_buffer(document)


ours, theirs = (split_of(read(document), document) for document in (ONE, OTHER))
assert ours is not None and theirs is not None
TWIN = twin_of(ours, theirs)
FIRST, SECOND = read(ONE), read(OTHER)


@given(text=st.text(st.characters(max_codepoint=300), max_size=40))
@example("good films! <s> goodly")
@example("[CLS] a [SEP]")
@example("Good\tGO\x00od \x1b ab")
def test_its_ids_are_those_of_the_other_wherever_it_fits(text: str) -> None:
    assert TWIN is not None
    assert TWIN.fits(text) == (text.isascii() and "<" not in text and "[" not in text)
    if TWIN.fits(text):
        assert TWIN.renumbered(FIRST.encode(text).ids) == SECOND.encode(text).ids


@pytest.mark.parametrize(
    "document",
    [
        made(PIECES, "[CLS]", "[SEP]", lowercase=False),
        made((*PIECES, "more"), "[CLS]", "[SEP]"),
        made((*PIECES, "##more"), "[CLS]", "[SEP]"),
    ],
    ids=["folds otherwise", "another piece", "another ending"],
)
def test_who_splits_otherwise_is_no_twin(document: bytes) -> None:
    split = split_of(read(document), document)
    assert split is not None and ours is not None
    assert twin_of(split, ours) is None
    assert twin_of(ours, split) is None


def test_what_is_not_known_for_sure_has_no_twin() -> None:
    assert split_of(read(letters := made(PIECES, "CLS", "[SEP]")), letters) is None
    described = json.loads(ONE)
    described["normalizer"] = {"type": "Lowercase"}
    other_steps = json.dumps(described).encode()
    assert split_of(read(other_steps), other_steps) is None
    described = json.loads(ONE)
    described["post_processor"]["single"] *= 2
    twice = json.dumps(described).encode()
    assert split_of(read(twice), twice) is None


@pytest.mark.parametrize("text", ["good films!", "a <s> film", "gööd"])
async def test_a_prepared_model_is_given_the_ids_of_every_tokenizer(text: str) -> None:
    registry, info = Registry(), two_tokenizers()
    documents = {"aa": ONE, "bb": OTHER}
    for sha256, document in documents.items():
        registry.add_tokenizer(sha256, document)
    preprocessor = Preprocessor(registry, threads=1, max_queued=1, now_ns=time.monotonic_ns)
    try:
        # One after the other, as workers bring them.
        await preprocessor.prepare({"aa": ONE})
        await preprocessor.prepare({"bb": OTHER})
        payload, _ = await preprocessor.tokenize(info, [text, "film"])
    finally:
        preprocessor.close()
    for name, tokenizer in (("words", FIRST), ("other", SECOND)):
        expected = tokenizer.encode(text).ids + tokenizer.encode("film").ids
        assert array("i", payload.ids[name]).tolist() == expected
