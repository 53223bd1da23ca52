"""Whether the whole path answers as the manifest's evaluation says: every test text, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.load.codec import NativeCodec
from bench.load.plan import LoadPlan, Workload
from bench.report import Report, host_facts, make_report
from bench.workloads import evidence_of
from deploy.channels import aio_channel
from deploy.cluster import ClusterSpec, LocalCluster

_IN_FLIGHT = 16
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class VariantAccuracy:
    """Right answers of one variant through the path, beside the manifest's."""

    variant: str
    texts: int
    right: int
    evidence_right: int

    @property
    def difference(self) -> int:
        """Answers by which the path differs from the evidence."""
        return self.right - self.evidence_right


def run_accuracy(
    spec: ClusterSpec,
    model: str,
    workload: Workload,
    variants: Sequence[str],
    *,
    repository: Path,
    notify: Callable[[str, int, int], None] = lambda *_: None,
) -> Report:
    """Starts a cluster and asks every variant about every text; no variants means all.

    Summary: `largest_difference` in answers, and each variant's accuracy. Raises
    ClusterError, grpc.RpcError when a request fails, and WorkloadError when the manifest
    has no evidence on these texts.
    """
    host = host_facts()
    evidence = evidence_of(repository, model, len(workload.texts))
    chosen = tuple(variants) or tuple(evidence)
    unknown = sorted(set(chosen) - set(evidence))
    if unknown:
        raise ValueError(f"no evidence of {', '.join(unknown)}; there is of {', '.join(evidence)}")
    found = []
    with LocalCluster(spec) as cluster:
        cluster.wait_ready(timeout_s=300)
        for number, variant in enumerate(chosen):
            notify(variant, number, len(chosen))
            plan = LoadPlan(cluster.address, model, 1.0, mode="closed", variant=variant)
            predicted = asyncio.run(_predict(plan, workload.texts))
            right = int((predicted == np.array(workload.labels)).sum())
            found.append(VariantAccuracy(variant, len(predicted), right, evidence[variant]))
    return make_report(
        "accuracy",
        host=host,
        settings={"model": model, "workers": spec.workers},
        points=[_point(entry) for entry in found],
        summary={
            "largest_difference": float(max(abs(entry.difference) for entry in found)),
            **{f"accuracy_{entry.variant}": entry.right / entry.texts for entry in found},
        },
    )


def _point(entry: VariantAccuracy) -> dict[str, Any]:
    return {
        "variant": entry.variant,
        "texts": entry.texts,
        "right": entry.right,
        "evidence_right": entry.evidence_right,
        "difference": entry.difference,
    }


async def _predict(plan: LoadPlan, texts: Sequence[str]) -> NDArray[np.int64]:
    """The class of each text, in order, with a fixed number of requests in flight."""
    codec = NativeCodec()
    predicted = np.full(len(texts), -1, np.int64)
    rows = iter(range(len(texts)))
    async with aio_channel(plan.target) as channel:
        call: Any = channel.unary_unary(codec.unary_method)

        async def work() -> None:
            for row in rows:
                response = await call(codec.body(plan, texts[row]), timeout=_TIMEOUT_S)
                predicted[row] = codec.answer(response).predicted

        await asyncio.gather(*(work() for _ in range(_IN_FLIGHT)))
    return predicted
