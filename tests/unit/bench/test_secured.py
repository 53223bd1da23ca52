"""The configuration with certificates that a bench rotates."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.secured import rotate, secured
from controlplane.config import ControlPlaneConfig
from deploy.access import access_from
from deploy.config import load_config
from protos.tls import Certificates
from worker.config import WorkerConfig


def test_both_services_take_it_and_the_next_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHID_TLS_CA", "before")
    monkeypatch.delenv("ORCHID_TLS_KEY", raising=False)
    with secured(tmp_path / "certificates") as config:
        assert access_from(os.environ).encrypted
        plane = load_config(ControlPlaneConfig, "controlplane", config)
        assert plane.tls == load_config(WorkerConfig, "worker", config).tls
        assert plane.tls.identities and plane.tls.dials
        held = Certificates(plane.tls, wall_s=lambda: 0.0)
        first = held.loaded
        rotate(config)
        second = held.loaded
        assert second is not first and second.certificate != first.certificate
    assert os.environ["ORCHID_TLS_CA"] == "before" and "ORCHID_TLS_KEY" not in os.environ
