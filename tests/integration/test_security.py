"""A cluster with TLS both ways and identities: real processes, certificates rotated under load."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest

from bench.certificates import Authority
from deploy.cluster import ClusterError
from protos.orchid.v1 import inference_pb2, inference_pb2_grpc
from tests.integration.conftest import StartCluster
from tests.integration.support import PATIENT, TEXT, wait_for

SHOP, OPERATOR = "shop-token", "operator-token"


def sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@pytest.fixture
def settings(tmp_path: Path) -> tuple[Authority, Path, dict[str, str]]:
    """An authority, the configuration of a whole cluster, and the variables of its operator."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("cluster", "localhost", "127.0.0.1", "cluster.example")
    identities = [
        {"name": "shop", "tenant": "shop", "roles": ["infer"], "token_sha256": [sha256(SHOP)]},
        {"name": "operator", "roles": ["operate"], "token_sha256": [sha256(OPERATOR)]},
        {"name": "cluster", "roles": ["worker"], "certificates": ["cluster.example"]},
    ]
    (tmp_path / "identities.yaml").write_text(json.dumps({"identities": identities}))
    tls = {
        "certificate": str(certificate),
        "key": str(key),
        "ca": str(authority.path),
        "require_client_certificate": True,
    }
    config = tmp_path / "orchid.yaml"
    config.write_text(
        json.dumps(
            {
                "controlplane": {
                    "tls": tls,
                    "identities": str(tmp_path / "identities.yaml"),
                    "audit": {"file": str(tmp_path / "audit.log")},
                    **PATIENT,
                },
                "worker": {"tls": tls},
            }
        )
    )
    shown, secret = authority.issue("caller", "caller.example")
    env = {
        "ORCHID_TLS_CA": str(authority.path),
        "ORCHID_TLS_CERT": str(shown),
        "ORCHID_TLS_KEY": str(secret),
    }
    return authority, config, env


def orchid(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deploy.cli", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        timeout=120,
        check=False,
    )


def test_a_secured_cluster_serves_those_it_knows_and_rotates_without_a_loss(
    start_cluster: StartCluster,
    settings: tuple[Authority, Path, dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    authority, config, env = settings
    # The launcher shows the cluster's own certificate and says that it operates it.
    monkeypatch.setenv("ORCHID_TOKEN", OPERATOR)
    cluster = start_cluster(1, models=("tiny",), config=config)
    address = ["--address", cluster.address]

    answered = orchid("infer", "tiny", TEXT, *address, "--json", **env, ORCHID_TOKEN=SHOP)
    assert answered.returncode == 0, answered.stderr
    assert json.loads(answered.stdout)[0]["provenance"]["variant"] == "tiny-a"
    wrong = orchid("infer", "tiny", TEXT, *address, **env, ORCHID_TOKEN="guess")
    assert wrong.returncode == 1 and "UNAUTHENTICATED" in wrong.stdout
    foreign = orchid("infer", "tiny", TEXT, *address, "--tenant", "x", **env, ORCHID_TOKEN=SHOP)
    assert foreign.returncode == 1 and "PERMISSION_DENIED" in foreign.stdout
    assert orchid("status", *address, **env, ORCHID_TOKEN=SHOP).returncode == 1
    assert orchid("status", *address, **env, ORCHID_TOKEN=OPERATOR).returncode == 0
    plain = orchid("infer", "tiny", TEXT, *address, ORCHID_TOKEN=SHOP)
    assert plain.returncode == 1 and "UNAVAILABLE" in plain.stderr

    tally, stop = Counter[str](), threading.Event()
    callers = [
        threading.Thread(target=call, args=(cluster.address, env, tally, stop)) for _ in range(3)
    ]
    for each in callers:
        each.start()
    try:
        wait_for(lambda: tally["OK"] > 20, "traffic flows")
        certificate, key = authority.issue("new", "localhost", "127.0.0.1", "cluster.example")
        (tmp_path / "cluster.key").write_bytes(key.read_bytes())
        (tmp_path / "cluster.crt").write_bytes(certificate.read_bytes())
        before = tally["OK"]
        wait_for(lambda: tally["OK"] > before + 50, "traffic goes on")
        assert set(tally) == {"OK"}
        # A worker that comes back shows and sees the new certificate.
        cluster.restart_worker("worker-0")
        cluster.wait_ready(timeout_s=60)
        before = tally["OK"]
        wait_for(lambda: tally["OK"] > before + 20, "traffic flows again")
    finally:
        stop.set()
        for each in callers:
            each.join()
    # While the only worker is away its callers hear so; nothing else may happen.
    assert set(tally) <= {"OK", "UNAVAILABLE"}
    assert "certificates were read again" in cluster.log("controlplane")
    events = {json.loads(line)["event"] for line in (tmp_path / "audit.log").open()}
    assert {"worker.register", "certificates.reload", "orchid.v1.Fleet/GetStatus"} <= events


def call(address: str, env: dict[str, str], tally: Counter[str], stop: threading.Event) -> None:
    """Calls, each on a connection of its own, so that every handshake is tried."""
    ca, key, certificate = (Path(env[f"ORCHID_TLS_{each}"]) for each in ("CA", "KEY", "CERT"))
    credentials = grpc.ssl_channel_credentials(
        ca.read_bytes(), key.read_bytes(), certificate.read_bytes()
    )
    request = inference_pb2.InferRequest(model="tiny", text=inference_pb2.TextInput(texts=[TEXT]))
    metadata = (("authorization", f"Bearer {SHOP}"),)
    while not stop.is_set():
        options = (("grpc.use_local_subchannel_pool", 1),)
        with grpc.secure_channel(address, credentials, options=options) as channel:
            stub: Any = inference_pb2_grpc.InferenceStub(channel)
            try:
                stub.Infer(request, timeout=30, metadata=metadata)
                tally["OK"] += 1
            except grpc.RpcError as error:
                code = error.code().name
                tally[code] += 1


def test_a_launcher_that_is_not_let_in_says_so(
    start_cluster: StartCluster, settings: tuple[Authority, Path, dict[str, str]]
) -> None:
    _, config, _ = settings
    with pytest.raises(ClusterError, match=r"UNAUTHENTICATED|PERMISSION_DENIED") as caught:
        start_cluster(1, models=("tiny",), config=config)
    assert "ORCHID_TOKEN" in str(caught.value)
