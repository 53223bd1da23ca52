"""Calls to a control plane and its workers: their status, drains, and models on and off."""

from __future__ import annotations

import grpc

from deploy.access import Access
from deploy.channels import channel as channel_to
from deploy.channels import unreachable
from deploy.fleet_views import FleetStatus, ModelProgress, fleet_status, models_progress
from protos.inference import oip_pb2, oip_pb2_grpc
from protos.orchid.v1 import fleet_pb2, fleet_pb2_grpc, worker_pb2, worker_pb2_grpc


class FleetError(Exception):
    """Nothing answers at the address, or it refuses; the text says why."""


class AccessRefused(FleetError):
    """It answers, but not to this caller."""


def fetch_status(address: str, timeout_s: float = 5.0, access: Access | None = None) -> FleetStatus:
    """Asks a control plane for its status; raises FleetError."""
    with channel_to(address, access=access) as channel:
        stub = fleet_pb2_grpc.FleetStub(channel)
        try:
            response = stub.GetStatus(
                fleet_pb2.GetStatusRequest(), timeout=timeout_s, wait_for_ready=False
            )
        except grpc.RpcError as error:
            raise _fault(address, error) from None
    return fleet_status(response)


def fetch_progress(
    address: str, timeout_s: float = 5.0, access: Access | None = None
) -> tuple[ModelProgress, ...]:
    """Asks a worker how far its models are; raises FleetError."""
    with channel_to(address, access=access) as channel:
        stub = worker_pb2_grpc.WorkerStub(channel)
        try:
            response = stub.Describe(worker_pb2.DescribeRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            raise _fault(address, error) from None
    return models_progress(response)


def drain_worker(address: str, *, timeout_s: float, leave: bool = False) -> tuple[int, int]:
    """Has a worker refuse new work and finish what it has, for so long at most.

    `leave` ends its process then. Returns how many items it finished and how many it gave up;
    raises FleetError.
    """
    request = worker_pb2.DrainRequest(timeout_ms=int(timeout_s * 1e3), exit=leave)
    with channel_to(address) as channel:
        try:
            report = worker_pb2_grpc.WorkerStub(channel).Drain(request, timeout=timeout_s + 5.0)
        except grpc.RpcError as error:
            raise _fault(address, error) from None
    return report.finished_items, report.abandoned_items


def load_model(address: str, name: str) -> None:
    """Loads a model on every worker that has it and waits until it is ready; raises FleetError."""
    with channel_to(address) as channel:
        try:
            oip_pb2_grpc.GRPCInferenceServiceStub(channel).RepositoryModelLoad(
                oip_pb2.RepositoryModelLoadRequest(model_name=name)
            )
        except grpc.RpcError as error:
            raise _fault(address, error) from None


def unload_model(address: str, name: str) -> None:
    """Takes a model off every worker and waits until it is gone; raises FleetError."""
    with channel_to(address) as channel:
        try:
            oip_pb2_grpc.GRPCInferenceServiceStub(channel).RepositoryModelUnload(
                oip_pb2.RepositoryModelUnloadRequest(model_name=name)
            )
        except grpc.RpcError as error:
            raise _fault(address, error) from None


def _fault(address: str, error: grpc.RpcError) -> FleetError:
    codes = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
    refused = isinstance(error, grpc.Call) and error.code() in codes
    return (AccessRefused if refused else FleetError)(unreachable(address, _text(error)))


def _text(error: grpc.RpcError) -> str:
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return str(error)
