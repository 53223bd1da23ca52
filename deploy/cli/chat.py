"""`orchid chat`."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.generate import (
    ClassOption,
    SeedOption,
    TemperatureOption,
    TenantOption,
    TopKOption,
    TopPOption,
    VariantOption,
    explained,
    footer,
    say,
    tell,
)
from deploy.cli.output import (
    DEFAULT_STATE,
    MOST_COUNT,
    AddressOption,
    StateOption,
    TraceOption,
    chosen_address,
    fail,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deploy.generation import (
        Generated,
        GenerationError,
        GenerationQuestion,
        Generator,
        Turn,
    )

_HELP = "/exit leaves, /clear forgets the conversation, Ctrl-C stops an answer"


def chat(
    model: Annotated[str, typer.Argument(help="Model to talk to, e.g. smollm2-135m.")],
    system: Annotated[str, typer.Option(help="What the model is told before everything.")] = "",
    max_tokens: Annotated[int, typer.Option(min=1, max=MOST_COUNT, help="Longest answer.")] = 512,
    temperature: TemperatureOption = 0.7,
    top_p: TopPOption = 0.9,
    top_k: TopKOption = 0,
    seed: SeedOption = None,
    request_class: ClassOption = "",
    tenant: TenantOption = "",
    variant: VariantOption = "",
    trace: TraceOption = False,
    address: AddressOption = "",
    state: StateOption = DEFAULT_STATE,
) -> None:
    """Talk to a language model.

    The conversation is kept; when it outgrows the model's context the oldest turns are
    dropped, and this says so. /clear forgets it, /exit or Ctrl-D leaves, Ctrl-C stops an
    answer. Without a terminal every line of standard input is one turn.
    """
    from deploy.cli.tracing import tell_trace, traced_calls
    from deploy.generation import GenerationQuestion, Generator

    question = GenerationQuestion(
        model=model,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        max_tokens=max_tokens,
        request_class=request_class,
        tenant=tenant,
        variant=variant,
    )
    target = chosen_address(address, state)
    if sys.stdin.isatty():
        # Arrow keys and history at the prompt, where the system has them.
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401
        tell(f"{model} at {target}; {_HELP}")
    with traced_calls(state, target) as traces, Generator(target, traces) as generator:
        told = (lambda: tell_trace(traces.last_id)) if trace else None
        Conversation(generator, question, target, system, told).run()


class Conversation:
    """The turns so far and the loop that adds to them; `answered` is called after each answer."""

    def __init__(
        self,
        generator: Generator,
        question: GenerationQuestion,
        target: str,
        system: str,
        answered: Callable[[], None] | None = None,
    ) -> None:
        self._answered = answered
        self._generator = generator
        self._question = question
        self._target = target
        self._system = system
        self._turns: list[Turn] = []

    def run(self) -> None:
        """Take turns until the person leaves."""
        for line in _lines():
            if line == "/exit":
                return
            if line == "/clear":
                self._turns.clear()
                tell("forgotten")
            elif line.startswith("/"):
                tell(f"no command {line.split()[0]}; {_HELP}")
            elif any("\ud800" <= character <= "\udfff" for character in line):
                tell("that line is not UTF-8")
            elif line:
                self._answer(line)

    def _answer(self, line: str) -> None:
        from deploy.generation import Turn

        self._turns.append(Turn("user", line))
        said: list[str] = []

        def hear(text: str) -> None:
            said.append(text)
            say(text)

        answer = None
        try:
            answer = self._generate(hear)
        except KeyboardInterrupt:
            typer.echo()
            tell("stopped")
        if said:
            self._turns.append(Turn("assistant", "".join(said)))
        else:
            self._turns.pop()
        if answer is not None:
            typer.echo()
            tell(footer(answer))
            if self._answered is not None:
                self._answered()

    def _generate(self, hear: Callable[[str], None]) -> Generated | None:
        """The answer to the last turn; oldest turns go while the context is too small for all."""
        from dataclasses import replace

        from deploy.generation import OVERFLOW, GenerationError, Turn

        system = [Turn("system", self._system)] if self._system else []
        while True:
            question = replace(self._question, turns=(*system, *self._turns))
            try:
                return self._generator.generate(question, hear)
            except GenerationError as error:
                if error.reason == OVERFLOW and len(self._turns) > 1:
                    self._forget_oldest()
                    continue
                self._explain(error)
                return None

    def _forget_oldest(self) -> None:
        """Drop the first question and its answer."""
        del self._turns[0]
        while self._turns[0].role == "assistant":
            del self._turns[0]
        tell("the conversation outgrew the context: its oldest turn was dropped")

    def _explain(self, error: GenerationError) -> None:
        text, remedy = explained(error, self._target)
        if not sys.stdin.isatty():
            fail(text, remedy)
        tell(f"{text}{f' ({remedy})' if remedy else ''}")


def _lines() -> Iterator[str]:
    """What the person says, without the line's end; ends with the input."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            yield line.strip()
        return
    while True:
        try:
            yield input("> ").strip()
        except EOFError:
            typer.echo()
            return
        except KeyboardInterrupt:
            typer.echo()
            tell("/exit or Ctrl-D leaves")
