"""Asks a process whether it can be given work, as container health checks do."""

from __future__ import annotations

import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.channels import channel as channel_to

_POLL_S = 0.5
_STATUS = health_pb2.HealthCheckResponse.ServingStatus


def unready(address: str, service: str = "", timeout_s: float = 2.0) -> str:
    """Why a service or model is not serving at the address, empty when it is.

    "" asks whether any model can be asked, a model's name about that one, `orchid.v1.Worker`
    and `orchid.v1.Fleet` whether the process itself answers and is not on its way down.
    """
    with channel_to(address) as channel:
        try:
            response = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=timeout_s
            )
        except grpc.RpcError as error:
            if not isinstance(error, grpc.Call):
                raise
            return f"{error.code().name}: {error.details()}"
    if response.status == health_pb2.HealthCheckResponse.SERVING:
        return ""
    return str(_STATUS.Name(response.status))


def await_ready(address: str, service: str = "", *, timeout_s: float, wait_s: float = 0.0) -> str:
    """Asks until it is ready or `wait_s` are over; returns why it still was not, empty if it is."""
    deadline = time.monotonic() + wait_s
    while (reason := unready(address, service, timeout_s)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return reason
