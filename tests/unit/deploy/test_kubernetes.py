"""The manifests agree with the services and with each other; schemas are for check-kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.deploy.manifests import (
    CLUSTER_CONFIG,
    DEPLOY,
    KUBERNETES,
    Object,
    by_kind,
    env_of,
    objects,
    part_of,
    port_of,
    settings_of,
)

DEPLOYMENTS = by_kind("Deployment")
PODS = {name: each["spec"]["template"] for name, each in DEPLOYMENTS.items()}
JOB = by_kind("Job", "models")["orchid-models"]["spec"]["template"]
FOLDERS = ("base", "components/monitoring", "components/autoscaling")


def container(name: str) -> Object:
    (only,) = PODS[name]["spec"]["containers"]
    return dict(only)


def settings(name: str) -> Any:
    """What the process is told: the ConfigMap's file and the variables of its container."""
    return settings_of(part_of(name), CLUSTER_CONFIG, env_of(container(name)))


def ports(name: str) -> dict[str, int]:
    return {each["name"]: each["containerPort"] for each in container(name)["ports"]}


def selected(selector: Object) -> set[str]:
    """Names of the deployments whose pods a label selector means."""
    found = set()
    for name, pod in PODS.items():
        # What base/kustomization.yaml adds.
        labels = {**pod["metadata"]["labels"], "app.kubernetes.io/part-of": "orchid"}
        wanted = selector.get("matchLabels", {})
        listed = selector.get("matchExpressions", ())
        if all(labels.get(k) == v for k, v in wanted.items()) and all(
            labels.get(each["key"]) in each["values"] for each in listed
        ):
            found.add(name)
    return found


def test_there_is_what_the_kustomizations_name() -> None:
    for file in KUBERNETES.rglob("kustomization.yaml"):
        document = yaml.safe_load(file.read_text())
        named = [*document.get("resources", ()), *document.get("components", ())]
        for generator in document.get("configMapGenerator", ()):
            named += generator["files"]
        for name in named:
            assert (file.parent / name).exists(), f"{file}: {name}"
        for patch in document.get("patches", ()):
            text = patch.get("patch") or (file.parent / patch["path"]).read_text()
            assert yaml.safe_load(text), file


@pytest.mark.parametrize("name", sorted(DEPLOYMENTS))
def test_processes_listen_where_they_are_asked(name: str) -> None:
    told, own = settings(name), container(name)
    assert ports(name)["grpc"] == port_of(told.listen)
    assert ports(name)["metrics"] == port_of(told.metrics_listen)
    # The kubelet comes to the pod's address, and shows no certificate.
    assert told.health_listen == f"0.0.0.0:{ports(name)['health']}"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert own[probe]["grpc"]["port"] == ports(name)["health"], probe
    # Ready is who can answer; alive is who runs, whether a model is loaded or not.
    service = "orchid.v1.Fleet" if name == "orchid-controlplane" else "orchid.v1.Worker"
    assert own["livenessProbe"]["grpc"]["service"] == service
    assert "service" not in own["readinessProbe"]["grpc"]


@pytest.mark.parametrize("name", sorted(DEPLOYMENTS))
def test_a_pod_is_given_the_time_that_it_takes_to_stop(name: str) -> None:
    told, spec = settings(name), PODS[name]["spec"]
    grace_s = spec["terminationGracePeriodSeconds"]
    if name == "orchid-controlplane":
        before_s = container(name)["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert grace_s > before_s + told.deadline_cap_ms / 1e3 + 1
    else:
        liveness = container(name)["livenessProbe"]
        patience_s = liveness["periodSeconds"] * liveness["failureThreshold"]
        assert min(grace_s, patience_s) > told.drain_timeout_ms / 1e3 + 3


def test_workers_find_the_control_plane_before_it_is_ready() -> None:
    services = by_kind("Service")
    for name in ("orchid-worker", "orchid-decode"):
        host, _, port = settings(name).controlplane.partition(":")
        fleet = services[host]["spec"]
        assert fleet["publishNotReadyAddresses"] is True and fleet["clusterIP"] == "None"
        assert [each["port"] for each in fleet["ports"]] == [int(port)]
        assert settings(name).advertise == f"10.0.0.1:{port_of(settings(name).listen)}"
    assert "publishNotReadyAddresses" not in services["orchid"]["spec"]


def test_one_control_plane_has_the_queues() -> None:
    spec = DEPLOYMENTS["orchid-controlplane"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    for name in ("orchid-worker", "orchid-decode"):
        assert DEPLOYMENTS[name]["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_services_and_policies_mean_pods_and_ports_that_exist() -> None:
    for name, service in by_kind("Service").items():
        chosen = selected({"matchLabels": service["spec"]["selector"]})
        assert chosen, name
        for port in service["spec"]["ports"]:
            assert all(port["targetPort"] in ports(each) for each in chosen), (name, port)
    for each in objects(*FOLDERS):
        spec, what = each.get("spec", {}), f"{each['kind']} {each['metadata']['name']}"
        if each["kind"] in ("NetworkPolicy", "PodDisruptionBudget"):
            chosen = selected(spec.get("podSelector") or spec["selector"])
            assert chosen, what
            for rule in spec.get("ingress", ()):
                for port in rule["ports"]:
                    assert any(port["port"] in ports(name) for name in chosen), (what, port)
        elif each["kind"] == "PodMonitor":
            assert selected(spec["selector"]) == {"orchid-worker", "orchid-decode"}
            assert [e["port"] for e in spec["podMetricsEndpoints"]] == ["metrics"]
        elif each["kind"] == "ServiceMonitor":
            assert [e["port"] for e in spec["endpoints"]] == ["metrics"]


def test_every_peer_of_a_policy_of_ours_is_there() -> None:
    for name, policy in by_kind("NetworkPolicy").items():
        rules = [*policy["spec"].get("ingress", ()), *policy["spec"].get("egress", ())]
        for rule in rules:
            for peer in [*rule.get("from", ()), *rule.get("to", ())]:
                if "podSelector" in peer:
                    assert selected(peer["podSelector"]), name


@pytest.mark.parametrize("spec", [*PODS.values(), JOB], ids=[*PODS, "orchid-models"])
def test_pods_are_restricted_and_mount_what_they_have(spec: Object) -> None:
    pod = spec["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert pod["automountServiceAccountToken"] is False
    volumes = {each["name"] for each in pod["volumes"]}
    mounted = set()
    for each in [*pod.get("initContainers", ()), *pod["containers"]]:
        security = each["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"]["drop"] == ["ALL"]
        mounted |= {mount["name"] for mount in each["volumeMounts"]}
        # Whole cores, and as much asked as allowed: a guaranteed pod, whose cores can be its own.
        asked = each["resources"]["requests"]
        assert asked == each["resources"]["limits"]
        assert str(int(asked["cpu"])) == asked["cpu"]
    assert mounted == volumes


def test_workers_have_the_models_that_the_job_builds() -> None:
    (claim,) = by_kind("PersistentVolumeClaim", "models")
    for name, pod in {**PODS, "job": JOB}.items():
        found = (volume.get("persistentVolumeClaim") for volume in pod["spec"]["volumes"])
        claims = [each for each in found if each]
        if name == "orchid-controlplane":
            assert not claims
        else:
            assert [each["claimName"] for each in claims] == [claim]


def test_threads_are_no_more_than_the_cores() -> None:
    for name in ("orchid-worker", "orchid-decode"):
        section = yaml.safe_load(CLUSTER_CONFIG.read_text()).get(part_of(name), {})
        cores = int(container(name)["resources"]["limits"]["cpu"])
        assert section.get("intra_op_threads", 1) <= cores


def test_images_are_named_as_they_are_built() -> None:
    stages = (DEPLOY / "containers" / "Containerfile").read_text()
    images = {c["image"] for pod in PODS.values() for c in pod["spec"]["containers"]}
    images |= {c["image"] for c in (*JOB["spec"]["initContainers"], *JOB["spec"]["containers"])}
    for image in images:
        assert f" AS {image.removeprefix('orchid-')}\n" in stages, image
    tags: dict[str, str] = {}
    for folder in ("base", "models"):
        document = yaml.safe_load((Path(KUBERNETES) / folder / "kustomization.yaml").read_text())
        tags |= {each["name"]: each["newTag"] for each in document["images"]}
    assert tags.keys() == images
