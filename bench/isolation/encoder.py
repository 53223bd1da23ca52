"""The encoder lane: short and long requests to a model of two variants, as in the drill."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.drill.arithmetic import FIXTURE
from bench.drill.live import text_of
from bench.drill.model import build, iteration_ms
from bench.drill.scene import COMPACT, FULL, MODEL, Ask
from bench.isolation.lane import OTHER, STEADY, Begin, IsolationSettings
from bench.isolation.seen import Seen
from bench.load.plan import LoadPlan, Tenant, Workload
from bench.load.record import OK
from bench.load.run import run_records
from bench.sim.result import Ending
from deploy.cluster import ClusterSpec, LocalCluster

_READY_S = 120
# Short requests for each long one, about as in the fixture.
_SHORT = 8


class EncoderLane:
    """Both tenants ask the same mix of requests; variants are the control plane's choice."""

    def __init__(self, settings: IsolationSettings, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self._settings = settings
        kinds = ["short"] * _SHORT + ["long"]
        texts = tuple(text_of(Ask(0, kind, "")) for kind in kinds)
        self._qualities = {FULL: FIXTURE.full_quality, COMPACT: FIXTURE.compact_quality}
        self._workload = Workload(texts, (-1,) * len(texts), qualities=self._qualities)
        costs = {kind.name: kind.full_ms * settings.scale for kind in FIXTURE.kinds}
        self._mean_ms = sum(costs[kind] for kind in kinds) / len(kinds)

    @property
    def deadline_ns(self) -> int:
        """That of every request."""
        return int(self._settings.deadline_ms * 1e6)

    def ask(self, tenant: str, load: float, seconds: float, seed: int, begin: Begin) -> list[Seen]:
        """A tenant's requests, Poisson; see `Lane`. A share is what the full variant takes."""
        settings = self._settings
        share = settings.reserved if tenant == STEADY else 1.0 - settings.reserved
        plan = LoadPlan(
            target=self.cluster.address,
            model=MODEL,
            rate_per_s=load * share * settings.workers * 1000.0 / self._mean_ms,
            duration_s=seconds,
            warmup_s=0.0,
            deadline_ms=settings.deadline_ms,
            tenants=(Tenant(tenant),),
            seed=seed,
        )
        records = run_records(plan, self._workload, start_at=begin)
        found = []
        for row, due in enumerate(records.due_ns.tolist()):
            answered = int(records.code[row]) == OK
            ending = Ending(int(records.ending[row]))
            done = int(records.done_ns[row])
            variant = int(records.variant[row])
            quality = self._qualities[records.variants[variant]] if variant >= 0 else float("nan")
            found.append(
                Seen(
                    due_ns=due,
                    over_ns=done,
                    on_time=ending is Ending.ON_TIME,
                    refused=ending in (Ending.REFUSED, Ending.SHED),
                    times_ms={"answer_ms": (done - due) / 1e6} if answered else {},
                    quality=quality,
                )
            )
        return found

    def flood(self, tenant: str, seconds: float, seed: int, begin: Begin) -> list[Seen]:
        """As it asks anyway."""
        return self.ask(tenant, self._settings.times, seconds, seed, begin)


@contextmanager
def encoder_lane(settings: IsolationSettings, base: Path) -> Iterator[EncoderLane]:
    """A cluster with the model and both tenants; raises ClusterError."""
    fixture = FIXTURE.scaled(settings.workers, settings.scale)
    build(base / "models", fixture, iteration_ms(base / "probe", settings.workers),
          fixture.compact_quality)  # fmt: skip
    whole = settings.workers * 1000
    steady = round(settings.reserved * whole)
    named = {STEADY: {"cpu_ms_per_s": steady}, OTHER: {"cpu_ms_per_s": whole - steady}}
    spec = ClusterSpec(
        workers=settings.workers,
        directory=base / "state",
        listen="127.0.0.1:0",
        repository=base / "models",
        # Profiles of this run's variants are of no use to another.
        env={"XDG_CACHE_HOME": str(base / "cache")},
        controlplane={
            # One request a run: what a run was charged is then what its request was.
            "max_batch": 1,
            "tenants": {"named": named},
            "records": {"file": str(base / "records.sqlite")},
        },
    )
    with LocalCluster(spec) as cluster:
        cluster.wait_ready(timeout_s=_READY_S)
        yield EncoderLane(settings, cluster)
