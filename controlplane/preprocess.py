"""Text to tokens, on a bounded pool of threads, before admission decides.

Admission needs the token count, so tokenising cannot wait for a worker. Short texts are
encoded on the event loop itself: handing them to a thread costs more than the encoding
(docs/decisions/0010-tokenise-short-texts-inline.md).
"""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TypeVar

from tokenizers import Tokenizer

from controlplane.bounded_pool import BoundedPool, Saturation
from controlplane.errors import InvalidRequest, Unavailable
from controlplane.policy.records import Shape, TokenPayload
from controlplane.registry import ModelInfo, Registry
from controlplane.text_bounds import longest_token
from controlplane.twin_tokens import Split, Twin, split_of, twin_of

INLINE_CHARACTERS = 512

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Tokens:
    """A built tokenizer, one more than its highest id, and the characters of its longest token."""

    tokenizer: Tokenizer
    vocabulary: int
    longest: int
    split: Split | None


@dataclass(frozen=True, slots=True)
class _Encoder:
    """A tokenizer and the longest sequence that a ready variant takes from it.

    With a `twin` its ids are those of the first encoder, renumbered.
    """

    name: str
    tokenizer: Tokenizer
    max_tokens: int
    vocabulary: int
    most_characters: int
    twin: Twin | None


_Encoded = tuple[dict[str, bytes], dict[str, tuple[int, ...]]]


class Preprocessor:
    """Encodes texts with every distinct tokenizer that a model's variants need.

    Called on one event loop. At most `threads` requests are encoded at a time and
    `max_queued` wait for a thread; one more is refused.
    """

    def __init__(
        self, registry: Registry, *, threads: int, max_queued: int, now_ns: Callable[[], int]
    ) -> None:
        # The library's own thread pool would take cores that belong to the workers.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._registry = registry
        self._pool = BoundedPool(
            threads,
            max_queued,
            name="orchid-tokenize",
            doing="texts are being tokenised",
            now_ns=now_ns,
        )
        self._tokenizers: dict[str, _Tokens] = {}
        # By the sha256 of both; tables are found on a thread.
        self._twins: dict[tuple[str, str], Twin | None] = {}
        self._plans: dict[str, tuple[ModelInfo, tuple[_Encoder, ...]]] = {}

    async def prepare(self, documents: Mapping[str, bytes]) -> None:
        """Build the tokenizers of documents by sha256 on a thread; known ones cost nothing.

        Without it the first text builds them on the event loop: a third of a second each.
        """
        for sha256 in documents.keys() - self._tokenizers.keys():
            work = self._pool.beside(partial(_build, documents[sha256]))
            self._tokenizers[sha256] = await asyncio.wrap_future(work)
        for pair in product(list(self._tokenizers), documents):
            for one, other in (pair, pair[::-1]):
                await self._find_twin(one, other)
        # Plans that were made meanwhile know of no twins.
        self._plans.clear()

    async def _find_twin(self, one: str, other: str) -> None:
        ours, theirs = self._tokenizers[one].split, self._tokenizers[other].split
        if one != other and (one, other) not in self._twins and ours and theirs:
            work = self._pool.beside(partial(twin_of, ours, theirs))
            self._twins[one, other] = await asyncio.wrap_future(work)

    async def tokenize(
        self, model: ModelInfo, texts: Sequence[str]
    ) -> tuple[TokenPayload, Mapping[str, Shape]]:
        """Token ids and shapes of `texts`, keyed by tokenizer name.

        Raises InvalidRequest when there is no text, the model takes no text, or a text
        has more tokens than any variant takes; Refused when the pool is full;
        Unavailable while no worker has sent the model's tokenizers.
        """
        encoded = self.tokenize_now(model, texts)
        if encoded is not None:
            return encoded
        encoders = self._plan(model)
        _check_characters(model, encoders, texts)
        return _checked(model, encoders, await self._pool.run(lambda: _encode(encoders, texts)))

    def tokenize_now(
        self, model: ModelInfo, texts: Sequence[str]
    ) -> tuple[TokenPayload, Mapping[str, Shape]] | None:
        """Like `tokenize` at once, for short texts; None when they need a thread."""
        if not texts:
            raise InvalidRequest(f"model {model.name!r} needs at least one text, got none")
        if sum(map(len, texts)) > INLINE_CHARACTERS:
            return None
        encoders = self._plan(model)
        return _checked(model, encoders, _encode(encoders, texts))

    def vocabulary(self, model: ModelInfo, tokenizer: str) -> int:
        """One more than the highest id of a tokenizer; 0 when no ready variant uses it."""
        for encoder in self._plan(model):
            if encoder.name == tokenizer:
                return encoder.vocabulary
        return 0

    def tokenizer(self, model: ModelInfo) -> Tokenizer:
        """The model's default tokenizer; may be used from the pool's threads.

        Raises InvalidRequest when the model has none, Unavailable while no worker sent it.
        """
        return self._default(model).tokenizer

    def most_characters(self, model: ModelInfo, tokens: int) -> int:
        """A text of more characters comes to more than so many tokens of the default tokenizer.

        Raises like `tokenizer`.
        """
        return tokens * self._default(model).longest

    async def run(self, characters: int, job: Callable[[], T]) -> T:
        """What `job` makes of a text of this length: at once when it is short, else in the pool.

        Raises Refused when the pool is full.
        """
        if characters <= INLINE_CHARACTERS:
            return job()
        return await self._pool.run(job)

    def saturation(self) -> Saturation:
        """How full the pool is now."""
        return self._pool.saturation()

    @property
    def refused(self) -> int:
        """Texts that were refused because the pool was full."""
        return self._pool.refused

    def close(self) -> None:
        """Give the threads back; texts that still wait for one are dropped."""
        self._pool.close()

    def _plan(self, model: ModelInfo) -> tuple[_Encoder, ...]:
        known = self._plans.get(model.name)
        if known is not None and known[0] is model:
            return known[1]
        longest: dict[str, int] = {}
        for variant in model.variants:
            if variant.tokenizer and variant.ready:
                limit = max(longest.get(variant.tokenizer, 0), variant.max_tokens)
                longest[variant.tokenizer] = limit
        hashes = {tokenizer.name: tokenizer.sha256 for tokenizer in model.tokenizers}
        if not hashes:
            raise InvalidRequest(f"model {model.name!r} takes tensors, not text")
        if not longest:
            raise Unavailable(f"no variant of model {model.name!r} is ready to take text")
        encoders = []
        first = hashes.get(next(iter(longest)), "")
        for name, limit in longest.items():
            sha256 = hashes.get(name, "")
            built = self._tokenizer(model.name, name, sha256)
            most, twin = limit * built.longest, self._twins.get((first, sha256))
            encoders.append(_Encoder(name, built.tokenizer, limit, built.vocabulary, most, twin))
        self._plans[model.name] = (model, tuple(encoders))
        return tuple(encoders)

    def _default(self, model: ModelInfo) -> _Tokens:
        name = model.default_tokenizer
        for each in model.tokenizers:
            if each.name == name or not name:
                return self._tokenizer(model.name, each.name, each.sha256)
        raise InvalidRequest(f"model {model.name!r} has no tokenizer; send token ids")

    def _tokenizer(self, model: str, name: str, sha256: str) -> _Tokens:
        found = self._tokenizers.get(sha256)
        if found is not None:
            return found
        document = self._registry.tokenizer(sha256)
        if document is None:
            raise Unavailable(f"tokenizer {name!r} of model {model!r} has not arrived yet")
        built = self._tokenizers[sha256] = _build(document)
        return built


def _build(document: bytes) -> _Tokens:
    tokenizer = Tokenizer.from_buffer(document)
    # A document may ask for truncation; a cut text must be refused, not answered.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    vocabulary = max(tokenizer.get_vocab().values(), default=-1) + 1
    longest = longest_token(tokenizer, document)
    return _Tokens(tokenizer, vocabulary, longest, split_of(tokenizer, document))


def _check_characters(
    model: ModelInfo, encoders: tuple[_Encoder, ...], texts: Sequence[str]
) -> None:
    """InvalidRequest for a text so long that no tokenizer need look at it."""
    longest = max(map(len, texts))
    bounds = [encoder.most_characters for encoder in encoders]
    most = max(bounds)
    # A variant without a bound takes everything.
    if all(bounds) and longest > most:
        tokens = max([encoder.max_tokens for encoder in encoders])
        raise InvalidRequest(
            f"a text is too long for model {model.name!r}: it has {longest} characters, and one of "
            f"{tokens} tokens has at most {most}"
        )


def _encode(encoders: tuple[_Encoder, ...], texts: Sequence[str]) -> _Encoded:
    ids: dict[str, bytes] = {}
    lengths: dict[str, tuple[int, ...]] = {}
    first: list[list[int]] = []
    for encoder in encoders:
        twin = encoder.twin
        if twin is not None and all(map(twin.fits, texts)):
            rows = list(map(twin.renumbered, first))
        else:
            rows = [encoding.ids for encoding in encoder.tokenizer.encode_batch_fast(list(texts))]
        first = first or rows
        ids[encoder.name] = b"".join(array("i", row).tobytes() for row in rows)
        lengths[encoder.name] = tuple(map(len, rows))
    return ids, lengths


def _checked(
    model: ModelInfo, encoders: tuple[_Encoder, ...], encoded: _Encoded
) -> tuple[TokenPayload, Mapping[str, Shape]]:
    """Leave out tokenizers whose variants take no sequence this long; refuse when none is left."""
    ids, lengths = encoded
    shapes: dict[str, Shape] = {}
    for encoder in encoders:
        shape = Shape.of_lengths(lengths[encoder.name])
        if shape.longest_tokens <= encoder.max_tokens:
            shapes[encoder.name] = shape
    if not shapes:
        limits = ", ".join(
            f"{max(lengths[e.name])} tokens with tokenizer {e.name!r} (limit {e.max_tokens})"
            for e in encoders
        )
        raise InvalidRequest(f"a text is too long for model {model.name!r}: {limits}")
    if len(shapes) == len(encoders):
        return TokenPayload(ids, lengths), shapes
    return TokenPayload(
        {name: ids[name] for name in shapes}, {name: lengths[name] for name in shapes}
    ), shapes
