"""One answer of a generation: tokens in, pieces of text and the end out. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Collection

from worker.generation.records import (
    Delta,
    Finish,
    Finished,
    ScoredToken,
    TokenScore,
)
from worker.generation.sampling import Choice, Row, Sampler, Scored
from worker.generation.stops import StopStrings
from worker.generation.text import TextStream


class Answer:
    """Makes answer `index` from rows of logits, until `finished` is set.

    `end_tokens` end it and are no part of it; `max_tokens` bounds what is generated.
    `content` gives the bytes of a token.
    """

    def __init__(
        self,
        index: int,
        *,
        sampler: Sampler,
        text: TextStream,
        stops: StopStrings,
        end_tokens: Collection[int],
        max_tokens: int,
        content: Callable[[int], bytes],
    ) -> None:
        self.index = index
        self.finished: Finished | None = None
        self.generated = 0
        self._sampler = sampler
        self._text = text
        self._stops = stops
        self._end_tokens = end_tokens
        self._max_tokens = max_tokens
        self._content = content

    @property
    def ended(self) -> bool:
        """Whether it is finished; asked again after a call, where `finished` is taken as known."""
        return self.finished is not None

    def choose(self, logits: Row) -> tuple[int, Delta]:
        """The next token, and what it adds; sets `finished` when it is the last.

        Raises EngineFault when the logits are no numbers.
        """
        choice = self._sampler.choose(logits)
        self.generated += 1
        if choice.token in self._end_tokens:
            self._finish(Finish.STOP)
            return choice.token, Delta(self.index, self._rest(), ())
        passed = self._stops.push(self._text.push(choice.token))
        text = passed.text
        if passed.stop is not None:
            self._finish(Finish.STOP, passed.stop)
        elif self.generated >= self._max_tokens:
            text += self._rest()
            if self.finished is None:
                self._finish(Finish.LENGTH)
        return choice.token, Delta(self.index, text, (choice.token,), self._scores(choice))

    def cut(self, reason: Finish) -> Delta:
        """Ends the answer where it is; returns the text that was held."""
        text = self._rest()
        if self.finished is None:
            self._finish(reason)
        return Delta(self.index, text, ())

    def _rest(self) -> str:
        """The text that only the end decides; a stop string in it ends the answer by itself."""
        passed = self._stops.push(self._text.rest())
        if passed.stop is not None:
            self._finish(Finish.STOP, passed.stop)
            return passed.text
        return passed.text + self._stops.rest()

    def _finish(self, reason: Finish, stop: str = "") -> None:
        self.finished = Finished(self.index, reason, stop, self.generated)

    def _scores(self, choice: Choice) -> tuple[ScoredToken, ...]:
        if choice.scored is None:
            return ()
        others = tuple(self._score(other) for other in choice.alternatives)
        return (ScoredToken(self._score(choice.scored), others),)

    def _score(self, scored: Scored) -> TokenScore:
        return TokenScore(scored.token, self._content(scored.token), scored.logprob)
