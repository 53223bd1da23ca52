"""Predicts when a decode worker gives the first token of a generation, and picks who gets it.

The decode worker's own scheduler plans every step and has the last word; this is what the
front door can know from outside: profiles, reports, and what it has sent since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

# Steps are planned to end within this share of the token target.
_STEP_SHARE = 0.95
# However crowded, prompts get this share of a step's time.
_LEAST_SHARE = 0.1
# A target that nobody asked for and nobody can keep becomes this times what it takes alone.
_STRETCH = 2.0
# The part of what is left that may pass before the first token, where only the deadline counts.
_PATIENCE = 0.5
# Without evidence, wider weights are taken for better ones.
_PRECISIONS = ("fp32", "fp16", "bf16", "int8", "q8", "q4")
_GAIN = 0.15
_LARGEST_RATIO = 4.0

NO_WEIGHTS: Final[Mapping[str, float]] = {}


@dataclass(frozen=True, slots=True)
class DecodeProfile:
    """What one step of a decoder costs, in ns; see `orchid.v1.DecodeProfile`.

    `step_ns + prefill_ns * chunk tokens + sequence_ns * decoding sequences + cached_ns *
    tokens attended to by decoding sequences`.
    """

    step_ns: float
    prefill_ns: float
    sequence_ns: float = 0.0
    cached_ns: float = 0.0
    sigma: float = 0.0
    kv_bytes_per_token: int = 0
    arena_tokens: int = 0


class DecodeLoad(NamedTuple):
    """The state of one model's arena and of the generations in it, as last reported.

    `block_map` has a byte for each cell of the arena; see `orchid.v1.DecodeLoad`.
    `pending_by_account` is None unless several accounts are there.
    """

    model: str = ""
    variant: str = ""
    waiting: int = 0
    prefilling: int = 0
    decoding: int = 0
    pending_prompt_tokens: int = 0
    cached_tokens: int = 0
    total_blocks: int = 0
    free_blocks: int = 0
    evictable_blocks: int = 0
    generated_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    shed: int = 0
    block_map: bytes = b""
    live_token_ms: int = 0
    pending_by_account: Mapping[str, int] | None = None


class Route(NamedTuple):
    """One variant on one decode worker, as a generation could be sent there.

    `quality` is the measured one (0 to 1), None without evidence; `most_tokens` bounds
    prompt and answer together; `sent_tokens` are prompt tokens that were sent there and no
    report counts yet; `correction` is what first tokens take over what the profile says.
    """

    worker: int
    variant: str
    precision: str
    quality: float | None
    profile: DecodeProfile
    load: DecodeLoad
    most_tokens: int = 0
    sent_tokens: int = 0
    correction: float = 1.0


class Demand(NamedTuple):
    """What a generation needs; times in ns from now.

    `target_ns` is the time to the first token, `token_ns` that between tokens, and
    `asked` and `token_asked` say whether the caller named them; `slack_ns` is what is left
    of the deadline.
    """

    prompt_tokens: int
    target_ns: int
    token_ns: int
    slack_ns: int
    asked: bool = False
    token_asked: bool = False


class RouteReason:
    """Stable words for where a generation went; they go to provenance and traces."""

    BEST: Final = "best-in-target"
    BEST_OF_REST: Final = "less-but-in-target"
    DEADLINE_ONLY: Final = "deadline-only"
    TOO_SHORT: Final = "deadline-too-short"
    NEVER: Final = "target-too-short"
    NEVER_TOKENS: Final = "token-target-too-short"
    NOT_NOW: Final = "not-in-target-now"


class Choice(NamedTuple):
    """Where a generation may go, best first, and the numbers the choice rests on, in ns.

    `routes` index the given routes; it is empty when none is expected to keep the target.
    `predicted_ns` is the first token's time on the first of them, else on the quickest
    route; `alone_ns` what the prompt takes on the quickest route with nothing else there.
    `target_ns` and `token_ns` are the targets to keep, where `token_ns` for a refusal is
    the time between tokens of the quickest route alone.
    """

    routes: tuple[int, ...]
    reason: str
    predicted_ns: int
    target_ns: int
    token_ns: int
    alone_ns: int
    retry_after_ns: int = 0


def step_ns(profile: DecodeProfile, load: DecodeLoad) -> float:
    """Time of a step that has no prompt tokens in it: what the residents need."""
    return (
        profile.step_ns
        + profile.sequence_ns * load.decoding
        + profile.cached_ns * load.cached_tokens
    )


def prompt_share(profile: DecodeProfile, load: DecodeLoad, token_ns: int) -> float:
    """Share of time that prompts get: 1 with nobody decoding, else what a step leaves.

    `1 - step / (0.95 * token target)`, at least 0.1.
    """
    if not load.decoding:
        return 1.0
    left = 1.0 - step_ns(profile, load) / (_STEP_SHARE * token_ns)
    return max(_LEAST_SHARE, left)


def lone_step_ns(route: Route, prompt_tokens: int) -> int:
    """Time between tokens of an answer with nothing else on the worker."""
    profile = route.profile
    return int(profile.step_ns + profile.sequence_ns + profile.cached_ns * prompt_tokens)


def token_target_ns(route: Route, demand: Demand) -> int:
    """The time between tokens to keep there.

    One that the caller did not name grows to twice what a step takes alone: a target that
    nobody can keep would leave prompts no share of any step.
    """
    if demand.token_asked:
        return demand.token_ns
    return max(demand.token_ns, int(_STRETCH * lone_step_ns(route, demand.prompt_tokens)))


def alone_ns(route: Route, prompt_tokens: int) -> int:
    """Time to the first token of a prompt with nothing else on the worker, as profiled.

    Less when first tokens were seen to come sooner: a profile may have been taken while
    others held the machine.
    """
    profiled = route.profile.step_ns + route.profile.prefill_ns * prompt_tokens
    return int(profiled * min(1.0, route.correction))


def first_token_ns(route: Route, prompt_tokens: int, token_ns: int) -> int:
    """Predicted time to the first token: the prompts before it, then its own, then a step.

    `(pending + own) * prefill / share + step`, corrected by what was seen. An idle worker
    is believed by its profile, or a correction that refuses everything would never end.
    """
    profile, load = route.profile, route.load
    waiting = load.pending_prompt_tokens + route.sent_tokens
    if not waiting and not load.decoding:
        return alone_ns(route, prompt_tokens)
    share = prompt_share(profile, load, token_ns)
    prefill = profile.prefill_ns * (waiting + prompt_tokens) / share
    return int((prefill + step_ns(profile, load)) * route.correction)


def fairly(
    route: Route,
    account: str,
    prompt_tokens: int,
    weights: Mapping[str, float] = NO_WEIGHTS,
) -> Route:
    """The route as an account's prompt finds it: others are before it only until it is its turn.

    `pending = own + sum over others of min(theirs, (own + prompt) * their weight / own weight)`, as
    the worker serves accounts; who has no weight has 1.
    """
    by_account = route.load.pending_by_account
    if not account or not by_account:
        return route
    own = by_account.get(account, 0)
    upto = (own + prompt_tokens) / weights.get(account, 1.0)
    before = own
    for name, tokens in by_account.items():
        if name != account:
            before += min(tokens, int(upto * weights.get(name, 1.0)))
    pending = min(before, route.load.pending_prompt_tokens)
    return route._replace(load=route.load._replace(pending_prompt_tokens=pending))


def rank(route: Route) -> tuple[int, float]:
    """Sorts routes from the best variant to the worst.

    Those with evidence first, by quality; the others by how wide their weights are.
    """
    if route.quality is not None:
        return (0, -route.quality)
    known = route.precision in _PRECISIONS
    return (1, float(_PRECISIONS.index(route.precision) if known else len(_PRECISIONS)))


def choose(routes: Sequence[Route], demand: Demand) -> Choice:
    """The routes that are expected to keep targets and deadline, the best variant's first.

    Of equals the one that is sooner. `routes` must not be empty. A target that the caller
    did not name grows to twice what the quickest route takes for the prompt alone.
    """
    tokens = demand.prompt_tokens
    alone = min([alone_ns(route, tokens) for route in routes])
    step = min([lone_step_ns(route, tokens) for route in routes])
    target = demand.target_ns
    if not demand.asked:
        stretched = [alone_ns(r, tokens) * max(1.0, r.correction) for r in routes]
        target = max(target, int(_STRETCH * min(stretched)))
    predicted = _predicted(routes, demand)
    soonest = min(predicted)
    refusal = Choice((), RouteReason.NOT_NOW, soonest, target, step, alone)
    if alone > demand.slack_ns:
        return refusal._replace(reason=RouteReason.TOO_SHORT)
    if alone > target:
        return refusal._replace(reason=RouteReason.NEVER)
    if demand.token_asked and step > demand.token_ns:
        return refusal._replace(reason=RouteReason.NEVER_TOKENS)
    limit = min(target, demand.slack_ns)
    quick = [lone_step_ns(r, tokens) <= token_target_ns(r, demand) for r in routes]
    fitting = [i for i, ns in enumerate(predicted) if ns <= limit and quick[i]]
    if not fitting:
        wait = min([ns for i, ns in enumerate(predicted) if quick[i]]) - limit
        return refusal._replace(retry_after_ns=wait)
    fitting.sort(key=lambda i: (rank(routes[i]), predicted[i]))
    first = fitting[0]
    is_best = rank(routes[first]) == min(map(rank, routes))
    reason = RouteReason.BEST if is_best else RouteReason.BEST_OF_REST
    token = token_target_ns(routes[first], demand)
    return Choice(tuple(fitting), reason, predicted[first], target, token, alone)


def choose_late(routes: Sequence[Route], demand: Demand, *, patient: bool = False) -> Choice:
    """Like `choose` for a generation whose target was lost with its worker: the soonest first.

    Only the deadline still counts. The target it is given is twice what it is predicted; a
    `patient` one, which workers refused for that, may wait for half of what is left.
    """
    predicted = _predicted(routes, demand)
    alone = min([alone_ns(route, demand.prompt_tokens) for route in routes])
    order = sorted(range(len(routes)), key=lambda i: predicted[i])
    fitting = tuple([i for i in order if predicted[i] <= demand.slack_ns])
    soonest = predicted[order[0]]
    target = max(demand.target_ns, int(_STRETCH * soonest))
    if patient:
        target = max(target, int(_PATIENCE * demand.slack_ns))
    token = token_target_ns(routes[order[0]], demand)
    reason = RouteReason.DEADLINE_ONLY if fitting else RouteReason.TOO_SHORT
    return Choice(fitting, reason, soonest, target, token, alone)


def _predicted(routes: Sequence[Route], demand: Demand) -> list[int]:
    """Time to the first token on each route."""
    tokens = demand.prompt_tokens
    return [first_token_ns(r, tokens, token_target_ns(r, demand)) for r in routes]


def corrected(correction: float, measured_ns: int, nominal_ns: float) -> float:
    """The correction after one first token: `m += 0.15 (r - m)`, r = measured / nominal.

    One that a frozen host held up counts at most fourfold.
    """
    if nominal_ns <= 0:
        return correction
    ratio = measured_ns / nominal_ns
    bounded = min(max(ratio, correction / _LARGEST_RATIO), correction * _LARGEST_RATIO)
    return correction + _GAIN * (bounded - correction)
