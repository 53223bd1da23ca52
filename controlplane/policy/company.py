"""Who of a pool's queue shares a run with its head, and whether the head waits for them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from controlplane.policy import batching
from controlplane.policy.entries import Choice, Entry, Taker
from controlplane.policy.profiles import Candidate
from controlplane.policy.records import Decision
from controlplane.policy.selector import Situation

if TYPE_CHECKING:
    from controlplane.policy.pool import Pool


def held_back(pool: Pool, trip_ns: float) -> bool:
    """Whether the head gains by waiting until a worker is free."""
    head = pool.line.head()
    if head is None:
        return True
    candidate = pool.table.candidates[head.fastest]
    return candidate.batchable and batching.better_late(
        candidate.profile,
        head.request.shapes[candidate.tokenizer],
        service_ns=head.fastest_ns * pool.foresight.corrections.factors[head.fastest],
        trip_ns=trip_ns,
        room=pool.settings.max_batch - pool.queued,
    )


def with_followers(
    pool: Pool,
    head: Entry,
    decision: Decision,
    situation: Situation,
    taker: Taker,
    now_ns: int,
    trip_ns: float,
) -> Choice:
    """The run of a head that has left the queue, and of those who leave it to share that run."""
    number = decision.variant
    candidate = pool.table.candidates[number]
    shape = head.request.shapes[candidate.tokenizer]
    limit = 1
    if situation.waiting and candidate.batchable and batching.pays(candidate.profile, shape):
        share = batching.fair_share(situation.waiting + 1, taker.takers)
        limit = min(pool.settings.max_batch, share)
    if limit > 1:
        joined = _followers(pool, head, number, situation, now_ns, trip_ns, limit)
        if joined:
            return _shared(pool, head, joined, decision, candidate)
    nominal = head.nominal_ns[head.request.eligible.index(number)]
    return Choice(decision, candidate, (head.request,), nominal, (number != head.best,))


def _followers(
    pool: Pool,
    head: Entry,
    number: int,
    situation: Situation,
    now_ns: int,
    trip_ns: float,
    limit: int,
) -> list[Entry]:
    candidate, corrections = pool.table.candidates[number], pool.foresight.corrections
    if pool.tenancy is None and not pool.line.has_company(number, limit):
        return []
    mates: list[Entry] = []
    apart: list[Entry] = []

    def members() -> Iterator[batching.Member]:
        for entry in pool.line.first(2 * limit):
            if not entry.mask >> number & 1:
                continue
            if entry.request.cell != head.request.cell:
                apart.append(entry)
                continue
            mates.append(entry)
            yield _member(pool, entry, candidate.tokenizer, now_ns, trip_ns)

    run = batching.Run(
        profile=candidate.profile,
        factor=corrections.factors[number],
        sigma=corrections.sigmas[number],
        start_ns=situation.start_ns,
        start_spread_ns=situation.start_spread_ns,
        ahead_ns=situation.busy_ns + situation.queued_ns,
        workers=max(1, pool.live),
        z=pool.settings.confidence_z,
        reserve=pool.settings.reserve,
        fallback=number == head.fastest,
    )
    first = _member(pool, head, candidate.tokenizer, now_ns, trip_ns)
    joined = batching.grow(first, members(), run, limit)
    if apart and head.request.cell and pool.tenancy is not None:
        # What is the same for every run was not shared with them.
        pool.tenancy.apart(head.request.klass, candidate.profile.s0_ns * run.factor)
    return [mates[place] for place in joined]


def _shared(
    pool: Pool, head: Entry, joined: list[Entry], decision: Decision, candidate: Candidate
) -> Choice:
    for entry in joined:
        pool.line.remove(entry.request.id)
    members = [head, *joined]
    shapes = [entry.request.shapes[candidate.tokenizer] for entry in members]
    nominal = candidate.profile.predict(shapes[0], shapes[1:])
    for entry, shape in zip(members, shapes, strict=True):
        nominal += int(batching.surcharge_ns(candidate.profile, shape, entry.request.price))
    predicted = nominal * pool.foresight.corrections.factors[decision.variant]
    return Choice(
        decision=decision._replace(batch=len(members), predicted_ns=predicted),
        candidate=candidate,
        requests=tuple(entry.request for entry in members),
        nominal_ns=nominal,
        approximations=tuple(decision.variant != entry.best for entry in members),
    )


def _member(
    pool: Pool, entry: Entry, tokenizer: str, now_ns: int, trip_ns: float
) -> batching.Member:
    request = entry.request
    return batching.Member(
        shape=request.shapes[tokenizer],
        slack_ns=request.deadline_ns - now_ns - int(trip_ns),
        deadline_ns=request.budget_ns,
        fastest_ns=entry.fastest_ns * pool.foresight.corrections.factors[entry.fastest],
        price=request.price,
    )
