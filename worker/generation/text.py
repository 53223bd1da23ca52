"""Turns tokens back into text, piece by piece, never splitting a character.

The pieces of a sequence are together what decoding all of its tokens at once gives. For tokenizers
of bytes this holds by construction: a token stands for fixed bytes. For others it rests on their
decoder, which is asked for the text of a window of the last tokens.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer

from worker.errors import ModelLoadError

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A character has four bytes at most; tokens beyond so many that end in none hold invalid ones.
_MOST_HELD = 16


class TextStream(Protocol):
    """The text of one sequence as its tokens come."""

    def push(self, token: int) -> str:
        """The text that this token completes; empty inside a character."""

    def rest(self) -> str:
        """What is left of an incomplete character at the end, as a replacement character."""


class TokenText:
    """What the tokens of one tokenizer stand for; safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        document: Mapping[str, Any] = json.loads(tokenizer.to_str())
        added = tokenizer.get_added_tokens_decoder()
        self._tokenizer = tokenizer
        self._special = frozenset(token for token, entry in added.items() if entry.special)
        self._bytes: Mapping[int, bytes] | None = None
        if _is_byte_level(document.get("decoder")):
            vocabulary = tokenizer.get_vocab(with_added_tokens=True)
            self._bytes = {token: _raw_bytes(text) for text, token in vocabulary.items()}

    def stream(self) -> TextStream:
        """The text of a new sequence, special tokens left out."""
        if self._bytes is not None:
            return _ByteStream(self._bytes, self._special)
        return _WindowStream(self._tokenizer)

    def token(self, token: int) -> bytes:
        """The bytes of a token, of special ones too; empty for an id that has none."""
        if self._bytes is not None:
            return self._bytes.get(token, b"")
        text = self._tokenizer.id_to_token(token)
        if text is None:
            return b""
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes.fromhex(text[3:5])
        return text.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a whole sequence, special tokens left out."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


def load_token_text(path: Path) -> TokenText:
    """Reads a tokenizer.json; raises ModelLoadError when it cannot be used."""
    try:
        return TokenText(Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises plain Exception
        raise ModelLoadError(f"cannot read tokenizer {path}: {error}") from None


class _ByteStream:
    """Tokens of bytes: an incremental decoder of UTF-8 is all it takes."""

    def __init__(self, table: Mapping[int, bytes], special: frozenset[int]) -> None:
        self._table = table
        self._special = special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        if token in self._special:
            return ""
        return self._decoder.decode(self._table.get(token, b""))

    def rest(self) -> str:
        return self._decoder.decode(b"", final=True)


class _WindowStream:
    """Any tokenizer: the text of a window with the last token, less that without it.

    The window starts with tokens whose text is out already, as decoders treat the first token of
    a text unlike others.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        # Tokens of the window whose text is out, and that text.
        self._out = 0
        self._text = ""

    def push(self, token: int) -> str:
        self._window.append(token)
        text = self._decode(self._window)
        held = len(self._window) - self._out
        if text.endswith(_REPLACEMENT) and held < _MOST_HELD:
            return ""
        if len(text) <= len(self._text) and held < _MOST_HELD:
            # A special token, or one whose text hangs on the next.
            return ""
        return self._advance(text)

    def rest(self) -> str:
        return self._advance(self._decode(self._window))

    def _advance(self, text: str) -> str:
        new = text[len(self._text) :]
        del self._window[: self._out]
        self._out = len(self._window)
        self._text = self._decode(self._window)
        return new

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


def _is_byte_level(decoder: Mapping[str, Any] | None) -> bool:
    if decoder is None:
        return False
    if decoder.get("type") == "Sequence":
        parts = decoder.get("decoders", ())
        return len(parts) == 1 and _is_byte_level(parts[0])
    return decoder.get("type") == "ByteLevel"


def _raw_bytes(text: str) -> bytes:
    """The bytes that a token of a byte-level vocabulary is written for, as its decoder has it."""
    if all(character in _BYTES for character in text):
        return bytes(_BYTES[character] for character in text)
    return text.encode()


def _byte_characters() -> dict[str, int]:
    """The character that byte-level vocabularies write for each byte (Radford et al. 2019)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    pairs = {chr(byte): byte for byte in plain}
    pairs |= {chr(256 + number): byte for number, byte in enumerate(others)}
    return pairs


_BYTES = _byte_characters()
