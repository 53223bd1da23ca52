"""Tensors of many megabytes take the way around protobuf, through real processes."""

from __future__ import annotations

from pathlib import Path

import grpc
import numpy as np

from protos.inference import oip_pb2, oip_pb2_grpc
from tests.integration.conftest import StartCluster
from tests.integration.support import settled
from worker.models.synthetic import build_tensor_model


def test_a_large_tensor_comes_back_right(start_cluster: StartCluster, tmp_path: Path) -> None:
    build_tensor_model(tmp_path / "models")
    cluster = start_cluster(models=("adder",), repository=tmp_path / "models")
    a = np.arange(2_000_000, dtype=np.float32)
    request = oip_pb2.ModelInferRequest(model_name="adder")
    for name, array in (("a", a), ("b", a[::-1])):
        request.inputs.add(name=name, datatype="FP32", shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    limit = ("grpc.max_receive_message_length", 64 << 20)
    with grpc.insecure_channel(cluster.address, options=(limit,)) as channel:
        stub = oip_pb2_grpc.GRPCInferenceServiceStub(channel)
        response = stub.ModelInfer(request, timeout=60)
    total = np.frombuffer(response.raw_output_contents[0], np.float32)
    assert np.array_equal(total, np.full(len(a), a[-1]))
    settled(cluster.address)
