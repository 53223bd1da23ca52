"""The decode lane: short answers of one tenant beside another's long contexts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc

from bench.generation.plan import GenerationPlan
from bench.generation.run import generation_records, run_generations
from bench.isolation.lane import OTHER, STEADY, Begin, IsolationSettings
from bench.isolation.seen import Seen
from bench.load.processes import soon
from deploy.cluster import ClusterSpec, LocalCluster

_READY_S = 120
# As many are in flight while the capacity is measured: long ones still find their blocks.
_WIDTHS = {STEADY: 8, OTHER: 4}
_CAPACITY_S = 10.0
_REFUSED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
# The arena, and no more blocks than it has of the default model.
_ARENA_MIB, _BLOCKS = 96, 256
# Tokens of prompts and answers.
KINDS = {STEADY: ((16, 48), (8, 24)), OTHER: ((160, 352), (16, 48))}


class DecodeLane:
    """The steady tenant has short conversations, the other one long contexts.

    A share of 1 is what the lane completes of a tenant's own generations in a closed loop, times
    what is reserved for it.
    """

    def __init__(self, settings: IsolationSettings, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self._settings = settings
        self._plans = {
            tenant: GenerationPlan(
                target=cluster.address,
                model=settings.decoder,
                vocabulary=settings.vocabulary,
                in_flight=_WIDTHS[tenant],
                seconds=_CAPACITY_S,
                warmup_s=0.5,
                drain_s=10.0,
                prompt_tokens=prompts,
                answer_tokens=answers,
                # Nobody is to be refused while the capacity is measured.
                first_token_ms=60_000.0,
                token_ms=1000.0,
                door="controlplane",
                tenant=tenant,
            )
            for tenant, (prompts, answers) in KINDS.items()
        }
        self.capacity = {
            tenant: run_generations(plan, start_at=soon).completed_per_s
            for tenant, plan in self._plans.items()
        }
        if not all(self.capacity.values()):
            raise ValueError(f"no generation ended within {_CAPACITY_S:g} s: {self.capacity}")

    @property
    def deadline_ns(self) -> int:
        """That of first tokens."""
        return int(self._settings.first_token_ms * 1e6)

    def ask(self, tenant: str, load: float, seconds: float, seed: int, begin: Begin) -> list[Seen]:
        """A tenant's own generations, Poisson; see `Lane`."""
        return self._ask(tenant, tenant, load, seconds, seed, begin)

    def flood(self, tenant: str, seconds: float, seed: int, begin: Begin) -> list[Seen]:
        """Short answers of either: who asks for long ones is refused more often in any turn."""
        return self._ask(tenant, STEADY, self._settings.times, seconds, seed, begin)

    def _ask(
        self, tenant: str, kind: str, load: float, seconds: float, seed: int, begin: Begin
    ) -> list[Seen]:
        settings = self._settings
        share = settings.reserved if tenant == STEADY else 1.0 - settings.reserved
        plan = replace(
            self._plans[kind],
            tenant=tenant,
            in_flight=0,
            rate_per_s=load * share * self.capacity[kind],
            seconds=seconds,
            warmup_s=0.0,
            first_token_ms=settings.first_token_ms,
            token_ms=settings.token_ms,
            seed=seed,
        )
        found = []
        for record in generation_records(plan, start_at=begin):
            times = {"first_token_ms": record.first_token_ms} if record.first_ns else {}
            if record.complete:
                times["token_ms"] = record.token_ms
            found.append(
                Seen(
                    due_ns=record.due_ns,
                    over_ns=record.first_ns,
                    on_time=record.attained(plan),
                    refused=record.code == _REFUSED,
                    times_ms=times,
                )
            )
        return sorted(found, key=lambda each: each.due_ns)


@contextmanager
def decode_lane(settings: IsolationSettings, repository: Path, base: Path) -> Iterator[DecodeLane]:
    """A cluster with one decode worker, and its capacity; raises ClusterError, DriverError."""
    steady = round(settings.reserved * _BLOCKS)
    named = {
        STEADY: {"kv_block_s_per_s": steady},
        OTHER: {"kv_block_s_per_s": _BLOCKS - steady},
    }
    spec = ClusterSpec(
        workers=0,
        directory=base / "state",
        listen="127.0.0.1:0",
        repository=repository,
        models=(settings.decoder,),
        decode_threads=settings.workers,
        decode={"arena_mib": _ARENA_MIB},
        controlplane={
            "tenants": {"named": named},
            "records": {"file": str(base / "records.sqlite")},
        },
    )
    with LocalCluster(spec) as cluster:
        cluster.wait_ready(timeout_s=_READY_S)
        yield DecodeLane(settings, cluster)
