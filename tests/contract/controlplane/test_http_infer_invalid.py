"""What is wrong with an inference over HTTP is said by field, and never with a text."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.config import ControlPlaneConfig
from tests.contract.controlplane.decode_worker import WRITER, DecodeWorker
from tests.contract.controlplane.front_door import ADDER, ECHO, ECHO_TYPES, MODEL
from tests.contract.controlplane.http_door import told, web_door, web_writers
from tests.contract.controlplane.infer_bodies import (
    ADD,
    INFER,
    OIP_NAMES,
    body,
    number,
    post_binary,
    sized,
    tensor,
    text,
)
from tests.contract.controlplane.oip_client import framed
from tests.contract.controlplane.test_http_fuzz import TIMEOUT_S, Runner, anything, bounded

SECRET = "the caller's own words"


def texts(**changes: Any) -> bytes:
    """A sound body but for its one input."""
    return body(text("good", **changes))


def asked(**parameters: Any) -> bytes:
    return body(text("good"), parameters=parameters)


def wanted(**output: Any) -> bytes:
    return body(text("good"), outputs=[{"name": "logits", **output}])


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"", "no valid JSON"),
        (b"\xff", "no valid JSON"),
        (b"[" * 100_000, "no valid JSON"),
        (b"[]", "must be a JSON object, got an array"),
        (b"{}", "inputs: is required"),
        (b'{"inputs": {}}', "inputs: must be a valid"),
        (body(5), "inputs.0: "),  # type: ignore[arg-type]
        (body(), "needs input 'text' or 'input_ids'; got: none"),
        (body(*[text("good")] * 65), "inputs: "),
        (body({"name": "text"}), "inputs.0.datatype: is required"),
        (texts(name=5), "inputs.0.name: must be a valid string, got 5"),
        (texts(shape=[0]), "inputs.0.shape.0: must be greater than or equal to 1, got 0"),
        (texts(shape=[2**63]), "inputs.0.shape.0: must be less than"),
        (texts(shape=[True]), "inputs.0.shape.0: must be a valid integer, got true"),
        (texts(shape=[1.0]), "inputs.0.shape.0: must be a valid integer"),
        (texts(shape=[1] * 9), "9 dimensions; at most 8"),
        (texts(shape=[2]), "inputs.0.data: holds 1 elements; shape [2] takes 2"),
        (texts(shape=[2**40]), "inputs.0.data: the shape has 1099511627776 elements"),
        (texts(datatype="STRING"), "has datatype 'STRING'; accepted: 'BOOL', 'BYTES'"),
        (texts(datatype="INT32", data=[1]), "is int32; accepted: 'string'"),
        (texts(data=SECRET), "inputs.0.data: must be an array, got a string"),
        (texts(data=[5]), "inputs.0.data: element 0 must be a string, got 5"),
        (texts(data=[[SECRET], SECRET], shape=[2]), "of one length at each depth"),
        (texts(data=[SECRET, [SECRET]], shape=[2]), "element 1 must be a string, got an array"),
        (texts(data=[[["x"]], [["x", "y"]]], shape=[3]), "of one length at each depth"),
        (texts(data=[]), "holds 0 elements"),
        (texts(data=None), "inputs.0.data: is missing, and so is parameters.binary_data_size"),
        (texts(parameters={"binary_data_size": 1}), "comes beside parameters.binary_data_size"),
        (texts(parameters={"shared_memory_region": "r"}), "shared_memory_region: is not supported"),
        (texts(parameters=5), "inputs.0.parameters: "),
        (body(text("good"), text("bad")), "an input is given twice"),
        (body(text("good"), tensor("x", "INT64", [1], data=[1])), "has no input 'x'"),
        (body(tensor("input_ids", "INT64", [2], data=[1, -1])), "a negative id"),
        (body(tensor("input_ids", "INT64", [1], data=[99])), "token id 99 is not in tokenizer"),
        (body(tensor("input_ids", "INT64", [1], data=[1.5])), "element 0 must be an integer"),
        (body(tensor("input_ids", "INT64", [1], data=[2**63])), "a number that INT64 cannot hold"),
        (body(tensor("input_ids", "INT32", [1], data=[2**31])), "a number that INT32 cannot hold"),
        (body(tensor("input_ids", "INT32", [1], data=["1"])), "must be an integer, got a string"),
        (body(tensor("input_ids", "INT32", [1], data=[None])), "must be an integer, got null"),
        (texts(data=["good " * 70]), "72 tokens"),
        (body(text("good"), id=5), "id: must be a valid string, got 5"),
        (body(text("good"), parameters=[]), "parameters: "),
        (asked(deadline_ms="soon"), "parameters.deadline_ms: must be a valid number, got a string"),
        (asked(deadline_ms=1e12), "accepted: up to 86400000"),
        (asked(timeout=float("nan")), "parameters.timeout: must be a finite number"),
        (asked(tenant="x" * 65), "parameters.tenant: "),
        (asked(tenant=5), "parameters.tenant: must be a valid string, got 5"),
        (asked(minimum_quality=2), "accepted: 0 to 1"),
        (asked(approximation=1), "parameters.approximation: must be a valid boolean, got 1"),
        (asked(binary_data_output="yes"), "parameters.binary_data_output: must be a valid boolean"),
        (asked(prohibited_variants="x," * 70), "prohibited_variants: has 65; at most 64"),
        (asked(tokenizer="words"), "are for requests of token ids"),
        (wanted(name="y"), "has no output 'y'; outputs: 'logits'"),
        (body(text("good"), outputs=[{"name": "logits"}] * 2), "'logits' is requested twice"),
        (wanted(parameters={"classification": 0}), "outputs.0.parameters.classification: "),
        (wanted(parameters={"binary_data": 1}), "outputs.0.parameters.binary_data: "),
        (wanted(parameters={"shared_memory_region": "r"}), "shared_memory_region: is not"),
    ],
)
async def test_each_fault_is_named(sent: bytes, words: str) -> None:
    async with web_door() as web:
        error = told(await web.post(INFER, sent), 400)
        assert words in error
        assert SECRET not in error
        assert not web.grpc.queue.requests


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        *(("UINT8", 256), ("UINT8", -1), ("INT8", 128), ("INT16", -(2**15) - 1), ("FP16", 1e5)),
        *(("FP32", 1e39), ("FP64", 10**400), ("INT64", 10**400), ("INT32", -(2**31) - 1)),
    ],
)
async def test_numbers_beyond_their_type_are_refused(datatype: str, value: float) -> None:
    name = ECHO_TYPES[OIP_NAMES.index(datatype)]
    async with web_door() as web:
        sent = body(tensor(name, datatype, [1, 2], data=[0, value]))
        error = told(await web.post(f"/v2/models/{ECHO}/infer", sent), 400)
        assert error == f"inputs.0.data: holds a number that {datatype} cannot hold"


async def test_a_bool_is_no_number_and_a_number_no_bool() -> None:
    async with web_door() as web:
        path = f"/v2/models/{ECHO}/infer"
        flag = body(tensor("bool", "BOOL", [1, 2], data=[True, 1]))
        assert "element 1 must be true or false, got 1" in told(await web.post(path, flag), 400)
        value = body(tensor("float32", "FP32", [1, 2], data=[True, 1]))
        assert "element 0 must be a number, got true" in told(await web.post(path, value), 400)


@pytest.mark.parametrize(
    ("sizes", "length", "words"),
    [
        ((12, 12), None, ""),
        ((12, 11), None, "has 11 bytes; shape [1, 3] of FP32 takes 12"),
        ((12, 13), None, "inputs.1.parameters.binary_data_size: is 13; 12 bytes are left"),
        ((24, 0), None, "has 24 bytes; shape [1, 3] of FP32 takes 12"),
        ((-1, 12), None, "inputs.0.parameters.binary_data_size: "),
        ((12, 12), "x", "inference-header-content-length: must be the length of the JSON"),
        ((12, 12), "0", "got '0'"),
        ((12, 12), "-5", "got '-5'"),
        ((12, 12), "1e3", "got '1e3'"),
        ((12, 12), "9" * 30, "must be the length of the JSON"),
        ((12, 12), "100000", "must be the length of the JSON"),
        ((12, 12), "7", "no valid JSON"),
    ],
)
async def test_bytes_that_do_not_add_up(
    sizes: tuple[int, int], length: str | None, words: str
) -> None:
    inputs = [
        number(name, data=None, parameters={"binary_data_size": size})
        for name, size in zip(("a", "b"), sizes, strict=True)
    ]
    head = body(*inputs)
    async with web_door() as web:
        said = str(len(head)) if length is None else length
        response = await web.post(ADD, head + bytes(24), inference_header_content_length=said)
        if words:
            assert words in told(response, 400)
        else:
            assert response.status_code == 200


async def test_bytes_that_nobody_said_anything_of() -> None:
    async with web_door() as web:
        sent = body(number("a", **sized(bytes(12))), number("b", 1, 2, 3))
        assert "is 12; 0 bytes are left of the body" in told(await web.post(ADD, sent), 400)
        assert "no valid JSON" in told(await web.post(ADD, sent + bytes(12)), 400)
        more = await post_binary(web, ADD, sent, bytes(15))
        assert "3 bytes at the body's end belong to no input" in told(more, 400)


async def test_framing_that_runs_out_is_named() -> None:
    data = framed([b"abc"])[:-1]
    async with web_door() as web:
        sent = body(text("good", **sized(data)))
        assert "element 0 runs past" in told(await post_binary(web, INFER, sent, data), 400)
        data = framed([b"\xff"])
        sent = body(text("good", **sized(data)))
        assert "element 0 is not UTF-8" in told(await post_binary(web, INFER, sent, data), 400)


async def test_names_that_are_not_here() -> None:
    async with web_door() as web:
        assert "'tiny-a', 'tiny-b'" in told(await web.post(INFER, asked(variant="nope")), 404)
        ids = tensor("input_ids", "INT64", [1], data=[1])
        sent = body(ids, parameters={"tokenizer": "nope"})
        assert "has no tokenizer 'nope'" in told(await web.post(INFER, sent), 404)
        nowhere = told(await web.client.get("/v2/nothing"), 404)
        assert nowhere == "GET '/v2/nothing' is not here; docs/inference-http.md lists what is"
        method = await web.client.get(INFER)
        assert "allowed: POST" in told(method, 405)
        assert method.headers["allow"] == "POST"


async def test_a_model_that_generates_says_how_it_is_asked() -> None:
    async with web_writers(DecodeWorker()) as web:
        response = await web.post(f"/v2/models/{WRITER}/infer", texts())
        assert "orchid.v1.Inference/Generate" in told(response, 400)


async def test_bodies_that_are_not_read() -> None:
    async with web_door(config=ControlPlaneConfig(max_message_bytes=10_000)) as web:
        compressed = gzip.compress(texts())
        error = told(await web.post(INFER, compressed, content_encoding="gzip"), 415)
        assert "content-encoding" in error
        assert "10000 bytes" in told(await web.post(INFER, b" " * 10_001), 413)
        late = await web.post(INFER, texts(), x_orchid_deadline_ms="-1")
        assert "had passed" in told(late, 504)
        past = await web.post(INFER, asked(deadline_ms=-5))
        assert "had passed" in told(past, 504)
        assert not web.grpc.queue.requests


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    made = Runner(web_door())
    yield made
    made.close()


NAMES = ["text", "input_ids", "attention_mask", "token_type_ids", "a", "b", *ECHO_TYPES, "", "x"]
FIELDS = ["name", "datatype", "shape", "data", "parameters"]
PARAMETERS = [
    *("tenant", "request_class", "privacy_class", "minimum_quality", "deadline_ms", "timeout"),
    *("variant", "prohibited_variants", "tokenizer", "binary_data_output", "approximation"),
    *("binary_data", "binary_data_size", "classification", "shared_memory_region"),
]
parameters = st.dictionaries(st.sampled_from(PARAMETERS), anything, max_size=3)
shapes = st.lists(st.integers(1, 3) | anything, max_size=3)
inputs = st.builds(
    lambda name, datatype, shape, data, changes: {
        **tensor(name, datatype, [], data=data),
        "shape": shape,
        **changes,
    },
    st.sampled_from(NAMES),
    st.sampled_from([*OIP_NAMES, "BF16", "", "UINT64"]),
    shapes,
    st.lists(st.integers(0, 7), max_size=4) | st.lists(st.text(max_size=4), max_size=4) | anything,
    st.dictionaries(st.sampled_from(FIELDS), anything | parameters, max_size=1),
)
requests = st.fixed_dictionaries(
    {"inputs": st.lists(inputs, max_size=2) | anything},
    optional={
        "id": anything,
        "parameters": parameters | anything,
        "outputs": st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from(["logits", "sum", *ECHO_TYPES])},
                optional={"parameters": parameters | anything},
            ),
            max_size=2,
        )
        | anything,
    },
)


@pytest.mark.timeout(TIMEOUT_S)
@given(
    model=st.sampled_from([MODEL, ADDER, ECHO]),
    sent=requests,
    tail=st.binary(max_size=24),
    length=st.none() | st.integers(-2, 400),
)
@bounded
def test_malformed_requests(
    runner: Runner, model: str, sent: dict[str, Any], tail: bytes, length: int | None
) -> None:
    head = json.dumps(sent).encode()
    headers: dict[str, str] = {}
    if tail or length is not None:
        said = len(head) if length is None else length
        headers["inference_header_content_length"] = str(said)
    response = runner.post(f"/v2/models/{model}/infer", head + tail, **headers)
    if response.status_code != 200:
        assert 400 <= response.status_code < 500 or response.status_code == 504, response.content
        assert told(response, response.status_code)
