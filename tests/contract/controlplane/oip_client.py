"""Requests of the Open Inference Protocol, written as a client would write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import grpc
import numpy as np

from protos.inference import oip_pb2, oip_pb2_grpc
from tests.contract.controlplane.front_door import ADDER, MODEL, Door

Parameters = Mapping[str, str | bool | int | float]
NUMPY = {"FP32": "<f4", "INT64": "<i8", "INT32": "<i4", "BOOL": "?", "FP64": "<f8"}


def stub(door: Door) -> oip_pb2_grpc.GRPCInferenceServiceAsyncStub:
    """The service as grpc.aio clients see it."""
    made: Any = oip_pb2_grpc.GRPCInferenceServiceStub(door.channel)
    return made  # type: ignore[no-any-return]


def raw_unary(channel: grpc.aio.Channel, method: str) -> Any:
    """A unary method of the service as a callable over bytes."""
    made: Any = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
    return made


def raw_stream(channel: grpc.aio.Channel) -> Any:
    """ModelStreamInfer as a callable over bytes."""
    made: Any = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    return made


def framed(texts: Iterable[bytes]) -> bytes:
    """Raw contents of a BYTES tensor."""
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def set_parameters(into: Any, parameters: Parameters) -> None:
    """Fill a parameter map by the Python types of the values."""
    for name, value in parameters.items():
        if isinstance(value, bool):
            into[name].bool_param = value
        elif isinstance(value, int):
            into[name].int64_param = value
        elif isinstance(value, float):
            into[name].double_param = value
        else:
            into[name].string_param = value


def text_request(
    *texts: str, request_id: str = "", shape: Sequence[int] = (), **parameters: Any
) -> oip_pb2.ModelInferRequest:
    """Texts as raw BYTES."""
    request = oip_pb2.ModelInferRequest(model_name=MODEL, id=request_id)
    request.inputs.add(name="text", datatype="BYTES", shape=shape or (len(texts),))
    request.raw_input_contents.append(framed(text.encode() for text in texts))
    set_parameters(request.parameters, parameters)
    return request


def ids_request(
    ids: Any, mask: Any = None, *, datatype: str = "INT64", request_id: str = "", **parameters: Any
) -> oip_pb2.ModelInferRequest:
    """Token ids, and a mask, as raw tensors."""
    request = oip_pb2.ModelInferRequest(model_name=MODEL, id=request_id)
    for name, values in (("input_ids", ids), ("attention_mask", mask)):
        if values is not None:
            array = np.array(values, NUMPY[datatype])
            request.inputs.add(name=name, datatype=datatype, shape=array.shape)
            request.raw_input_contents.append(array.tobytes())
    set_parameters(request.parameters, parameters)
    return request


def adder_request(a: Any, b: Any) -> oip_pb2.ModelInferRequest:
    """Two tensors in typed contents."""
    request = oip_pb2.ModelInferRequest(model_name=ADDER)
    for name, values in (("a", a), ("b", b)):
        array = np.array(values, "<f4")
        tensor = request.inputs.add(name=name, datatype="FP32", shape=array.shape)
        tensor.contents.fp32_contents.extend(array.ravel().tolist())
    return request


def output_array(response: oip_pb2.ModelInferResponse, index: int = 0) -> Any:
    """A numeric output as an array, from raw or typed contents."""
    output = response.outputs[index]
    if response.raw_output_contents:
        flat = np.frombuffer(response.raw_output_contents[index], NUMPY[output.datatype])
    else:
        flat = np.array(output.contents.fp32_contents, "<f4")
    return flat.reshape(list(output.shape))


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    """The error that a call ends with."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call was answered")
