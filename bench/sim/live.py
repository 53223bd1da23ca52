"""The model of a running cluster, as its control plane sees it, for the simulator."""

from __future__ import annotations

import grpc

from bench.sim.model import SimModel
from controlplane.config import ControlPlaneConfig
from controlplane.deployment import variant_table
from controlplane.registry import Registry, WorkerIdentity
from controlplane.rpc.wire import read_models
from deploy.channels import channel as channel_to
from deploy.fleet import FleetError, fetch_status
from protos.orchid.v1 import worker_pb2, worker_pb2_grpc

_TIMEOUT_S = 5.0


def live_model(address: str, model: str) -> SimModel:
    """Variants, qualities and service profiles of a model that is being served.

    Asks every worker of the control plane at `address` and merges their profiles by the
    control plane's own rule. Raises FleetError, and ValueError when nobody has it ready.
    """
    registry = Registry()
    for number, worker in enumerate(fetch_status(address).workers):
        identity = WorkerIdentity(
            worker.id, worker.address, worker.threads, worker.cpu_model, worker.simd
        )
        described = _describe(worker.address, model)
        registry.report_models(registry.join(identity, number), read_models(described.models))
    membership = registry.membership(model)
    if membership is None:
        raise ValueError(f"no worker of {address} serves {model}")
    resolution = ControlPlaneConfig().quality_resolution
    table = variant_table(membership.model, resolution)
    if not len(table):
        raise ValueError(f"no variant of {model} is ready at {address}")
    return SimModel(model, table.candidates, resolution, table.evidence)


def _describe(address: str, model: str) -> worker_pb2.DescribeResponse:
    with channel_to(address) as channel:
        stub = worker_pb2_grpc.WorkerStub(channel)
        try:
            return stub.Describe(worker_pb2.DescribeRequest(models=[model]), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            raise FleetError(f"worker {address} does not describe {model}: {error}") from None
