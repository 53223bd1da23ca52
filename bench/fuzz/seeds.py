"""Valid messages of every kind, from which changed ones are made."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from protos.inference import oip_pb2
from protos.orchid.v1 import common_pb2, fleet_pb2, inference_pb2, worker_pb2

_CLASS = inference_pb2.RequestClass(
    tenant="t", request_class="gold", privacy_class="p", minimum_quality=0.5,
    prohibited_variants=["tiny-b"], variant="tiny-a",
)  # fmt: skip
_IDS = np.array([1, 3, 5, 2], "<i4").tobytes()
_SAMPLING = common_pb2.Sampling(
    temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, repetition_penalty=1.1, seed=7,
    presence_penalty=0.5, frequency_penalty=-0.5, logit_bias={3: 1.5},
)  # fmt: skip
_LIMITS = common_pb2.GenerationLimits(
    max_tokens=9, stop=["film"], stop_token_ids=[3], n=2, logprobs=2, ignore_end=True
)


_KINDS: tuple[tuple[str, common_pb2.DataType.ValueType, int], ...] = (
    ("bool", common_pb2.DATA_TYPE_BOOL, 1),
    ("uint8", common_pb2.DATA_TYPE_UINT8, 1),
    ("int8", common_pb2.DATA_TYPE_INT8, 1),
    ("int16", common_pb2.DATA_TYPE_INT16, 2),
    ("int32", common_pb2.DATA_TYPE_INT32, 4),
    ("int64", common_pb2.DATA_TYPE_INT64, 8),
    ("float16", common_pb2.DATA_TYPE_FLOAT16, 2),
    ("float32", common_pb2.DATA_TYPE_FLOAT32, 4),
    ("float64", common_pb2.DATA_TYPE_FLOAT64, 8),
)


def _tensor(name: str, values: Any) -> common_pb2.Tensor:
    array = np.array(values, "<f4")
    kind = common_pb2.DATA_TYPE_FLOAT32
    return common_pb2.Tensor(name=name, data_type=kind, shape=array.shape, data=array.tobytes())


def _framed(*texts: bytes) -> bytes:
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def oip() -> tuple[bytes, ...]:
    """ModelInfer: texts, token ids, raw and typed tensors, every parameter."""
    texts = oip_pb2.ModelInferRequest(model_name="tiny", model_version="3", id="a")
    texts.inputs.add(name="text", datatype="BYTES", shape=[2])
    texts.raw_input_contents.append(_framed(b"good film", b"bad"))
    for name in ("tenant", "request_class", "variant", "privacy_class"):
        texts.parameters[name].string_param = "tiny-a"
    texts.parameters["prohibited_variants"].string_param = "tiny-b"
    typed = oip_pb2.ModelInferRequest(model_name="tiny")
    tensor = typed.inputs.add(name="text", datatype="BYTES", shape=[1, 1])
    tensor.contents.bytes_contents.append(b"good")
    typed.parameters["deadline_ms"].int64_param = 100
    typed.parameters["minimum_quality"].double_param = 0.5
    typed.parameters["timeout"].uint64_param = 1000
    typed.parameters["binary_data_output"].bool_param = True
    ids = oip_pb2.ModelInferRequest(model_name="tiny")
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        ids.inputs.add(name=name, datatype="INT64", shape=[2, 3])
        held = {"input_ids": [[1, 3, 2], [1, 2, 0]], "attention_mask": [[1, 1, 1], [1, 1, 0]]}
        rows = np.array(held.get(name, [[0] * 3] * 2), "<i8")
        ids.raw_input_contents.append(rows.tobytes())
    ids.outputs.add(name="logits").parameters["classification"].int64_param = 2
    adder = oip_pb2.ModelInferRequest(model_name="adder")
    for name in ("a", "b"):
        given = adder.inputs.add(name=name, datatype="FP32", shape=[1, 3])
        given.contents.fp32_contents.extend([1.0, 2.0, 3.0])
    echo = oip_pb2.ModelInferRequest(model_name="echo")
    for name, datatype, size in (
        *(("bool", "BOOL", 1), ("uint8", "UINT8", 1), ("int8", "INT8", 1), ("int16", "INT16", 2)),
        *(("int32", "INT32", 4), ("int64", "INT64", 8), ("float16", "FP16", 2)),
        *(("float32", "FP32", 4), ("float64", "FP64", 8)),
    ):
        echo.inputs.add(name=name, datatype=datatype, shape=[1, 2])
        echo.raw_input_contents.append(bytes(2 * size))
    echo.inputs.add(name="string", datatype="BYTES", shape=[1, 2])
    echo.raw_input_contents.append(_framed(b"x", b""))
    return tuple(each.SerializeToString() for each in (texts, typed, ids, adder, echo))


def native() -> tuple[bytes, ...]:
    """Infer: texts, token ids, tensors."""
    ids = common_pb2.TokenSequences(token_ids=_IDS, lengths=[3, 1])
    pair = [_tensor("a", [[1, 2, 3]]), _tensor("b", [[4, 5, 6]])]
    echoed = [
        common_pb2.Tensor(name=name, data_type=kind, shape=[1, 2], data=bytes(2 * size))
        for name, kind, size in _KINDS
    ]
    strings = common_pb2.Tensor(
        name="string", data_type=common_pb2.DATA_TYPE_STRING, shape=[1, 2], strings=[b"a", b"b"]
    )
    made = (
        inference_pb2.InferRequest(
            request_id="a", model="tiny", text=inference_pb2.TextInput(texts=["good film", "bad"]),
            request_class=_CLASS, deadline_ms=500,
        ),
        inference_pb2.InferRequest(model="tiny", tokens=ids, tokenizer="words"),
        inference_pb2.InferRequest(model="adder", tensors=inference_pb2.TensorInput(tensors=pair)),
        inference_pb2.InferRequest(
            model="echo", tensors=inference_pb2.TensorInput(tensors=[*echoed, strings])
        ),
    )  # fmt: skip
    return tuple(each.SerializeToString() for each in made)


def generate() -> tuple[bytes, ...]:
    """Generate: text, chat, tokens."""
    chat = inference_pb2.Chat()
    chat.messages.add(role="system", content="Brief.")
    chat.messages.add(role="user", content="good film")
    common: dict[str, Any] = {
        "request_id": "a", "model": "writer", "sampling": _SAMPLING, "limits": _LIMITS,
        "request_class": inference_pb2.RequestClass(tenant="t", variant="writer-q4"),
        "deadline_ms": 900, "first_token_target_ms": 80, "token_target_ms": 20,
    }  # fmt: skip
    made = (
        inference_pb2.GenerateRequest(text="good film", **common),
        inference_pb2.GenerateRequest(chat=chat, **common),
        inference_pb2.GenerateRequest(
            tokens=inference_pb2.PromptTokens(ids=[1, 3, 5]), model="writer"
        ),
    )
    return tuple(each.SerializeToString() for each in made)


_DEMANDS = {
    "user": "u", "tenant": "t", "request_class": "c", "privacy_class": "p",
    "minimum_quality": 0.5, "variant": "vectors-a", "prohibited_variants": ["vectors-b"],
    "deadline_ms": 100,
}  # fmt: skip
_WRITING = {
    "model": "writer", "stream": True, "stream_options": {"include_usage": True},
    "max_tokens": 9, "n": 2, "stop": ["film"], "seed": 7, "temperature": 0.7, "top_p": 0.9,
    "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 0.5,
    "frequency_penalty": -0.5, "logit_bias": {"3": 1.5}, "stop_token_ids": [3], "ignore_eos": False,
    "first_token_target_ms": 80, "token_target_ms": 20, "tenant": "t", "deadline_ms": 900,
}  # fmt: skip


def _json(*documents: Any) -> tuple[bytes, ...]:
    return tuple(json.dumps(each).encode() for each in documents)


def chats() -> tuple[bytes, ...]:
    """Bodies of chats."""
    parts = [{"type": "text", "text": "good"}, {"type": "text", "text": "film"}]
    return _json(
        {"model": "writer", "messages": [{"role": "user", "content": "good film"}]},
        {
            **_WRITING,
            "messages": [
                {"role": "developer", "content": "Brief."},
                {"role": "user", "content": parts},
                {"role": "assistant", "content": "ok"},
                {"role": "user", "content": "more"},
            ],
            "logprobs": True,
            "top_logprobs": 2,
            "response_format": {"type": "text"},
            "modalities": ["text"],
        },
    )


def completions() -> tuple[bytes, ...]:
    """Bodies of completions."""
    return _json(
        {"model": "writer", "prompt": "good film"},
        {**_WRITING, "prompt": ["good", "film"], "logprobs": 2, "best_of": 2, "echo": False},
        {"model": "writer", "prompt": [[1, 3], [5]]},
        {"model": "writer", "prompt": [1, 3, 5]},
    )


def embeddings() -> tuple[bytes, ...]:
    """Bodies of embeddings."""
    return _json(
        {"model": "vectors", "input": "good film"},
        {"model": "vectors", "input": ["good", "film"], "encoding_format": "base64", **_DEMANDS},
        {"model": "vectors", "input": [[1, 3, 2], [1, 2]], "dimensions": 2},
    )


def _inference(name: str, datatype: str, shape: list[int], **content: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, **content}


def inferences() -> tuple[bytes, ...]:
    """Bodies of the Open Inference Protocol: texts, token ids, tensors, every parameter."""
    parameters = {
        "tenant": "t", "request_class": "gold", "minimum_quality": 0.5, "variant": "tiny-a",
        "prohibited_variants": "tiny-b", "approximation": False, "deadline_ms": 100,
        "timeout": 1000, "binary_data_output": True,
    }  # fmt: skip
    text = _inference("text", "BYTES", [2, 1], data=[["good film"], ["bad"]])
    ids = _inference("input_ids", "INT64", [2, 2], data=[[1, 3], [5, 2]])
    mask = _inference("attention_mask", "BOOL", [2, 2], data=[True, True, True, False])
    wanted = {"name": "logits", "parameters": {"classification": 1, "binary_data": False}}
    pair = [_inference(name, "FP32", [1, 3], data=[[1, 2.5, -3e8]]) for name in ("a", "b")]
    return _json(
        {"id": "q", "inputs": [text], "parameters": parameters, "outputs": [wanted]},
        {"inputs": [ids, mask], "parameters": {"tokenizer": "words"}},
        {"inputs": pair, "outputs": [{"name": "sum"}]},
    )


def binary_inferences() -> tuple[bytes, ...]:
    """The same with tensors behind the JSON."""

    def behind(name: str, datatype: str, shape: list[int], data: bytes) -> bytes:
        size = {"binary_data_size": len(data)}
        tensor = _inference(name, datatype, shape, parameters=size)
        return json.dumps({"inputs": [tensor]}).encode() + data

    return (
        behind("text", "BYTES", [2], _framed(b"good film", b"bad")),
        behind("input_ids", "INT32", [1, 4], _IDS),
    )


def results() -> tuple[bytes, ...]:
    """What an encoder worker answers."""
    item = worker_pb2.ItemResult(
        item_id=1, status=worker_pb2.ITEM_STATUS_OK, outputs=[_tensor("logits", [[1, 2]])]
    )
    failed = worker_pb2.ItemResult(
        item_id=2, status=worker_pb2.ITEM_STATUS_INVALID_ARGUMENT, message="no"
    )
    batch = worker_pb2.BatchResult(
        batch_id=3, items=[item, failed], queue_us=5, run_us=6, cpu_us=7, executed_items=2
    )
    return (
        worker_pb2.ExecuteResponse(results=[batch], load=_load()).SerializeToString(),
        worker_pb2.ExecuteResponse(results=[batch, batch]).SerializeToString(),
    )


def _load() -> worker_pb2.WorkerLoad:
    decode = worker_pb2.DecodeLoad(model="writer", waiting=1, free_blocks=5, total_blocks=9)
    return worker_pb2.WorkerLoad(
        queued_items=1,
        running_items=1,
        completed_items=5,
        process_cpu_percent=40.0,
        decode=[decode],
    )


def _model() -> common_pb2.ModelDescription:
    variant = common_pb2.VariantDescription(
        name="tiny-a", layout="ragged", precision="fp32", tokenizer="words", max_tokens=64,
        ready=True,
        inputs=[common_pb2.TensorSpec(name="x", data_type=common_pb2.DATA_TYPE_INT64, shape=[-1])],
        outputs=[
            common_pb2.TensorSpec(name="y", data_type=common_pb2.DATA_TYPE_FLOAT32, shape=[-1, 2])
        ],
        quality=[common_pb2.QualityEvidence(population="p", metric="accuracy", value=0.9, n=10)],
        profile=common_pb2.VariantProfile(), decode=common_pb2.DecodeProfile(step_us=5.0),
    )  # fmt: skip
    return common_pb2.ModelDescription(
        name="tiny", version="1", task="text-classification", labels=["a", "b"],
        manifest_digest="sha256:00", default_tokenizer="words", primary_output="y",
        tokenizers=[common_pb2.Tokenizer(name="words", sha256="ab" * 32)], variants=[variant],
        state=common_pb2.READINESS_STATE_READY, progress=1.0,
    )  # fmt: skip


def reports() -> tuple[bytes, ...]:
    """What a worker says of itself."""
    hello = fleet_pb2.WorkerHello(
        worker_id="w1", address="127.0.0.1:1", threads=1, cpu_model="c", simd="avx2", process_id=4
    )
    made = (
        fleet_pb2.WorkerReport(hello=hello),
        fleet_pb2.WorkerReport(load=_load()),
        fleet_pb2.WorkerReport(models=fleet_pb2.ModelList(models=[_model(), _model()])),
    )
    return tuple(each.SerializeToString() for each in made)


def events() -> tuple[bytes, ...]:
    """What a decode worker answers."""
    logprob = common_pb2.TokenLogprob(token_id=3, token=b"a", logprob=-0.5)
    token = common_pb2.GeneratedToken(chosen=logprob, alternatives=[logprob])
    delta = common_pb2.GenerationDelta(index=0, text="a", token_ids=[3], logprobs=[token])
    finished = common_pb2.GenerationFinished(
        index=0, reason=common_pb2.FINISH_REASON_STOP, stop="x", generated_tokens=4
    )
    usage = common_pb2.GenerationUsage(prompt_tokens=5, generated_tokens=4, total_us=9)
    made = (
        worker_pb2.GenerateEvent(admitted=common_pb2.GenerationAdmitted(prompt_tokens=5)),
        worker_pb2.GenerateEvent(delta=delta),
        worker_pb2.GenerateEvent(finished=finished),
        worker_pb2.GenerateEvent(completed=usage),
    )
    return tuple(each.SerializeToString() for each in made)


def executes() -> tuple[bytes, ...]:
    """What a control plane gives an encoder worker."""
    tokens = common_pb2.TokenSequences(token_ids=_IDS, lengths=[4])
    items = [
        worker_pb2.Item(item_id=1, budget_us=1000, tokens=tokens, traceparent="00-0-0-01"),
        worker_pb2.Item(item_id=2, budget_us=1000, tensors=[_tensor("a", [[1, 2]])]),
    ]
    batch = worker_pb2.Batch(batch_id=7, model="tiny", variant="tiny-a", items=items)
    return (
        worker_pb2.ExecuteRequest(batches=[batch], cancel_item_ids=[5]).SerializeToString(),
        worker_pb2.ExecuteRequest(batches=[batch, batch]).SerializeToString(),
    )


def calls() -> tuple[bytes, ...]:
    """What a control plane gives a decode worker."""
    call = worker_pb2.GenerateCall(
        generation_id=1, model="writer", variant="q4", prompt=[1, 3, 5], sampling=_SAMPLING,
        limits=_LIMITS, tenant="t", budget_us=9000, first_token_target_us=100, token_target_us=10,
    )  # fmt: skip
    return (call.SerializeToString(),)


def manifests() -> tuple[bytes, ...]:
    """Manifests of a classifier and of a decoder."""
    file = {"path": "words.json", "sha256": "ab" * 32, "size": 5}
    graph = {"path": "tiny-a.onnx", "sha256": "cd" * 32, "size": 9}
    evidence = {
        "population": "p", "metric": "accuracy", "value": 0.9, "n": 10, "low": 0.8, "high": 1.0,
    }  # fmt: skip
    variant = {
        "name": "tiny-a", "layout": "ragged", "precision": "fp32", "graph": "tiny-a.onnx",
        "tokenizer": "words", "max_tokens": 64, "warm_lengths": [8], "quality": [evidence],
        "inputs": [{"name": "input_ids", "dtype": "int64", "shape": [-1]}],
        "outputs": [{"name": "logits", "dtype": "float32", "shape": [-1, 2]}],
    }  # fmt: skip
    classifier: dict[str, Any] = {
        "schema": 1, "name": "tiny", "version": "1", "task": "text-classification",
        "labels": ["a", "b"], "primary_output": "logits", "default_tokenizer": "words",
        "tokenizers": {"words": file}, "variants": [variant],
        "files": {"words.json": file, "tiny-a.onnx": graph}, "floors": {"p": 0.5},
        "runtime": {"onnxruntime": "1.32"},
    }  # fmt: skip
    generation = {
        "chat_template": "{{ messages }}", "end_tokens": [2], "begin_token": 1, "vocabulary": 8,
        "context": 64, "kv": {"layers": 1, "kv_heads": 1, "head_dim": 4},
    }  # fmt: skip
    decoder = {
        **classifier,
        "task": "text-generation",
        "variants": [{**variant, "layout": "paged"}],
        "generation": generation,
    }
    return _json(classifier, decoder)


def graphs() -> tuple[bytes, ...]:
    """A graph with a node, and with weights in a file beside it."""
    entry = b"\x0a\x08location\x12\x05w.bin"
    tensor = b"\x08\x04\x10\x01" + b"\x6a" + bytes([len(entry)]) + entry + b"\x70\x01"
    attribute = b"\x0a\x01t\x2a" + bytes([len(tensor)]) + tensor
    node = b"\x0a\x01x\x12\x01y\x22\x03Add\x2a" + bytes([len(attribute)]) + attribute
    graph = b"\x0a" + bytes([len(node)]) + node + b"\x2a" + bytes([len(tensor)]) + tensor
    return (b"\x08\x08\x3a" + bytes([len(graph)]) + graph,)


def identities() -> tuple[bytes, ...]:
    """A file of identities."""
    shop = f"  - {{name: shop, tenant: shop, roles: [infer], token_sha256: [{'ab' * 32}]}}\n"
    node = "  - name: node\n    roles: [worker, operate]\n    certificates: ['spiffe://a/b']\n"
    return (f"identities:\n{shop}{node}    requests_per_s: 2.5\n    burst: 4\n".encode(),)
