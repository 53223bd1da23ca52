"""Which decode workers may answer a generation, and what a caller is told when none may."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from controlplane.deployed import ModelInfo, VariantInfo
from controlplane.errors import (
    ContextOverflow,
    ControlPlaneError,
    Refused,
    TooLate,
    Unavailable,
    Unsatisfiable,
)
from controlplane.generation.lanes import Lane, Lanes
from controlplane.generation.quality import measured_quality
from controlplane.policy.decode import Choice, Demand, Route, RouteReason, rank
from controlplane.policy.records import RequestClass
from controlplane.registry import Membership, Registry
from controlplane.wording import counted, listed, shown

_MS = 1_000_000
# About what a worker that was started again needs to be back.
_BACK_MS = 1000


class Candidate(NamedTuple):
    """One worker and the variant it would answer with."""

    lane: Lane
    route: Route
    variant: VariantInfo


def candidates(
    registry: Registry, lanes: Lanes, model: ModelInfo, klass: RequestClass
) -> list[Candidate]:
    """Every variant that is ready on a worker and may answer requests of this class.

    Where no approximation is allowed, the best of these only.

    Raises Unavailable when no decode worker has the model ready, Unsatisfiable when the
    class leaves none of what they have.
    """
    settings = model.generation
    assert settings is not None
    membership = registry.membership(model.name)
    found: list[Candidate] = []
    obstacles: dict[str, str] = {}
    serving = lanes.serving(model.name)
    for lane in serving:
        ready = membership.workers.get(lane.session.number, ()) if membership else ()
        for variant in lane.session.models[model.name].variants:
            if variant.name not in ready or variant.decode is None:
                continue
            obstacle = _obstacle(model.name, variant, klass)
            if obstacle:
                obstacles[variant.name] = obstacle
            else:
                route = lane.route(model.name, settings.context, variant)
                found.append(Candidate(lane, route, variant))
    if found:
        return found if klass.approximation else _best(found)
    if klass.variant and obstacles and klass.variant not in obstacles:
        raise Unavailable(
            f"the request is pinned to variant {shown(klass.variant)}, which no decode worker has "
            f"ready now; ready: {listed(obstacles)}",
            _BACK_MS,
        )
    if obstacles:
        told = "; ".join(f"{name}: {why}" for name, why in sorted(obstacles.items()))
        raise Unsatisfiable(f"no variant may answer: {told}")
    raise unready(model.name, membership)


def _best(found: Sequence[Candidate]) -> list[Candidate]:
    best = min([rank(each.route) for each in found])
    return [each for each in found if rank(each.route) == best]


def unready(name: str, membership: Membership | None) -> Unavailable:
    """The error when no decode worker can serve a model now."""
    if membership is None:
        return Unavailable(f"no decode worker serves model {shown(name)} now", _BACK_MS)
    info = membership.model
    if info.ready:
        return Unavailable(f"no decode worker of model {shown(name)} takes work now", _BACK_MS)
    progress = f" ({info.progress:.0%})" if not info.failure else f": {info.failure}"
    return Unavailable(f"model {shown(name)} is {info.state.value}{progress}", _BACK_MS)


def _obstacle(model: str, variant: VariantInfo, klass: RequestClass) -> str:
    """Why a variant may not answer, empty when it may."""
    if klass.variant and variant.name != klass.variant:
        return f"the request is pinned to {klass.variant}"
    if variant.name in klass.prohibited:
        return "prohibited"
    quality, floor = measured_quality(variant), klass.minimum_quality
    if floor and quality is None:
        return (
            f"its quality has not been measured, so it meets no floor ({floor:.4f} is asked); "
            f"`orchid models evaluate {model}` measures it"
        )
    if quality is not None and quality < floor:
        return f"quality {quality:.4f} is below the floor {floor:.4f}"
    return ""


def long_enough(
    found: Sequence[Candidate], model: ModelInfo, prompt_tokens: int, max_tokens: int
) -> list[Candidate]:
    """The candidates that hold the prompt and its answer, which has at least one token.

    Raises ContextOverflow with the numbers when none does.
    """
    needed = prompt_tokens + max(1, max_tokens)
    kept = [c for c in found if needed <= c.route.most_tokens or not c.route.most_tokens]
    if kept:
        return kept
    most = max(c.route.most_tokens for c in found)
    holds = _holds(model, most)
    prompt = f"the prompt has {counted(prompt_tokens, 'token')}"
    if prompt_tokens >= most:
        raise ContextOverflow(
            f"{prompt} and needs at least 1 more for an answer; "
            f"{holds}: shorten the prompt by {prompt_tokens + 1 - most}"
        )
    raise ContextOverflow(
        f"{prompt} and max_tokens is {max_tokens}, "
        f"{needed} together; {holds}: max_tokens may be up to {most - prompt_tokens}"
    )


def answer_fits(found: Sequence[Candidate], model: ModelInfo, max_tokens: int) -> None:
    """ContextOverflow when an answer alone is longer than any candidate can hold."""
    if any(not c.route.most_tokens or max_tokens < c.route.most_tokens for c in found):
        return
    most = max(c.route.most_tokens for c in found)
    raise ContextOverflow(
        f"max_tokens is {max_tokens}; {_holds(model, most)}, the prompt's among them: max_tokens "
        f"may be up to {most - 1}"
    )


def _holds(model: ModelInfo, most: int) -> str:
    settings = model.generation
    assert settings is not None
    if most >= settings.context:
        return f"the context of model {shown(model.name)} is {most} tokens"
    return f"the workers of model {shown(model.name)} hold sequences of {most} tokens"


def refusal(choice: Choice, demand: Demand, asked_ms: float) -> ControlPlaneError:
    """The error when no candidate is expected to be in time; `asked_ms` is the deadline."""
    predicted, alone = _ms(choice.predicted_ns), _ms(choice.alone_ns)
    prompt = f"a prompt of {counted(demand.prompt_tokens, 'token')}"
    if choice.reason == RouteReason.TOO_SHORT:
        return TooLate(
            f"the deadline of {_ms(asked_ms * _MS)} is shorter than {prompt} takes "
            f"until the first token (at least {alone})"
        )
    if choice.reason == RouteReason.NEVER:
        return Unsatisfiable(
            f"first_token_target_ms leaves {_ms(choice.target_ns)}; {prompt} takes at "
            f"least {alone} on the quickest worker"
        )
    if choice.reason == RouteReason.NEVER_TOKENS:
        return Unsatisfiable(
            f"token_target_ms is {demand.token_ns / _MS:g}; a token takes at least "
            f"{choice.token_ns / _MS:.1f} ms on the quickest worker"
        )
    limit, field = f"its target is {_ms(choice.target_ns)}", "first_token_target_ms"
    if demand.slack_ns < choice.target_ns:
        limit, field = f"its deadline leaves {_ms(demand.slack_ns)}", "deadline"
    return Refused(
        f"the first token would come after {predicted}, {limit}: prompts that came before are "
        f"still being read; a longer {field} waits for them",
        max(1, choice.retry_after_ns // _MS),
    )


def _ms(time_ns: float) -> str:
    """A time for a caller to read; what is little is not made nothing by rounding."""
    milliseconds = max(0.0, time_ns / _MS)
    digits = ".0f" if milliseconds >= 10 or not milliseconds else ".2g"
    return f"{milliseconds:{digits}} ms"
