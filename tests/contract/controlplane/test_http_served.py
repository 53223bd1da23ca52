"""The Open Inference Protocol over HTTP around inference: server, models, repository, roles."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.errors import Unavailable
from controlplane.registry import ModelState
from tests.contract.controlplane.front_door import ADDER, DIGEST, ECHO, MODEL, text_model
from tests.contract.controlplane.http_door import VECTORS, Web, told, web_door
from tests.contract.controlplane.infer_bodies import INFER, body, text
from tests.contract.controlplane.secured import (
    GATEWAY,
    NODE,
    OPERATOR,
    SHOP,
    SLOW,
    audited,
    secured,
)


async def fetched(web: Web, path: str) -> Any:
    """The JSON at a path."""
    response = await web.client.get(path)
    assert response.status_code == 200, response.content
    assert response.headers["content-type"] == "application/json"
    return response.json()


async def test_the_server_names_itself_and_its_extensions() -> None:
    async with web_door() as web:
        server = await fetched(web, "/v2")
        live = await fetched(web, "/v2/health/live")
        assert (await web.client.head("/v2/health/live")).status_code == 200
    assert (server["name"], server["version"]) == ("orchid", "0.0.test")
    assert {"binary_tensor_data", "statistics", "model_repository"} <= set(server["extensions"])
    assert live == {"live": True}


async def test_readiness_of_the_server_and_of_models() -> None:
    loading = text_model("other", state=ModelState.LOADING)
    async with web_door(models=[text_model(), loading]) as web:
        assert await fetched(web, "/v2/health/ready") == {"ready": True}
        for path in (f"/v2/models/{MODEL}/ready", f"/v2/models/{MODEL}/versions/3/ready"):
            assert await fetched(web, path) == {"name": MODEL, "ready": True}
        waiting = await web.client.get("/v2/models/other/ready")
        assert (waiting.status_code, waiting.json()) == (503, {"name": "other", "ready": False})
        assert told(await web.client.get("/v2/models/nope/ready"), 404)
        assert told(await web.client.get(f"/v2/models/{MODEL}/versions/4/ready"), 404)
        web.grpc.serve([loading])
        nothing = await web.client.get("/v2/health/ready")
        assert (nothing.status_code, nothing.json()) == (503, {"ready": False})


async def test_metadata_and_configuration() -> None:
    async with web_door() as web:
        texts = await fetched(web, f"/v2/models/{MODEL}")
        assert await fetched(web, f"/v2/models/{MODEL}/versions/3") == texts
        tensors = await fetched(web, f"/v2/models/{ADDER}")
        configured = await fetched(web, f"/v2/models/{MODEL}/config")
        plain = await fetched(web, f"/v2/models/{ADDER}/versions/1/config")
        assert "models: 'adder'" in told(await web.client.get("/v2/models/nope"), 404)
    assert texts == {
        "name": MODEL,
        "versions": ["3"],
        "platform": "onnxruntime_onnx",
        "inputs": [
            {"name": "text", "datatype": "BYTES", "shape": [-1, 1]},
            {"name": "input_ids", "datatype": "INT64", "shape": [-1, -1]},
            {"name": "attention_mask", "datatype": "INT64", "shape": [-1, -1]},
        ],
        "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 2]}],
    }
    assert [each["name"] for each in tensors["inputs"]] == ["a", "b"]
    assert configured["max_batch_size"] > 0
    assert [(each["name"], each["data_type"], each["dims"]) for each in configured["input"]] == [
        ("text", "TYPE_STRING", [1]),
        ("input_ids", "TYPE_INT64", [-1]),
        ("attention_mask", "TYPE_INT64", [-1]),
    ]
    assert configured["model_transaction_policy"] == {"decoupled": False}
    assert configured["instance_group"][0]["count"] == 1
    assert configured["parameters"]["manifest_digest"] == {"string_value": DIGEST}
    assert (plain["max_batch_size"], plain["input"][0]["dims"]) == (0, [-1, 3])


async def test_statistics_count_what_happened() -> None:
    async with web_door() as web:
        for _ in range(4):
            assert (await web.post(INFER, body(text("good", "bad")))).status_code == 200
        assert (await web.post(INFER, body(text("good"), parameters={"variant": "nope"}))).is_error
        web.grpc.queue.refuse = Unavailable("nobody")
        assert (await web.post(INFER, body(text("good")))).is_error
        (stats,) = (await fetched(web, f"/v2/models/{MODEL}/versions/3/stats"))["model_stats"]
        every = (await fetched(web, "/v2/models/stats"))["model_stats"]
    assert (stats["name"], stats["version"]) == (MODEL, "3")
    assert (stats["inference_count"], stats["execution_count"]) == (8, 4)
    assert stats["last_inference"] == 1_700_000_000_000
    counted = stats["inference_stats"]
    assert counted["success"] == {"count": 4, "ns": 4 * 500_000}
    assert counted["queue"] == {"count": 4, "ns": 4 * 30_000}
    assert counted["fail"]["count"] == 2
    assert counted["compute_output"]["ns"] > 0
    assert counted["cache_hit"] == {"count": 0, "ns": 0}
    (batch,) = stats["batch_stats"]
    assert (batch["batch_size"], batch["compute_infer"]) == (1, {"count": 4, "ns": 4 * 400_000})
    assert [each["name"] for each in every] == [ADDER, ECHO, MODEL, VECTORS]


@pytest.mark.parametrize("sent", [b"", b"{}", b'{"ready": false, "x": 1}'])
async def test_the_index_lists_what_could_be_loaded_too(sent: bytes) -> None:
    loading = text_model("loading", state=ModelState.LOADING)
    failed = replace(text_model("failed", state=ModelState.FAILED), failure="file is gone")
    async with web_door(models=[text_model(), loading, failed]) as web:
        response = await web.post("/v2/repository/index", sent)
        ready = await web.post("/v2/repository/index", b'{"ready": true}')
        wrong = told(await web.post("/v2/repository/index", b'{"ready": 1}'), 400)
    assert {e["name"]: (e["version"], e["state"], e["reason"]) for e in response.json()} == {
        MODEL: ("3", "READY", ""),
        "loading": ("3", "LOADING", "loading, 25%"),
        "failed": ("3", "UNAVAILABLE", "file is gone"),
        "shelved": ("", "UNAVAILABLE", "not loaded"),
    }
    assert [each["name"] for each in ready.json()] == [MODEL]
    assert wrong.startswith("ready: ")


def load(model: str) -> str:
    return f"/v2/repository/models/{model}/load"


def unload(model: str) -> str:
    return f"/v2/repository/models/{model}/unload"


async def test_load_and_unload_are_forwarded() -> None:
    async with web_door() as web:
        assert (await web.post(load("shelved"), b"")).json() == {}
        # What stock clients send along.
        dependents = json.dumps({"parameters": {"unload_dependents": False}}).encode()
        assert (await web.post(unload(MODEL), dependents)).json() == {}
        assert web.grpc.repository.calls == [("load", "shelved"), ("unload", MODEL)]
        assert told(await web.post(unload("nope"), b"{}"), 404)
        override = json.dumps({"parameters": {"config": "{}"}}).encode()
        assert "'config' is not accepted" in told(await web.post(load("x"), override), 400)
        web.grpc.repository.error = Unavailable("no live worker", 500)
        away = await web.post(load("x"), b"{}")
        assert told(away, 503) == "no live worker"
        assert away.headers["retry-after"] == "1"
        assert len(web.grpc.repository.calls) == 2


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_roles_are_those_of_grpc(tmp_path: Path) -> None:
    config, security = secured(tmp_path)
    async with web_door(config=config, security=security) as web:
        for open_to_all in ("/v2/health/live", "/v2/health/ready"):
            assert (await web.client.get(open_to_all)).status_code == 200
        for path in ("/v2", f"/v2/models/{MODEL}", f"/v2/models/{MODEL}/ready", "/v2/models/stats"):
            assert told(await web.client.get(path), 401)
            assert told(await web.client.get(path, headers=bearer(NODE)), 403)
            for token in (SHOP, OPERATOR):
                assert (await web.client.get(path, headers=bearer(token))).status_code == 200
        nobody = await web.post(INFER, body(text("good")))
        assert told(nobody, 401)
        assert nobody.headers["www-authenticate"] == "Bearer"
        assert told(await web.post(INFER, body(text("good")), **bearer(OPERATOR)), 403)
        assert (await web.post(INFER, body(text("good")), **bearer(SHOP))).status_code == 200
        other = body(text("good"), parameters={"tenant": "other"})
        assert "another tenant" in told(await web.post(INFER, other, **bearer(SHOP)), 403)
        assert (await web.post(INFER, other, **bearer(GATEWAY))).status_code == 200
        tenants = [request.klass.tenant for request in web.grpc.queue.requests]
    assert tenants == ["shop", "other"]


async def test_whoever_loads_a_model_is_in_the_audit_log(tmp_path: Path) -> None:
    config, security = secured(tmp_path)
    async with web_door(config=config, security=security) as web:
        assert told(await web.post(load("shelved"), b"{}", **bearer(SHOP)), 403)
        assert (await web.post(load("shelved"), b"{}", **bearer(OPERATOR))).status_code == 200
        assert told(await web.post(unload("nope"), b"{}", **bearer(OPERATOR)), 404)
    refused, *lines = audited(tmp_path)
    assert (refused["event"], refused["outcome"]) == (load("{model}"), "wrong role")
    assert [(e["event"], e["who"], e["outcome"], e["model"]) for e in lines] == [
        ("model.load", "operator", "ok", "shelved"),
        ("model.unload", "operator", "not_found", "nope"),
    ]
    assert all(line["peer"].startswith("127.0.0.1:") for line in lines)


async def test_only_requests_count_against_a_rate(tmp_path: Path) -> None:
    config, security = secured(tmp_path)
    async with web_door(config=config, security=security) as web:
        for _ in range(4):
            index = await web.post("/v2/repository/index", b"", **bearer(SLOW))
            assert index.status_code == 200
        answers = [await web.post(INFER, body(text("good")), **bearer(SLOW)) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert told(answers[-1], 429)
        assert 0 < int(answers[-1].headers["retry-after"]) <= 100
