"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.config import ControlPlaneConfig
from controlplane.generation.records import Delta, Finished, GeneratedToken
from controlplane.http.asks import find
from controlplane.http.calls import Answer, Call
from controlplane.http.chat import LEAST_LOGPROB
from controlplane.http.fields import CompletionBody, Reader
from controlplane.http.generation import Choice, Generating, Writing, ending
from controlplane.http.prompts import completion_asks
from controlplane.rpc.catalogue import Catalogue


class Completions:
    """Goes on with texts."""

    def __init__(
        self, config: ControlPlaneConfig, generating: Generating, catalogue: Catalogue
    ) -> None:
        self._config = config
        self._generating = generating
        self._catalogue = catalogue
        self._reader = Reader(CompletionBody)

    async def create(self, call: Call, raw: bytes, answer: Answer) -> None:
        """Answer one call; raises ControlPlaneError."""
        body: CompletionBody = self._reader.read(raw)
        find(self._catalogue, body.model)
        asks = completion_asks(call, body, self._config)
        writing = Writing(self._generating, call, asks, CompletionDialect())
        await writing.as_asked(answer, body)


class CompletionDialect:
    """Writes choices of completions; remembers how far the text of each has come."""

    prefix = "cmpl"
    kinds = ("text_completion", "text_completion")

    def __init__(self) -> None:
        self._characters: dict[int, int] = {}

    def whole(self, index: int, choice: Choice) -> dict[str, object]:
        """The whole text."""
        return {
            "index": index,
            "text": "".join(choice.texts),
            "logprobs": self._logprobs(index, choice.tokens),
            **ending(choice.finished),
        }

    def piece(self, index: int, delta: Delta) -> dict[str, object]:
        """A piece of the text."""
        return {
            "index": index,
            "text": delta.text,
            "logprobs": self._logprobs(index, delta.logprobs),
            "finish_reason": None,
        }

    def last(self, index: int, finished: Finished) -> dict[str, object]:
        """The end of the text."""
        return {"index": index, "text": "", "logprobs": None, **ending(finished)}

    def _logprobs(self, index: int, tokens: Sequence[GeneratedToken]) -> dict[str, object] | None:
        if not tokens:
            return None
        offsets = []
        position = self._characters.get(index, 0)
        for each in tokens:
            raw = each.chosen.token
            # A token that goes on with a character stands where that one began.
            inside = bool(raw) and raw[0] & 0xC0 == 0x80
            offsets.append(max(0, position - inside))
            position += sum(byte & 0xC0 != 0x80 for byte in raw)
        self._characters[index] = position
        return {
            "tokens": [_name(each.chosen.token) for each in tokens],
            "token_logprobs": [max(each.chosen.logprob, LEAST_LOGPROB) for each in tokens],
            "top_logprobs": [
                {_name(o.token): max(o.logprob, LEAST_LOGPROB) for o in each.alternatives}
                for each in tokens
            ],
            "text_offset": offsets,
        }


def _name(token: bytes) -> str:
    """A token as this API names it: its text, or its bytes when it is no whole text."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
