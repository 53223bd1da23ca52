"""Hand-framed fields are what protobuf itself writes."""

from hypothesis import given
from hypothesis import strategies as st

from protos.codec import Undecodable, decoder, encode, framed
from protos.orchid.v1 import common_pb2, worker_pb2

EXECUTE = worker_pb2.DESCRIPTOR.services_by_name["Worker"].methods_by_name["Execute"]


@given(st.text(), st.lists(st.binary(max_size=300), max_size=4))
def test_framed_contents_read_as_the_field_they_stand_for(name: str, parts: list[bytes]) -> None:
    head = common_pb2.Tensor(name=name).SerializeToString()
    content = framed(common_pb2.Tensor.DATA_FIELD_NUMBER, [memoryview(part) for part in parts])
    read = common_pb2.Tensor.FromString(b"".join([head, *content]))
    assert (read.name, read.data) == (name, b"".join(parts))


def test_framed_messages_nest() -> None:
    data = bytes(70_000)
    tensor = framed(common_pb2.Tensor.DATA_FIELD_NUMBER, [data])
    item = framed(worker_pb2.Item.TENSORS_FIELD_NUMBER, tensor)
    batch = framed(worker_pb2.Batch.ITEMS_FIELD_NUMBER, item)
    request = framed(worker_pb2.ExecuteRequest.BATCHES_FIELD_NUMBER, batch)
    expected = worker_pb2.ExecuteRequest()
    expected.batches.add().items.add().tensors.add(data=data)
    assert b"".join(request) == expected.SerializeToString()


def test_what_does_not_decode_is_named_and_bytes_are_messages_already() -> None:
    decode = decoder(EXECUTE)
    broken = decode(b"\xff\xff")
    assert isinstance(broken, Undecodable)
    assert str(broken) == "the message is not a valid orchid.v1.ExecuteRequest"
    request = worker_pb2.ExecuteRequest(cancel_item_ids=[1])
    assert decode(encode(request)) == request
    assert encode(b"as it is") == b"as it is"
