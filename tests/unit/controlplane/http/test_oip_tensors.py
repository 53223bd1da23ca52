"""Elements in JSON are those that numpy has, whichever way they are nested."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.errors import InvalidRequest
from controlplane.http.oip_tensors import InputParameters, InputTensor, read_tensors
from controlplane.rpc.convert import STRING, TYPES, ElementType, array_of

NUMBERS = [kind for kind in TYPES if kind.dtype != STRING]
SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@given(st.sampled_from(NUMBERS), SHAPES, st.data())
def test_what_numpy_writes_is_read_back(
    kind: ElementType, shape: list[int], data: st.DataObject
) -> None:
    size = int(np.prod(shape)) * kind.size
    raw = data.draw(st.binary(min_size=size, max_size=size))
    if kind.dtype == "bool":
        raw = bytes(byte & 1 for byte in raw)
    sent = np.frombuffer(raw, kind.numpy).reshape(shape)
    form = sent.ravel() if data.draw(st.booleans()) else sent
    # NaN has many patterns of bits, of which JSON knows one.
    values = json.loads(json.dumps(form.tolist()))
    tensor = InputTensor(name="x", datatype=kind.oip, shape=tuple(shape), data=values)
    (read,), end = read_tensors([tensor], b"{}", 2)
    assert (read.name, read.dtype, read.shape, end) == ("x", kind.dtype, tuple(shape), 2)
    np.testing.assert_array_equal(array_of(read), sent)


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=3), st.integers(0, 3))
def test_bytes_behind_the_json_are_cut_where_they_say(blobs: list[bytes], more: int) -> None:
    inputs = [
        InputTensor(
            name=f"x{index}",
            datatype="UINT8",
            shape=(len(blob),),
            parameters=InputParameters(binary_data_size=len(blob)),
        )
        for index, blob in enumerate(blobs)
    ]
    body = b"{}" + b"".join(blobs)
    tensors, end = read_tensors(inputs, body + bytes(more), 2)
    assert [tensor.data for tensor in tensors] == blobs
    assert end == len(body)
    if blobs:
        with pytest.raises(InvalidRequest, match="are left of the body"):
            read_tensors(inputs, body[:-1], 2)
