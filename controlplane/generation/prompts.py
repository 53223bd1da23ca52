"""From a prompt as it was sent to the token ids that a decode worker gets."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from tokenizers import Tokenizer

from controlplane.deployed import GenerationSettings, ModelInfo
from controlplane.errors import ContextOverflow
from controlplane.generation.records import ChatPrompt, Message, Prompt, TextPrompt
from controlplane.generation.template import ChatTemplates
from controlplane.wording import shown

T = TypeVar("T")

# About what a template writes around each message; decides only where the work is done.
_CHARACTERS_AROUND = 32
# No character by Unicode's own word: where a text is cut so that it spells no special token.
_CUT = "\ufdd0"


class TextPool(Protocol):
    """What prompts need of the preprocessor."""

    def tokenizer(self, model: ModelInfo) -> Tokenizer: ...

    def most_characters(self, model: ModelInfo, tokens: int) -> int: ...

    async def run(self, characters: int, job: Callable[[], T]) -> T: ...


class Prompts:
    """Renders and tokenises in the preprocessor's bounded pool; called on one event loop."""

    def __init__(self, pool: TextPool) -> None:
        self._pool = pool
        self._templates = ChatTemplates()

    async def tokens(self, model: ModelInfo, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a checked prompt, the model's begin token before a text or chat.

        Raises ContextOverflow for one that is longer than any of the model's context can be,
        Unsatisfiable or InvalidRequest for a chat that cannot be rendered, Refused
        when the pool is full, Unavailable while the tokenizer has not arrived.
        """
        settings = model.generation
        assert settings is not None
        if isinstance(prompt, TextPrompt):
            tokenizer = self._pool.tokenizer(model)
            text = prompt.text
            self._check_length(model, settings, len(text))
            return await self._pool.run(len(text), lambda: encode(tokenizer, settings, text))
        if isinstance(prompt, ChatPrompt):
            return await self._chat(model, settings, prompt)
        return tuple(prompt.ids)

    async def _chat(
        self, model: ModelInfo, settings: GenerationSettings, prompt: ChatPrompt
    ) -> tuple[int, ...]:
        self._check_length(model, settings, sum(len(m.content) for m in prompt.messages))
        tokenizer = self._pool.tokenizer(model)

        def job() -> tuple[int, ...]:
            # Only the template writes control tokens: what somebody says stays text.
            said = quoted(tokenizer, prompt.messages)
            end = settings.end_tokens[0] if settings.end_tokens else None
            turns, begun = (said[:-1], said[-1].content) if prompt.continues else (said, "")
            text = self._templates.render(
                model.name,
                settings.chat_template,
                turns,
                begin=_text_of(tokenizer, settings.begin_token),
                end=_text_of(tokenizer, end),
            )
            # What was begun comes after the template's tokens, as it did when it was generated.
            pieces = [*text.split(_CUT), *begun.split(_CUT)]
            return encode(tokenizer, settings, *pieces)

        size = sum(len(m.content) + _CHARACTERS_AROUND for m in prompt.messages)
        return await self._pool.run(size, job)

    def _check_length(
        self, model: ModelInfo, settings: GenerationSettings, characters: int
    ) -> None:
        most = self._pool.most_characters(model, settings.context)
        if characters > most:
            raise ContextOverflow(
                f"the prompt has {characters} characters; the context of model "
                f"{shown(model.name)} is {settings.context} tokens, which are at most {most}"
            )


def encode(tokenizer: Tokenizer, settings: GenerationSettings, *pieces: str) -> tuple[int, ...]:
    """Token ids of a text, after the model's begin token unless the text brings it itself.

    No token spans two pieces.
    """
    ids = [
        token for piece in pieces for token in tokenizer.encode(piece, add_special_tokens=False).ids
    ]
    begin = settings.begin_token
    if begin is not None and ids[:1] != [begin]:
        ids = [begin, *ids]
    return tuple(ids)


def quoted(tokenizer: Tokenizer, messages: Sequence[Message]) -> Sequence[Message]:
    """Messages whose contents hold no special token: each is cut after its first character."""
    special = [
        entry.content
        for entry in tokenizer.get_added_tokens_decoder().values()
        if entry.special and len(entry.content) > 1
    ]
    if not special:
        return messages
    # Tokens may overlap, so each place where one begins counts; a normalizer may ignore case.
    begins = re.compile(f"(?=({'|'.join(map(re.escape, special))})).", re.DOTALL | re.IGNORECASE)
    return [Message(m.role, begins.sub(rf"\g<0>{_CUT}", m.content)) for m in messages]


def _text_of(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.id_to_token(token) or ""
