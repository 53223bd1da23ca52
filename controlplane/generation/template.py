"""Renders conversations with a model's chat template, in jinja's sandbox and within bounds.

A template comes with a model's files, so it is treated as foreign code: it reaches no
attribute that jinja calls unsafe, changes nothing it is given, and its ranges, repetitions
and output are bounded. What templates expect to find is what the transformers library gives them
(https://huggingface.co/docs/transformers/chat_templating).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from controlplane.errors import InvalidRequest, Unsatisfiable
from controlplane.generation.records import Message
from controlplane.wording import shown

MOST_TEMPLATE_CHARACTERS = 1 << 18
# What a template may add to the messages it is given.
MOST_ADDED_CHARACTERS = 1 << 20
_MOST_RANGE = 10_000
_MOST_REPEATED = 1 << 16
_LARGEST_BASE, _LARGEST_EXPONENT = 1 << 16, 8
_REMEMBERED = 64


class _Refusal(Exception):
    """What a template says of a conversation it does not take."""


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, without the operators that make a little input large."""

    intercepted_binops = frozenset(("*", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        self.globals["raise_exception"] = _refuse
        self.globals["range"] = _short_range
        self.filters["tojson"] = _to_json

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Small numbers as ever; a text or list is not repeated beyond reason."""
        if operator == "**":
            if abs(left) > _LARGEST_BASE or abs(right) > _LARGEST_EXPONENT:
                raise SecurityError("a power of operands this large")
        elif isinstance(left, int) != isinstance(right, int):
            times, repeated = (left, right) if isinstance(left, int) else (right, left)
            if hasattr(repeated, "__len__") and len(repeated) * times > _MOST_REPEATED:
                raise SecurityError("a text or list repeated this often")
        return super().call_binop(context, operator, left, right)


def _refuse(message: str) -> NoReturn:
    raise _Refusal(message)


def _short_range(*arguments: int) -> range:
    made = range(*arguments)
    if len(made) > _MOST_RANGE:
        raise SecurityError(f"a range of {len(made)}; at most {_MOST_RANGE}")
    return made


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


class ChatTemplates:
    """Templates by their source, compiled once. May be used from several threads."""

    def __init__(self) -> None:
        self._environment = _Environment()
        self._compiled: dict[str, Template] = {}

    def render(
        self, model: str, source: str, messages: Sequence[Message], *, begin: str, end: str
    ) -> str:
        """The prompt after which the assistant's answer comes.

        `begin` and `end` are the texts of the model's begin and end tokens. Raises
        Unsatisfiable when the model has no template, or one that cannot be used;
        InvalidRequest when the template does not take this conversation.
        """
        if not source:
            raise Unsatisfiable(
                f"model {shown(model)} has no chat template; send the prompt as text or tokens"
            )
        template = self._compiled.get(source) or self._compile(model, source)
        given = [{"role": m.role, "content": m.content} for m in messages]
        most = MOST_ADDED_CHARACTERS + 2 * sum(len(m.content) for m in messages)
        try:
            pieces = template.generate(
                messages=given, add_generation_prompt=True, bos_token=begin, eos_token=end
            )
            return "".join(_bounded(pieces, most))
        except _Refusal as refusal:
            # What it says may quote the conversation, but goes to its own caller only.
            raise InvalidRequest(
                f"the chat template of model {shown(model)} does not take this conversation: "
                f"{shown(str(refusal), 200)}"
            ) from None
        except (TemplateError, SecurityError) as error:
            raise _unusable(model, f"{type(error).__name__}: {error.message or ''}") from None
        except RecursionError:
            raise _unusable(model, "it calls itself without end") from None
        except Exception as error:
            # A filter or operator met a value it cannot take; its text could hold content.
            raise _unusable(model, f"it failed with {type(error).__name__}") from None

    def _compile(self, model: str, source: str) -> Template:
        if len(source) > MOST_TEMPLATE_CHARACTERS:
            raise _unusable(
                model, f"it has {len(source)} characters; at most {MOST_TEMPLATE_CHARACTERS}"
            )
        try:
            template = self._environment.from_string(source)
        except TemplateSyntaxError as error:
            raise _unusable(model, f"line {error.lineno}: {error.message}") from None
        except (TemplateError, RecursionError) as error:
            raise _unusable(model, type(error).__name__) from None
        if len(self._compiled) >= _REMEMBERED:
            self._compiled.clear()
        self._compiled[source] = template
        return template


def _bounded(pieces: Iterator[str], most: int) -> Iterator[str]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > most:
            raise SecurityError(f"it writes more than {most} characters")
        yield piece


def _unusable(model: str, why: str) -> Unsatisfiable:
    return Unsatisfiable(
        f"the chat template of model {shown(model)} cannot be used: {shown(why, 200)}; "
        "send the prompt as text or tokens"
    )
