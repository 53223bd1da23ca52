"""How long a text may be that comes to a number of tokens, known before it is tokenised."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer

# Tokenizers that drop or fold characters have no bound of their own; nobody writes texts of so many
# characters for each token.
_PLENTY = 128
_KEEPING = frozenset({"ByteLevel", "Digits", "Punctuation", "Split", "UnicodeScripts"})


def longest_token(tokenizer: Tokenizer, document: bytes) -> int:
    """Characters that one token stands for at most.

    Exact, and the bytes of the longest token, where a tokenizer keeps every byte of a text, as
    those of byte level do; else at least generous.
    """
    longest = max((len(token.encode()) for token in tokenizer.get_vocab()), default=1)
    return longest if _keeps_bytes(document) else max(longest, _PLENTY)


def _keeps_bytes(document: bytes) -> bool:
    described = json.loads(document)
    if described.get("normalizer") is not None:
        return False
    kinds = list(_steps(described.get("pre_tokenizer")))
    return "ByteLevel" in kinds and all(kind in _KEEPING for kind in kinds)


def _steps(described: Any) -> list[str]:
    """Kinds of the steps of a pre-tokenizer, "Removed" where one drops what it splits at."""
    if not isinstance(described, dict):
        return []
    kind = str(described.get("type"))
    if kind == "Sequence":
        return [each for inner in described.get("pretokenizers", ()) for each in _steps(inner)]
    if described.get("behavior") == "Removed":
        return ["Removed"]
    return [kind]
