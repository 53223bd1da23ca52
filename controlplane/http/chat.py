"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.config import ControlPlaneConfig
from controlplane.generation.records import Delta, Finished, GeneratedToken, TokenLogprob
from controlplane.http.asks import find
from controlplane.http.calls import Answer, Call
from controlplane.http.fields import ChatBody, Reader
from controlplane.http.generation import Choice, Generating, Writing, ending
from controlplane.http.prompts import chat_ask
from controlplane.rpc.catalogue import Catalogue

# What OpenAI gives tokens that are as good as impossible; JSON knows no infinity.
LEAST_LOGPROB = -9999.0


class Chat:
    """Answers conversations."""

    def __init__(
        self, config: ControlPlaneConfig, generating: Generating, catalogue: Catalogue
    ) -> None:
        self._config = config
        self._generating = generating
        self._catalogue = catalogue
        self._reader = Reader(ChatBody)

    async def create(self, call: Call, raw: bytes, answer: Answer) -> None:
        """Answer one call; raises ControlPlaneError."""
        body: ChatBody = self._reader.read(raw)
        find(self._catalogue, body.model)
        ask = chat_ask(call, body, self._config)
        writing = Writing(self._generating, call, [ask], ChatDialect())
        await writing.as_asked(answer, body)


class ChatDialect:
    """Writes choices of one chat; remembers which have said who speaks."""

    prefix = "chatcmpl"
    kinds = ("chat.completion", "chat.completion.chunk")

    def __init__(self) -> None:
        self._begun: set[int] = set()

    def whole(self, index: int, choice: Choice) -> dict[str, object]:
        """The whole message."""
        message = {"role": "assistant", "content": "".join(choice.texts), "refusal": None}
        return {
            "index": index,
            "message": message,
            "logprobs": _logprobs(choice.tokens),
            **ending(choice.finished),
        }

    def piece(self, index: int, delta: Delta) -> dict[str, object]:
        """A piece of the message; the first says who speaks."""
        return {
            "index": index,
            "delta": {**self._speaker(index), "content": delta.text},
            "logprobs": _logprobs(delta.logprobs),
            "finish_reason": None,
        }

    def last(self, index: int, finished: Finished) -> dict[str, object]:
        """The end of the message."""
        return {
            "index": index,
            "delta": self._speaker(index),
            "logprobs": None,
            **ending(finished),
        }

    def _speaker(self, index: int) -> dict[str, object]:
        if index in self._begun:
            return {}
        self._begun.add(index)
        return {"role": "assistant"}


def _logprobs(tokens: Sequence[GeneratedToken]) -> dict[str, object] | None:
    if not tokens:
        return None
    content = [
        {**_token(each.chosen), "top_logprobs": [_token(other) for other in each.alternatives]}
        for each in tokens
    ]
    return {"content": content, "refusal": None}


def _token(token: TokenLogprob) -> dict[str, object]:
    return {
        "token": token.token.decode("utf-8", "backslashreplace"),
        "logprob": max(token.logprob, LEAST_LOGPROB),
        "bytes": list(token.token),
    }
