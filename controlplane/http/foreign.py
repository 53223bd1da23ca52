"""Fields that other servers take and that would change an answer: refused by name.

Who moves here from one of them and has them ignored would get other answers than he asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from controlplane.http.problems import InvalidField

_FREE = "is not supported: answers are not held to a form"
_OWN_TEMPLATE = "is not supported: the model's own chat template is rendered"
_NO_FILTER = "is not supported; temperature, top_k, top_p and min_p are"

FOREIGN: Final[Mapping[str, str]] = {
    "guided_json": _FREE,
    "guided_regex": _FREE,
    "guided_choice": _FREE,
    "guided_grammar": _FREE,
    "structured_outputs": _FREE,
    "json_schema": _FREE,
    "grammar": _FREE,
    "min_tokens": "is not supported; ignore_eos goes on to max_tokens",
    "bad_words": "is not supported; logit_bias of -100 keeps a token out",
    "n_predict": "is called max_tokens here",
    "max_new_tokens": "is called max_tokens here",
    "repeat_penalty": "is called repetition_penalty here",
    "typical_p": _NO_FILTER,
    "mirostat": _NO_FILTER,
    "xtc_probability": _NO_FILTER,
    "dry_multiplier": "is not supported; repetition_penalty and frequency_penalty are",
    "use_beam_search": "is not supported: answers are sampled, n of them if asked",
    "prompt_logprobs": "is not supported: only tokens of the answer have logprobs",
    "include_stop_str_in_output": "is not supported: an answer ends before what stops it",
    "skip_special_tokens": "must be true: special tokens have no text",
    "truncate_prompt_tokens": "is not supported: a prompt is refused, not cut, and the error says "
    "by how much it is too long",
    "chat_template": _OWN_TEMPLATE,
    "chat_template_kwargs": _OWN_TEMPLATE,
    "web_search_options": "is not supported: models here search nothing",
}
# What asks for nothing, where that is something else than null, false, 0 or empty.
_NOTHING: Final[Mapping[str, object]] = {
    "skip_special_tokens": True,
    "repeat_penalty": 1,
    "typical_p": 1,
}


def refuse_foreign(body: Any) -> None:
    """Raises InvalidField for the first of these fields that asks for something.

    `body` has all of `FOREIGN` as attributes, None where they did not come.
    """
    for name, reason in FOREIGN.items():
        value = getattr(body, name)
        if value is None:
            continue
        if value != _NOTHING[name] if name in _NOTHING else value:
            raise InvalidField(name, reason)
