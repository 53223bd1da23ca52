"""Text of answers in pieces: nothing is split, lost or told twice, and stops cut where they say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from worker.generation.answer import Answer
from worker.generation.records import Delta, Finish
from worker.generation.sampling import Sampler, SamplingParameters
from worker.generation.stops import StopStrings
from worker.generation.text import TextStream, TokenText
from worker.models.synthetic_generator import tiny_generator_tokenizer

BYTE_LEVEL = tiny_generator_tokenizer()
SIZE = BYTE_LEVEL.get_vocab_size()
BYTE_TEXT = TokenText(BYTE_LEVEL)


def sentencepiece_like() -> Tokenizer:
    """Metaspace words and single bytes, as LLaMA's tokenizers decode them."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", "▁the", "▁cat", "s", "é", "日"]
    tokenizer = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[]))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(w, special=True) for w in words[:3]])
    return tokenizer


SENTENCES = sentencepiece_like()
SENTENCE_TEXT = TokenText(SENTENCES)
WORD_PIECES = [1, 2, *range(SENTENCES.get_vocab_size() - 6, SENTENCES.get_vocab_size())]


def pieces(stream: TextStream, tokens: Sequence[int]) -> list[str]:
    return [*(stream.push(token) for token in tokens), stream.rest()]


@settings(deadline=None)
@given(st.lists(st.integers(0, SIZE - 1), max_size=80))
def test_pieces_of_bytes_are_the_text_of_all_tokens(tokens: list[int]) -> None:
    assert "".join(pieces(BYTE_TEXT.stream(), tokens)) == BYTE_LEVEL.decode(tokens)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_characters_are_never_split(text: str) -> None:
    tokens = BYTE_LEVEL.encode(text).ids
    *made, rest = pieces(BYTE_TEXT.stream(), tokens)
    # What reads as a special token has no text.
    assert "".join(made) == BYTE_LEVEL.decode(tokens)
    assert rest == ""
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in made)


@settings(deadline=None)
@given(st.lists(st.one_of(st.sampled_from(WORD_PIECES), st.sampled_from("aé日😀")), max_size=30))
def test_pieces_of_other_tokenizers_too(parts: list[int | str]) -> None:
    tokens: list[int] = []
    for part in parts:
        # A run of byte tokens is valid as a whole or not at all, so whole characters only.
        tokens += [3 + byte for byte in part.encode()] if isinstance(part, str) else [part]
    made = pieces(SENTENCE_TEXT.stream(), tokens)
    assert "".join(made) == SENTENCES.decode(tokens)


def test_invalid_bytes_without_end_are_not_held_for_ever() -> None:
    made = pieces(SENTENCE_TEXT.stream(), [3 + 0xFF] * 500)
    assert max(map(len, made)) < 40
    assert set("".join(made)) == {"\N{REPLACEMENT CHARACTER}"}


def test_tokens_have_their_bytes() -> None:
    ids = BYTE_LEVEL.encode("é the").ids
    assert b"".join(BYTE_TEXT.token(token) for token in ids) == "é the".encode()
    assert BYTE_TEXT.token(0) == b"<|endoftext|>"
    assert BYTE_TEXT.token(10_000) == b""
    assert [SENTENCE_TEXT.token(t) for t in (3 + 0xE9, WORD_PIECES[3])] == [b"\xe9", b" the"]
    assert SENTENCE_TEXT.token(10_000) == b""


def plainly_cut(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The text before the stop string that is complete first, found character by character."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


letters = st.text("ab.", min_size=1, max_size=4)


@settings(deadline=None)
@given(parts=st.lists(st.text("ab.", max_size=5), max_size=20), stops=st.lists(letters, max_size=4))
def test_stops_cut_the_same_in_whatever_pieces(parts: list[str], stops: list[str]) -> None:
    passing = StopStrings(stops)
    text, stop = "", None
    for part in parts:
        passed = passing.push(part)
        text += passed.text
        stop = passed.stop
        # Nothing that was let through is ever a part of a stop string that comes later.
        whole, _ = plainly_cut("".join(parts), stops)
        assert whole.startswith(text)
        if stop is not None:
            break
    else:
        text += passing.rest()
    assert (text, stop) == plainly_cut("".join(parts), stops)


def answer_of(stops: Sequence[str] = (), most: int = 1000, ends: Sequence[int] = (0, 2)) -> Answer:
    return Answer(
        0,
        sampler=Sampler(SamplingParameters(), None, vocabulary=SIZE, logprobs=2),
        text=BYTE_TEXT.stream(),
        stops=StopStrings(stops),
        end_tokens=frozenset(ends),
        max_tokens=most,
        content=BYTE_TEXT.token,
    )


def feed(answer: Answer, tokens: Sequence[int]) -> list[Delta]:
    """Rows of logits whose most likely tokens are these, until the answer ends."""
    deltas = []
    for token in tokens:
        chosen, delta = answer.choose(np.eye(SIZE, dtype=np.float32)[token] * 9)
        assert chosen == token
        deltas.append(delta)
        if answer.finished is not None:
            return deltas
    deltas.append(answer.cut(Finish.DEADLINE))
    return deltas


@settings(deadline=None)
@given(
    tokens=st.lists(st.integers(0, SIZE - 1), max_size=60),
    stops=st.lists(st.text("athe é", min_size=1, max_size=3), max_size=3),
    most=st.integers(1, 60),
)
def test_an_answer_is_the_text_of_its_tokens_cut_at_its_end(
    tokens: list[int], stops: list[str], most: int
) -> None:
    answer = answer_of(stops, most)
    deltas = feed(answer, tokens)
    made = tokens[: min(most, len(tokens))]
    ended = next((i for i, token in enumerate(made) if token in (0, 2)), None)
    before = made if ended is None else made[:ended]
    text, stop = plainly_cut(BYTE_LEVEL.decode(before), stops)
    assert "".join(delta.text for delta in deltas) == text
    assert answer.finished is not None
    assert answer.finished.stop == (stop or "")
    told = [token for delta in deltas for token in delta.tokens]
    assert told == before[: len(told)]
    if stop is not None or ended is not None:
        assert answer.finished.reason is Finish.STOP
    else:
        assert told == made
        reason = Finish.LENGTH if len(tokens) >= most else Finish.DEADLINE
        assert answer.finished.reason is reason


def test_end_tokens_are_no_part_of_an_answer_unless_they_are_ignored() -> None:
    tokens = [*BYTE_LEVEL.encode("hi").ids, 2, *BYTE_LEVEL.encode("!").ids]
    ending = answer_of()
    assert [d.text for d in feed(ending, tokens)] == ["h", "i", ""]
    assert ending.finished is not None
    assert (ending.finished.reason, ending.finished.generated_tokens) == (Finish.STOP, 3)
    going_on = answer_of(most=4, ends=())
    deltas = feed(going_on, tokens)
    # The end token is told, and like all special ones has no text.
    assert [d.text for d in deltas] == ["h", "i", "", "!"]
    assert [token for d in deltas for token in d.tokens] == tokens


def test_log_probabilities_come_with_their_tokens() -> None:
    (first, *_) = feed(answer_of(), BYTE_LEVEL.encode("h").ids)
    (scored,) = first.scores
    assert (scored.chosen.content, len(scored.alternatives)) == (b"h", 2)
    assert scored.alternatives[0] == scored.chosen
    assert scored.chosen.logprob == pytest.approx(9 - np.log(np.exp(9) + SIZE - 1))
