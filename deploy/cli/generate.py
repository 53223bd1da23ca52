"""`orchid generate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from deploy.cli.access import check_utf8
from deploy.cli.output import (
    DEFAULT_STATE,
    MOST_COUNT,
    MOST_DEADLINE_MS,
    MOST_SEED,
    AddressOption,
    StateOption,
    TraceOption,
    chosen_address,
    connection_remedy,
    fail,
)

if TYPE_CHECKING:
    from deploy.generation import Generated, GenerationError

TemperatureOption = Annotated[
    float, typer.Option(min=0.0, max=10.0, help="0 takes the likeliest token every time.")
]
TopPOption = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Keep the likeliest tokens up to this probability.")
]
TopKOption = Annotated[
    int, typer.Option(min=0, max=MOST_COUNT, help="Keep this many likeliest tokens; 0: all.")
]
SeedOption = Annotated[
    int | None,
    typer.Option(min=0, max=MOST_SEED, help="The same seed gives the same answer. Default: drawn."),
]
ClassOption = Annotated[str, typer.Option("--class", help="Request class of the configuration.")]
TenantOption = Annotated[str, typer.Option(help="Who is charged, and whose cache may be used.")]
VariantOption = Annotated[str, typer.Option(help="Answer with this variant or not at all.")]

_INTERRUPTED = 130


def generate(
    model: Annotated[str, typer.Argument(help="Model to ask, e.g. smollm2-135m.")],
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    chat: Annotated[
        bool, typer.Option("--chat", help="The prompt is a question; use the chat template.")
    ] = False,
    system: Annotated[
        str, typer.Option(help="What the model is told before the question; implies --chat.")
    ] = "",
    max_tokens: Annotated[
        int,
        typer.Option(min=0, max=MOST_COUNT, help="Longest answer; 0: what the context leaves."),
    ] = 256,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 0.0,
    top_k: TopKOption = 0,
    min_p: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Drop tokens below this share of the best.")
    ] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(min=0.0, max=10.0, help="Above 1 makes repetition less likely.")
    ] = 0.0,
    seed: SeedOption = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text; can be repeated.")
    ] = None,
    deadline_ms: Annotated[
        int,
        typer.Option(
            min=0, max=MOST_DEADLINE_MS, help="Time the whole answer is worth waiting for."
        ),
    ] = 0,
    first_token_target_ms: Annotated[
        int,
        typer.Option(
            min=0, max=MOST_DEADLINE_MS, help="Time to the first token; 0: that of the class."
        ),
    ] = 0,
    token_target_ms: Annotated[
        int,
        typer.Option(
            min=0, max=MOST_DEADLINE_MS, help="Time between tokens; 0: that of the class."
        ),
    ] = 0,
    request_class: ClassOption = "",
    tenant: TenantOption = "",
    variant: VariantOption = "",
    prohibit: Annotated[
        list[str] | None, typer.Option(help="A variant that may not answer; can be repeated.")
    ] = None,
    minimum_quality: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Lowest measured quality that may answer.")
    ] = 0.0,
    json: Annotated[
        bool, typer.Option("--json", help="Print text, usage and provenance as JSON at the end.")
    ] = False,
    trace: TraceOption = False,
    address: AddressOption = "",
    state: StateOption = DEFAULT_STATE,
) -> None:
    """Let a language model go on with a text, or answer a question with --chat.

    The answer goes to standard output as it comes; what it took, and which variant gave it,
    to standard error at the end. Ctrl-C ends the answer. Exits with 1 when there is none.
    """
    from deploy.cli.tracing import tell_trace, traced
    from deploy.generation import GenerationError, GenerationQuestion, Generator, Turn

    text = sys.stdin.read() if prompt == "-" else prompt
    check_utf8(prompt=text)
    turns = [Turn("system", system)] if system else []
    if chat or system:
        turns.append(Turn("user", text))
    question = GenerationQuestion(
        model=model,
        text=text,
        turns=tuple(turns),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        request_class=request_class,
        tenant=tenant,
        variant=variant,
        prohibited=tuple(prohibit or ()),
        minimum_quality=minimum_quality,
        deadline_ms=deadline_ms,
        first_token_target_ms=first_token_target_ms,
        token_target_ms=token_target_ms,
    )
    target = chosen_address(address, state)
    with (
        traced("orchid generate", state, target) as recorder,
        Generator(target, recorder) as generator,
    ):
        try:
            answer = generator.generate(question, _silence if json else say)
        except GenerationError as error:
            _fail(error, target)
        except KeyboardInterrupt:
            typer.echo()
            raise typer.Exit(_INTERRUPTED) from None
        if json:
            import json as encoder

            told = {**answer.document, "trace_id": recorder.id}
            typer.echo(encoder.dumps(told, indent=1, ensure_ascii=False))
            return
        if not answer.text.endswith("\n"):
            typer.echo()
        tell(footer(answer))
        if trace:
            tell_trace(recorder.id)


def say(text: str) -> None:
    """Write a piece of an answer at once; a terminal gets no control characters of a model."""
    if sys.stdout.isatty():
        text = "".join(c for c in text if c in "\n\t" or c.isprintable())
    sys.stdout.write(text)
    sys.stdout.flush()


def _silence(text: str) -> None:
    """With --json the answer is printed whole."""


def tell(line: str) -> None:
    """A line about the answer, on standard error so that the answer stands alone."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(line, style="dim"), soft_wrap=True)


def footer(answer: Generated) -> str:
    """What an answer took and which variant gave it."""
    cached = f" ({answer.cached_tokens} cached)" if answer.cached_tokens else ""
    rate = f", then {answer.tokens_per_s:.1f} a second" if answer.tokens_per_s else ""
    less = ", an approximation" if answer.approximation else ""
    return (
        f"{answer.variant} on {answer.worker} ({answer.reason}{less}): "
        f"{answer.prompt_tokens}{cached} + {answer.generated_tokens} tokens, "
        f"first after {answer.first_token_ms:.0f} ms{rate}; ended by {answer.finish}"
    )


def _fail(error: GenerationError, target: str) -> NoReturn:
    text, remedy = explained(error, target)
    fail(text, remedy)


def explained(error: GenerationError, target: str) -> tuple[str, str]:
    """What to tell of an error, and what may help."""
    from deploy.channels import unreachable

    text = f"{error.code}: {error}"
    if error.code == "UNAVAILABLE" and "failed to connect" in str(error):
        return unreachable(target, text), connection_remedy(text, "orchid up starts a cluster")
    if error.code == "UNAVAILABLE" and (remedy := connection_remedy(text, "")):
        return f"{target}: {text}", remedy
    if error.retry_after_ms:
        return text, f"try again in {error.retry_after_ms} ms; orchid status"
    if error.code == "NOT_FOUND":
        return text, "orchid status shows the models that generate"
    return text, ""
