"""The compose cluster and the manifests with TLS: what is mounted, shown, trusted and allowed."""

from __future__ import annotations

import shutil
import stat
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from controlplane.security.identities import Identities, read_identities
from protos.tls import Certificates, TlsConfig
from tests.unit.deploy.manifests import (
    CLUSTER_CONFIG,
    COMPOSE,
    DEPLOY,
    IMAGE_CONFIG,
    KUBERNETES,
    PARTS,
    SECURED,
    Object,
    by_kind,
    compose,
    env_of,
    settings_of,
)

COMPONENT = KUBERNETES / "components" / "tls"
IDENTITIES = COMPONENT / "identities.yaml"
PLAIN, TLS = compose()["services"], compose(SECURED)["services"]
NAMES = {"orchid-worker": "worker", "orchid-caller": "infer", "orchid-operator": "operate"}


def in_compose(part: str) -> Any:
    """What a process of the secured compose cluster is told."""
    env = {**PLAIN[part]["environment"], **TLS[part]["environment"]}
    return settings_of(part, IMAGE_CONFIG, {name: str(value) for name, value in env.items()})


def patch(part: str) -> Object:
    """The pod as the component changes it."""
    document = yaml.safe_load((COMPONENT / f"{part}.yaml").read_text())
    assert document["metadata"]["name"] == f"orchid-{part}"
    return dict(document["spec"]["template"]["spec"])


def container(part: str) -> Object:
    (only,) = patch(part)["containers"]
    return dict(only)


def in_kubernetes(part: str) -> Any:
    """What a process of a pod is told with the component."""
    (own,) = by_kind("Deployment")[f"orchid-{part}"]["spec"]["template"]["spec"]["containers"]
    assert own["name"] == container(part)["name"]
    return settings_of(part, CLUSTER_CONFIG, {**env_of(own), **env_of(container(part))})


def issued() -> Mapping[str, set[str]]:
    """Names in the certificates that cert-manager makes, by their secrets."""
    documents = yaml.safe_load_all(
        (KUBERNETES / "components" / "certificates" / "certificates.yaml").read_text()
    )
    return {each["spec"]["secretName"]: set(each["spec"]["dnsNames"]) for each in documents}


def identities() -> Identities:
    return read_identities(IDENTITIES.read_bytes())


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("told", [in_compose, in_kubernetes])
def test_every_process_speaks_tls_both_ways_and_asks_for_certificates(part: str, told: Any) -> None:
    settings = told(part)
    assert not settings.insecure
    assert settings.tls.serves and settings.tls.dials and settings.tls.identities
    if part == "controlplane":
        assert settings.identities
        # Without it a worker would have to be dialled by a name of its certificate.
        assert settings.tls.server_name == "orchid-worker"
    else:
        # Its caller's certificate must hold the name by which it dials the control plane.
        assert not settings.callers and not settings.tls.server_name


@pytest.mark.parametrize("part", PARTS)
def test_what_a_process_reads_is_mounted_as_folders_that_can_change(part: str) -> None:
    for told, mounted in (
        (in_compose(part), {v.split(":")[-2] for v in TLS[part]["volumes"]}),
        (in_kubernetes(part), {m["mountPath"] for m in container(part)["volumeMounts"]}),
    ):
        files = {told.tls.certificate, told.tls.key, told.tls.ca, getattr(told, "identities", "")}
        assert {str(Path(file).parent) for file in files if file} == mounted
    for mount in container(part)["volumeMounts"]:
        # A part of a volume that is mounted as a file never changes.
        assert "subPath" not in mount and mount["readOnly"] is True
    assert all(volume.endswith(":ro") for volume in TLS[part]["volumes"])


def test_no_two_processes_of_the_compose_cluster_see_the_same_key() -> None:
    folders: dict[str, set[str]] = {}
    for name, service in TLS.items():
        for volume in service.get("volumes", ()):
            if volume.split(":")[-2] == "/etc/orchid-tls":
                folders.setdefault(volume.split(":")[0], set()).add(name)
    assert sorted(map(sorted, folders.values())) == [
        ["controlplane"],
        ["decode", "worker"],
        ["load"],
        ["prometheus"],
    ]
    assert not any(folder.endswith("authority") for folder in folders)


def test_pods_show_the_names_by_which_they_are_dialled() -> None:
    secrets = issued()
    for part in PARTS:
        volumes = {each["name"]: each for each in patch(part)["volumes"]}
        secret = volumes["tls"]["secret"]
        assert set(secrets) > {secret["secretName"]}
        # Its group's, which is the pod's fsGroup, and nobody else's.
        assert secret["defaultMode"] == 0o440
        names = secrets[secret["secretName"]]
        if part == "controlplane":
            assert names >= {"orchid", "orchid.orchid.svc", "localhost"}
            for other in ("worker", "decode"):
                assert in_kubernetes(other).controlplane.rpartition(":")[0] in names
        else:
            assert in_kubernetes("controlplane").tls.server_name in names


def test_identities_are_the_names_in_the_certificates() -> None:
    known, names = identities(), set[str]().union(*issued().values())
    for name, role in NAMES.items():
        identity = known.of_certificate([name])
        assert identity is not None and identity.roles == {role}
        assert name in names
    # The control plane's own certificate and Prometheus's may call nothing.
    for secret in ("orchid-controlplane-tls", "orchid-prometheus-tls"):
        assert known.of_certificate(issued()[secret]) is None


def test_the_doors_of_the_service_are_what_the_patch_takes_them_for() -> None:
    ports = by_kind("Service")["orchid"]["spec"]["ports"]
    assert [each["name"] for each in ports[:2]] == ["grpc", "http"]
    assert "appProtocol" in ports[0]


def test_monitors_trust_and_show_what_there_is() -> None:
    overlay = yaml.safe_load((KUBERNETES / "overlays/secured/kustomization.yaml").read_text())
    patches = overlay["patches"]
    monitors = {each["target"]["kind"]: yaml.safe_load(each["patch"]) for each in patches}
    for kind, secret in (
        ("ServiceMonitor", "orchid-controlplane-tls"),
        ("PodMonitor", "orchid-worker-tls"),
    ):
        added = {each["path"].rpartition("/")[2]: each["value"] for each in monitors[kind]}
        assert added["scheme"] == "https"
        assert added["tlsConfig"]["serverName"] in issued()[secret]
        shown = added["tlsConfig"]["cert"]["secret"]["name"]
        assert shown in issued() and added["tlsConfig"]["keySecret"]["name"] == shown


def test_prometheus_differs_by_tls_alone() -> None:
    plain, secured = (
        yaml.safe_load((COMPOSE.parent / f"prometheus{which}.yml").read_text())
        for which in ("", "-secured")
    )
    for job in secured["scrape_configs"]:
        assert job.pop("scheme") == "https"
        files = job.pop("tls_config")
        found = [str(Path(value).parent) for key, value in files.items() if key.endswith("_file")]
        assert set(found) == {"/etc/orchid-tls"} and len(found) == 3
        if job["job_name"] == "orchid-worker":
            assert files["server_name"] == in_compose("controlplane").tls.server_name
    assert secured == plain


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """The folder that secrets.sh makes."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here")
    make(tmp_path)
    return tmp_path


def make(folder: Path, **variables: str) -> None:
    subprocess.run(
        ["bash", str(DEPLOY / "compose" / "secrets.sh"), str(folder)],
        check=True,
        capture_output=True,
        env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **variables},
    )


def certificate(folder: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / name / "tls.crt").read_bytes())


def names_in(found: x509.Certificate) -> set[str]:
    extension = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name) for name in extension.get_values_for_type(x509.DNSName)}


def test_the_script_makes_what_each_process_can_use(made: Path) -> None:
    for part, folder in (("controlplane", "controlplane"), ("worker", "worker")):
        tls: TlsConfig = in_compose(part).tls
        shown, key, ca = (
            str(made / folder / Path(path).name) for path in (tls.certificate, tls.key, tls.ca)
        )
        here = replace(tls, certificate=shown, key=key, ca=ca)
        loaded = Certificates(here, wall_s=time.monotonic).loaded
        assert loaded.ca == (made / "authority" / "ca.crt").read_bytes()
    host = in_compose("worker").controlplane.rpartition(":")[0]
    assert {host, "localhost"} <= names_in(certificate(made, "controlplane"))
    assert names_in(certificate(made, "worker")) == {"orchid-worker"}
    for name in ("caller", "operator"):
        assert identities().of_certificate(names_in(certificate(made, name))) is not None
    assert (made / "controlplane" / "identities.yaml").read_bytes() == IDENTITIES.read_bytes()


def test_keys_are_their_owners_and_their_groups(made: Path) -> None:
    keys = sorted(made.rglob("*.key"))
    assert len(keys) == 6
    for key in keys:
        mode = stat.S_IMODE(key.stat().st_mode)
        assert mode == (0o600 if key.parent.name == "authority" else 0o640), key
    assert stat.S_IMODE((made / "authority").stat().st_mode) == 0o700
    assert not list(made.rglob("*.new"))


def test_a_second_run_renews_and_keeps_the_authority_and_the_identities(made: Path) -> None:
    authority = (made / "authority" / "ca.crt").read_bytes()
    before = certificate(made, "worker").serial_number
    (made / "controlplane" / "identities.yaml").write_text("identities: []\n")
    make(made, NAMES="DNS:orchid.example")
    assert (made / "authority" / "ca.crt").read_bytes() == authority
    assert certificate(made, "worker").serial_number != before
    assert "orchid.example" in names_in(certificate(made, "controlplane"))
    assert (made / "controlplane" / "identities.yaml").read_text() == "identities: []\n"
