"""Chat templates: what published ones need works, what would hurt does not."""

from __future__ import annotations

import pytest

from controlplane.errors import InvalidRequest, Unsatisfiable
from controlplane.generation.records import Message
from controlplane.generation.template import MOST_TEMPLATE_CHARACTERS, ChatTemplates

# As SmolLM2 has it.
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
    "Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def render(template: str, *turns: tuple[str, str], begin: str = "<s>", end: str = "</s>") -> str:
    messages = [Message(role, text) for role, text in turns or (("user", "hi"),)]
    return ChatTemplates().render("m", template, messages, begin=begin, end=end)


def test_a_published_template_gives_its_prompt() -> None:
    assert render(CHATML, ("system", "Be brief."), ("user", "hi")) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert render(CHATML).startswith("<|im_start|>system\nYou are a helpful AI assistant")


def test_what_templates_expect_to_find() -> None:
    source = (
        "{%- for m in messages -%}{%- if loop.index > 1 -%}{%- break -%}{%- endif -%}"
        "{{ bos_token }}{{ m.content | trim | tojson }}{{ eos_token }}{%- endfor -%}"
        "{% for i in range(3) %}{{ i }}{% endfor %}{{ '-' * 3 }}{{ 2 ** 3 }}"
    )
    assert render(source, ("user", ' "ü" '), ("user", "b")) == '<s>"\\"ü\\""</s>012---8'


def test_a_model_without_a_template_says_what_to_send_instead() -> None:
    with pytest.raises(Unsatisfiable, match="send the prompt as text or tokens"):
        render("")


def test_what_a_template_says_of_a_conversation_reaches_its_caller() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "template",
    [
        "{% if %}",
        "{{ messages[0].__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ missing.attribute }}",
        "{{ messages | no_such_filter }}",
        "{{ 'x' * 1000000000 }}",
        "{{ [1] * 1000000000 }}",
        "{{ 9 ** 999999999 }}",
        "{{ 'x' ** 2 }}",
        "{% for i in range(100000) %}x{% endfor %}",
        "{% for i in range(9999) %}{% for j in range(9999) %}{{ i }}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 1 / 0 }}",
        "{% include 'other' %}",
        " " * (MOST_TEMPLATE_CHARACTERS + 1),
    ],
)
def test_a_template_that_fails_or_would_hurt_cannot_be_used(template: str) -> None:
    with pytest.raises(Unsatisfiable, match="cannot be used"):
        render(template)


def test_an_error_holds_nothing_of_the_conversation() -> None:
    with pytest.raises(Unsatisfiable) as caught:
        render("{{ messages[0].content + 1 }}", ("user", "secret"))
    assert "secret" not in str(caught.value)
