"""POST /tokenize: the tokens that a prompt comes to, in vLLM's form."""

from __future__ import annotations

from pydantic_core import to_json

from controlplane.generation.records import Caller, GenerationAsk, Prompt, TextPrompt
from controlplane.http.asks import class_asked, deadline_of, find
from controlplane.http.calls import Answer, Call
from controlplane.http.fields import Reader, TokenizeBody
from controlplane.http.generation import Generating
from controlplane.http.problems import InvalidField
from controlplane.http.prompts import chat_prompt
from controlplane.rpc.catalogue import Catalogue


class Tokens:
    """Counts tokens of prompts, as a generation would read them."""

    def __init__(self, generating: Generating, catalogue: Catalogue) -> None:
        self._generating = generating
        self._catalogue = catalogue
        self._reader = Reader(TokenizeBody)

    async def create(self, call: Call, raw: bytes, answer: Answer) -> None:
        """Answer one call; raises ControlPlaneError."""
        body: TokenizeBody = self._reader.read(raw)
        find(self._catalogue, body.model)
        ask = GenerationAsk(
            model=body.model,
            prompt=_prompt(body),
            klass=class_asked(call, body),
            deadline_ns=deadline_of(call, body, 0),
        )
        made = await self._generating.tokenize(ask, Caller(call.time_remaining()))
        document = {"count": len(made.ids), "max_model_len": made.context, "tokens": made.ids}
        await answer.whole(to_json(document))


def _prompt(body: TokenizeBody) -> Prompt:
    """The prompt; raises InvalidField unless there is one, or for what is not supported."""
    if body.add_special_tokens is False:
        raise InvalidField(
            "add_special_tokens", "must be true: tokens are counted as a generation reads them"
        )
    if body.return_token_strs:
        raise InvalidField("return_token_strs", "is not supported")
    if (body.prompt is None) == (body.messages is None):
        raise InvalidField("prompt", "is required unless there are messages, of which one is taken")
    if body.prompt is not None:
        return TextPrompt(body.prompt)
    return chat_prompt(body.messages or (), body)
