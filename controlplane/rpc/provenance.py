"""Where an answer came from, on the wire."""

from __future__ import annotations

from controlplane.policy.records import Provenance
from protos.orchid.v1 import inference_pb2


def write_provenance(provenance: Provenance) -> inference_pb2.Provenance:
    """Which deployment answered, and why that one."""
    stages = provenance.stages
    return inference_pb2.Provenance(
        model=provenance.model,
        model_version=provenance.model_version,
        variant=provenance.variant,
        manifest_digest=provenance.manifest_digest,
        reason=provenance.reason,
        approximation=provenance.approximation,
        quality=provenance.quality,
        worker_id=provenance.worker_id,
        overload_level=provenance.overload_level,
        stages=None if stages is None else inference_pb2.Stages(**stages._asdict()),
    )
