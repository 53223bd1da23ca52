"""Requests of the Open Inference Protocol over HTTP, written as a client would write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx2
import numpy as np

from tests.contract.controlplane.front_door import ADDER, ECHO, ECHO_TYPES, MODEL
from tests.contract.controlplane.http_door import Web

INFER = f"/v2/models/{MODEL}/infer"
ADD = f"/v2/models/{ADDER}/infer"
ECHOED = f"/v2/models/{ECHO}/infer"

OIP_NAMES = ("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES")
# Four elements of each type, as JSON has them.
VALUES: dict[str, list[Any]] = {
    "bool": [True, False, True, True],
    "uint8": [0, 255, 1, 2],
    "int8": [-128, 127, 0, 1],
    "int16": [-(2**15), 2**15 - 1, 0, 1],
    "int32": [-(2**31), 2**31 - 1, 0, 1],
    "int64": [-(2**63), 2**63 - 1, 0, 1],
    "float16": [1.5, -2.5, 0.0, 65504.0],
    "float32": [1.5, -2.5, 0.0, 3.25],
    "float64": [1.1, -2.2, 0.0, 1e300],
    "string": ["", "a", "Ünïcode €", "long" * 100],
}


def body(*inputs: dict[str, Any], **fields: Any) -> bytes:
    """A request of these inputs."""
    return json.dumps({"inputs": list(inputs), **fields}).encode()


def tensor(name: str, datatype: str, shape: Sequence[int], **content: Any) -> dict[str, Any]:
    """One input."""
    return {"name": name, "datatype": datatype, "shape": list(shape), **content}


def text(*texts: str, **changes: Any) -> dict[str, Any]:
    """An input of texts."""
    return {**tensor("text", "BYTES", [len(texts)], data=list(texts)), **changes}


def number(name: str, *values: float, **changes: Any) -> dict[str, Any]:
    """An input of the adder."""
    return {**tensor(name, "FP32", [1, 3], data=list(values)), **changes}


def sized(data: bytes) -> dict[str, Any]:
    """What an input says of its bytes behind the JSON."""
    return {"parameters": {"binary_data_size": len(data)}, "data": None}


async def post_binary(
    web: Web, path: str, head: bytes, *blobs: bytes, **headers: str
) -> httpx2.Response:
    """POST a request with tensors behind its JSON."""
    headers["inference_header_content_length"] = str(len(head))
    return await web.post(path, b"".join((head, *blobs)), **headers)


def opened(response: httpx2.Response) -> tuple[dict[str, Any], list[bytes]]:
    """The JSON of an answer, and the bytes of its outputs that follow it, in their order."""
    assert response.status_code == 200, response.content
    assert response.headers["content-type"] == "application/octet-stream"
    size = int(response.headers["inference-header-content-length"])
    document, rest = json.loads(response.content[:size]), response.content[size:]
    blobs = []
    for output in document["outputs"]:
        if "parameters" in output:
            assert "data" not in output
            count = output["parameters"]["binary_data_size"]
            blobs.append(rest[:count])
            rest = rest[count:]
    assert rest == b""
    return document, blobs


def packed(dtype: str) -> bytes:
    """The four elements of a type in their binary form."""
    if dtype == "string":
        encoded = [each.encode() for each in VALUES[dtype]]
        return b"".join(len(each).to_bytes(4, "little") + each for each in encoded)
    return np.array(VALUES[dtype], np.dtype(dtype).newbyteorder("<")).tobytes()


def everything(*, binary: bool) -> list[dict[str, Any]]:
    """One input of every type, two rows of two."""
    made = []
    for dtype, datatype in zip(ECHO_TYPES, OIP_NAMES, strict=True):
        values = VALUES[dtype]
        content = sized(packed(dtype)) if binary else {"data": [values[:2], values[2:]]}
        made.append(tensor(dtype, datatype, [2, 2], **content))
    return made
