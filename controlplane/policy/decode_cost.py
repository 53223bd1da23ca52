"""What a generation costs its decode worker, by the worker's profile. Pure; times in ns.

With w sequences in a step, reading a prompt takes `tokens * prefill + step` and writing a token
`step / w + sequence + cached * tokens attended to` of the steps it is in, on each thread.
"""

from __future__ import annotations

from typing import NamedTuple

from controlplane.policy.decode import DecodeProfile


class Setting(NamedTuple):
    """Where a generation runs: the profile there, how many `threads` a step has, how many sequences
    are in one with it, and the tokens that those before it attend to.
    """

    profile: DecodeProfile
    threads: int
    width: int
    cached_tokens: int


class Cost(NamedTuple):
    """CPU time over all threads, tokens times milliseconds held, and how long it takes."""

    prefill_ns: float
    decode_ns: float
    live_token_ms: float
    lasts_ns: float


def _writing_ns(setting: Setting, attended: float) -> float:
    """One token's part of the steps it is in."""
    profile = setting.profile
    shared = profile.step_ns / max(1, setting.width)
    return shared + profile.sequence_ns + profile.cached_ns * attended


def whole_cost(setting: Setting, prompt: int, tokens: float, answers: int) -> Cost:
    """That of a prompt and `answers` answers of `tokens` tokens each.

    The prompt and half of the answer are held while it is written, half of the prompt before.
    """
    profile, middle = setting.profile, prompt + tokens / 2.0
    prefill = profile.prefill_ns * prompt + profile.step_ns
    attended = setting.cached_tokens + answers * middle
    gap = profile.step_ns + profile.sequence_ns * max(1, setting.width)
    writing = tokens * (gap + profile.cached_ns * attended)
    live = answers * middle * writing + prompt / 2.0 * prefill
    return Cost(
        prefill_ns=prefill * setting.threads,
        decode_ns=answers * tokens * _writing_ns(setting, middle) * setting.threads,
        live_token_ms=live / 1e6,
        lasts_ns=prefill + writing,
    )


def unfinished_cost(
    setting: Setting,
    prompt: int,
    tokens: int,
    answers: int,
    *,
    read_ns: int,
    written_ns: int,
    cached: int = 0,
) -> Cost:
    """That of one which was given up after `tokens` tokens of all its answers.

    It had a place for `read_ns` before its first token, or until it was given up, and for
    `written_ns` from then on; `prompt` counts tokens that had to be read, `cached` the others.
    """
    profile = setting.profile
    prefill = profile.prefill_ns * prompt + profile.step_ns
    part = 1.0 if tokens else min(1.0, read_ns / max(1.0, prefill))
    middle = cached + prompt + tokens / (2.0 * answers)
    live = (cached + part * prompt / 2.0) * read_ns + answers * middle * written_ns
    return Cost(
        prefill_ns=part * prefill * setting.threads,
        decode_ns=tokens * _writing_ns(setting, middle) * setting.threads,
        live_token_ms=live / 1e6,
        lasts_ns=float(read_ns + written_ns),
    )
