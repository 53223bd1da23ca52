"""A small pool for policy tests: two variants with round numbers, time counted in ms."""

from __future__ import annotations

import itertools

from controlplane.policy.admission import Bounds
from controlplane.policy.entries import Settings
from controlplane.policy.policies import build
from controlplane.policy.profiles import Candidate, VariantProfile, VariantTable
from controlplane.policy.records import Request, RequestClass, Shape
from controlplane.policy.scheduler import Scheduler

MS = 1_000_000
TOKENIZER = "words"
MODEL = "m"
ONE = Shape.of_lengths([10])


def candidate(
    name: str,
    quality: float,
    service_ms: float,
    *,
    fixed_share: float = 0.0,
    tokenizer: str = TOKENIZER,
    max_tokens: int = 100,
    batchable: bool = True,
    sigma: float = 0.0,
) -> Candidate:
    """A variant that takes `service_ms` for ten tokens, `fixed_share` of it whatever the size."""
    profile = VariantProfile(
        s0_ns=service_ms * MS * fixed_share,
        s1_ns=service_ms * MS * (1.0 - fixed_share) / 10,
        sigma=sigma,
        reference_tokens=10,
        p50_ns=service_ms * MS,
    )
    return Candidate(name, tokenizer, quality, profile, max_tokens, batchable)


BEST, FAST = candidate("best", 0.9, 10.0), candidate("fast", 0.8, 4.0)
TABLE = VariantTable.build([FAST, BEST])
_ids = itertools.count(1)


def request(
    deadline_ms: float,
    *,
    at_ms: float = 0.0,
    klass: RequestClass | None = None,
    table: VariantTable = TABLE,
    shape: Shape = ONE,
    model: str = MODEL,
) -> Request:
    """A request that arrives at `at_ms` and has `deadline_ms` from then on."""
    klass = klass or RequestClass()
    shapes = {TOKENIZER: shape}
    return Request(
        id=next(_ids),
        model=model,
        klass=klass,
        shapes=shapes,
        payload=None,
        arrived_ns=int(at_ms * MS),
        deadline_ns=int((at_ms + deadline_ms) * MS),
        eligible=table.eligible(klass, shapes),
    )


def scheduler(
    workers: int = 1,
    *,
    policy: str = "orchid",
    table: VariantTable = TABLE,
    prefetch: int = 1,
    max_batch: int = 1,
    max_items: int = 100,
    max_work_ms: int = 10_000,
    reserve: float = 0.35,
) -> Scheduler:
    """A scheduler with one pool whose round trip takes no time."""
    settings = Settings(
        Bounds(max_items, max_work_ms * MS),
        reserve=reserve,
        prefetch=prefetch,
        max_batch=max_batch,
    )
    made = Scheduler(build(policy, confidence_z=1.645, reserve=reserve), settings)
    made.set_pool(MODEL, table)
    for number in range(1, workers + 1):
        made.set_worker(number, {MODEL: frozenset(table.numbers)}, 0)
    made.assume_trip(0)
    return made
