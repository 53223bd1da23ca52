"""The compose cluster agrees with the services, with the images, and with itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.config import ControlPlaneConfig
from tests.unit.deploy.manifests import (
    COMPOSE,
    DEPLOY,
    IMAGE_CONFIG,
    PARTS,
    SECURED,
    VARIABLE,
    compose,
    port_of,
    settings_of,
    yaml_files,
)
from worker.config import WorkerConfig

CONTAINERFILE = (DEPLOY / "containers" / "Containerfile").read_text()
SERVICES: dict[str, Any] = compose()["services"]
OURS = {name: s for name, s in SERVICES.items() if s["image"].startswith("orchid-")}


def settings(part: str) -> Any:
    env = {name: str(value) for name, value in SERVICES[part]["environment"].items()}
    return settings_of(part, IMAGE_CONFIG, env)


@pytest.mark.parametrize("path", yaml_files(), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_file_is_yaml(path: Path) -> None:
    assert [document for document in yaml.safe_load_all(path.read_text()) if document]


def test_every_variable_of_ours_is_a_setting_that_its_process_accepts() -> None:
    for part in PARTS:
        settings(part)
    for name in set(OURS) - set(PARTS):
        variables = OURS[name].get("environment", {})
        assert not [variable for variable in variables if variable.startswith("ORCHID_")]


def test_workers_find_the_control_plane_and_the_control_plane_them() -> None:
    own = settings("controlplane")
    assert isinstance(own, ControlPlaneConfig)
    for part in ("worker", "decode"):
        worker = settings(part)
        assert isinstance(worker, WorkerConfig)
        assert worker.controlplane == f"controlplane:{port_of(own.listen)}"
        # Replicas must differ, so both are left to the container's own name.
        assert (worker.worker_id, worker.advertise) == ("", "")
        assert worker.listen.startswith("0.0.0.0:") and port_of(worker.listen) > 0
        assert str(worker.repository) == "/models"
    assert settings("decode").worker_class == "decode"


def test_a_container_is_given_the_time_that_its_process_takes_to_stop() -> None:
    def grace_s(part: str) -> float:
        return float(SERVICES[part]["stop_grace_period"].removesuffix("s"))

    assert grace_s("controlplane") > settings("controlplane").deadline_cap_ms / 1e3 + 1
    for part in ("worker", "decode"):
        assert grace_s(part) > settings(part).drain_timeout_ms / 1e3 + 3


def test_images_have_a_version_and_ours_a_target() -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)$", CONTAINERFILE, re.MULTILINE)
    for name, service in SERVICES.items():
        image, _, tag = service["image"].rpartition(":")
        assert image and tag not in ("", "latest"), name
        if name in OURS and "build" in service:
            target = service["build"]["target"]
            assert target in stages and image == f"orchid-{target}"
            assert (COMPOSE.parent / service["build"]["context"]).resolve() == DEPLOY.parent
            assert (DEPLOY.parent / service["build"]["dockerfile"]).is_file()
    assert OURS["decode"]["image"] == OURS["worker"]["image"]


def test_our_containers_may_do_nothing_they_need_not() -> None:
    for name, service in OURS.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        writable = [v for v in service.get("volumes", ()) if v.startswith("models:")]
        assert name == "models" or all(volume.endswith(":ro") for volume in writable), name


def test_ports_are_published_on_this_machine_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published and all(port.startswith("127.0.0.1:") for port in published)


def test_every_process_of_ours_is_bounded_by_what_it_has_threads_for() -> None:
    for part in PARTS:
        assert {"cpus", "mem_limit"} <= SERVICES[part].keys(), part
    for part in ("worker", "decode"):
        # One core each, as `orchid up` shares two.
        assert settings(part).intra_op_threads == 1
        assert "cpuset" in SERVICES[part]


def test_every_variable_is_in_the_example_with_its_default() -> None:
    used = {match for path in (COMPOSE, SECURED) for match in VARIABLE.findall(path.read_text())}
    lines = (COMPOSE.parent / ".env.example").read_text().splitlines()
    listed = [line.partition("=") for line in lines if line and not line.startswith("#")]
    assert {(name, default) for name, _, default in listed} == used
    assert len(listed) == len(used)


def test_everything_that_is_mounted_exists() -> None:
    named = compose()["volumes"]
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (COMPOSE.parent / source).exists(), f"{name}: {source}"
            else:
                assert source in named, f"{name}: {source}"


def test_what_is_traced_and_measured_arrives() -> None:
    def read(name: str) -> Any:
        return yaml.safe_load((COMPOSE.parent / name).read_text())

    collector = read("otel-collector.yaml")
    port = port_of(collector["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"])
    assert settings("controlplane").telemetry.otlp_endpoint == f"http://otel-collector:{port}"
    for part in ("worker", "decode"):
        assert settings(part).otlp_endpoint == f"http://otel-collector:{port}"
    (exporter,) = collector["service"]["pipelines"]["traces"]["exporters"]
    assert collector["exporters"][exporter]["endpoint"].split(":")[0] in SERVICES

    jobs = {job["job_name"]: job for job in read("prometheus.yml")["scrape_configs"]}
    (target,) = jobs["orchid-controlplane"]["static_configs"][0]["targets"]
    assert target == f"controlplane:{port_of(settings('controlplane').metrics_listen)}"
    (found,) = jobs["orchid-worker"]["dns_sd_configs"]
    assert set(found["names"]) == {"worker", "decode"}
    for part in ("worker", "decode"):
        assert found["port"] == port_of(settings(part).metrics_listen)

    sources = read("grafana/datasources.yml")["datasources"]
    assert {source["url"].split("/")[2].split(":")[0] for source in sources} <= SERVICES.keys()
    (provider,) = read("grafana/dashboards.yml")["providers"]
    mounted = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    assert f"{provider['options']['path']}/orchid.json" in mounted
    for rules in read("prometheus.yml")["rule_files"]:
        folder = rules.rpartition("/")[0]
        assert any(v.split(":")[1].startswith(folder) for v in SERVICES["prometheus"]["volumes"])
