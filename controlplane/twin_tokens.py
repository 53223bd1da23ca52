"""Tokenizers that take texts apart alike and only number the pieces otherwise.

Models of one family are trained with other special tokens and other numbers for the same pieces.
Where that is all, the tokens of one are those of the other by a table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from tokenizers import Tokenizer

# What these do to ASCII text is known: drop, fold to lower case and split; no character is new.
_NORMALIZERS = frozenset({"BertNormalizer"})
_PRE_TOKENIZERS = frozenset({"BertPreTokenizer"})
_PROBES = ("a", "b a")


class Twin(NamedTuple):
    """How ids of one tokenizer become those of another, for the texts that `fits` lets through.

    `table` is by the first one's id; what stands before and after a text's own tokens is cut off,
    `cut` of each, and replaced.
    """

    table: tuple[int, ...]
    cut: tuple[int, int]
    before: tuple[int, ...]
    after: tuple[int, ...]
    barred: tuple[str, ...]

    def fits(self, text: str) -> bool:
        """Whether both split the text alike: it can hold nothing that only one of them knows."""
        return text.isascii() and not any(mark in text for mark in self.barred)

    def renumbered(self, row: Sequence[int]) -> list[int]:
        """The other one's ids of a text, from the first one's."""
        table, (start, end) = self.table, self.cut
        own = row[start : len(row) - end]
        return [*self.before, *[table[each] for each in own], *self.after]


class Split(NamedTuple):
    """How a tokenizer takes texts apart: two with equal `rules` may be twins.

    `marks` are the first characters of its added tokens.
    """

    rules: str
    marks: frozenset[str]
    pieces: dict[str, int]
    before: tuple[int, ...]
    after: tuple[int, ...]


def split_of(tokenizer: Tokenizer, document: bytes) -> Split | None:
    """How a tokenizer takes texts apart; None when it is of a kind that is not known for sure."""
    described = json.loads(document)
    model = dict(described["model"])
    pieces = model.pop("vocab", {})
    steps = [described.get(name) for name in ("normalizer", "pre_tokenizer")]
    known = (
        model.get("type") == "WordPiece"
        and model.get("unk_token") in pieces
        and _kind(steps[0]) in _NORMALIZERS
        and _kind(steps[1]) in _PRE_TOKENIZERS
    )
    marks = frozenset(added["content"][:1] for added in described.get("added_tokens") or ())
    around = _around(tokenizer)
    if not known or around is None or not all(map(_is_mark, marks)):
        return None
    return Split(json.dumps([model, steps], sort_keys=True), marks, pieces, *around)


def twin_of(one: Split, other: Split) -> Twin | None:
    """How ids of one become those of the other; None when they do not split alike."""
    barred = one.marks | other.marks
    apart = one.pieces.keys() ^ other.pieces.keys()
    # A piece that only one of them has must begin with what bars a text.
    if one.rules != other.rules or any(piece[:1] not in barred for piece in apart):
        return None
    table = [-1] * (max(one.pieces.values(), default=-1) + 1)
    for piece, number in one.pieces.items():
        table[number] = other.pieces.get(piece, -1)
    cut = (len(one.before), len(one.after))
    return Twin(tuple(table), cut, other.before, other.after, tuple(sorted(barred)))


def _kind(step: Any) -> str:
    return str(step.get("type")) if isinstance(step, dict) else ""


def _is_mark(character: str) -> bool:
    """Whether folding cannot make the character out of another one."""
    return (
        character.isascii()
        and character.isprintable()
        and not character.isalnum()
        and character != " "
    )


def _around(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Ids before and after the tokens of any text; None when that is not what is added to them."""
    found = set()
    for probe in _PROBES:
        own = tokenizer.encode(probe, add_special_tokens=False).ids
        whole = tokenizer.encode(probe).ids
        places = [at for at in range(len(whole)) if whole[at : at + len(own)] == own]
        if len(places) != 1:
            return None
        found.add((tuple(whole[: places[0]]), tuple(whole[places[0] + len(own) :])))
    return found.pop() if len(found) == 1 else None
