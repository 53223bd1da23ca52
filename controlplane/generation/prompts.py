"""From a prompt as it was sent to the token ids that a decode worker gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from tokenizers import Tokenizer

from controlplane.deployed import GenerationSettings, ModelInfo
from controlplane.generation.records import ChatPrompt, Prompt, TextPrompt
from controlplane.generation.template import ChatTemplates

T = TypeVar("T")

# About what a template writes around each message; decides only where the work is done.
_CHARACTERS_AROUND = 32


class TextPool(Protocol):
    """What prompts need of the preprocessor."""

    def tokenizer(self, model: ModelInfo) -> Tokenizer: ...

    async def run(self, characters: int, job: Callable[[], T]) -> T: ...


class Prompts:
    """Renders and tokenises in the preprocessor's bounded pool; called on one event loop."""

    def __init__(self, pool: TextPool) -> None:
        self._pool = pool
        self._templates = ChatTemplates()

    async def tokens(self, model: ModelInfo, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a checked prompt, the model's begin token before a text or chat.

        Raises Unsatisfiable or InvalidRequest for a chat that cannot be rendered, Refused
        when the pool is full, Unavailable while the tokenizer has not arrived.
        """
        settings = model.generation
        assert settings is not None
        if isinstance(prompt, TextPrompt):
            tokenizer = self._pool.tokenizer(model)
            text = prompt.text
            return await self._pool.run(len(text), lambda: encode(tokenizer, settings, text))
        if isinstance(prompt, ChatPrompt):
            return await self._chat(model, settings, prompt)
        return tuple(prompt.ids)

    async def _chat(
        self, model: ModelInfo, settings: GenerationSettings, prompt: ChatPrompt
    ) -> tuple[int, ...]:
        tokenizer = self._pool.tokenizer(model)

        def job() -> tuple[int, ...]:
            end = settings.end_tokens[0] if settings.end_tokens else None
            text = self._templates.render(
                model.name,
                settings.chat_template,
                prompt.messages,
                begin=_text_of(tokenizer, settings.begin_token),
                end=_text_of(tokenizer, end),
            )
            return encode(tokenizer, settings, text)

        size = sum(len(m.content) + _CHARACTERS_AROUND for m in prompt.messages)
        return await self._pool.run(size, job)


def encode(tokenizer: Tokenizer, settings: GenerationSettings, text: str) -> tuple[int, ...]:
    """Token ids of a text, after the model's begin token unless the text brings it itself."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    begin = settings.begin_token
    if begin is not None and ids[:1] != [begin]:
        ids = [begin, *ids]
    return tuple(ids)


def _text_of(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.id_to_token(token) or ""
