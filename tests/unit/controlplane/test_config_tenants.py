"""The section `tenants`: read from YAML as everything else, and checked whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.config import ControlPlaneConfig
from controlplane.tenants import PrivacyConfig, TenantConfig, TenantsConfig
from deploy.config import ConfigError, load_config


def read(tmp_path: Path, text: str) -> TenantsConfig:
    path = tmp_path / "orchid.yaml"
    path.write_text("controlplane:\n  tenants:\n" + text)
    return load_config(ControlPlaneConfig, "controlplane", path).tenants


def test_nobody_is_configured_by_default() -> None:
    assert not ControlPlaneConfig().tenants


def test_tenants_are_read(tmp_path: Path) -> None:
    tenants = read(
        tmp_path,
        "    privacy: {sealed: {batch: none}}\n"
        "    others: {max_queued: 10}\n"
        "    named:\n"
        "      shop: {cpu_ms_per_s: 800, classes: {interactive: 600}, models: [m], "
        "privacy: sealed}\n",
    )
    assert tenants == TenantsConfig(
        named={
            "shop": TenantConfig(
                cpu_ms_per_s=800, classes={"interactive": 600}, models=("m",), privacy="sealed"
            )
        },
        others=TenantConfig(max_queued=10),
        privacy={"sealed": PrivacyConfig(batch="none")},
    )
    assert tenants


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("    named: {shop: {cpu_ms: 1}}\n", "unknown key 'cpu_ms'; did you mean"),
        ("    named: {shop: {cpu_ms_per_s: -1}}\n", "cpu_ms_per_s must be at least 0, got -1"),
        (
            "    named: {shop: {cpu_ms_per_s: 10, classes: {a: 6, b: 5}}}\n",
            "classes reserve 11 CPU-ms a second, the tenant has 10",
        ),
        ("    named: {shop: {privacy: x}}\n", "shop: unknown privacy class 'x'"),
        ("    others: {privacy: x}\n", "others: unknown privacy class 'x'"),
        ("    privacy: {x: {batch: some}}\n", "batch is 'some'; accepted: all, class, none"),
        ("    named: {'': {}}\n", "a tenant's name has 1 to 64 characters"),
        ("    bound_ms: -1\n", "bound_ms must be in"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=r"orchid\.yaml:\d+") as caught:
        read(tmp_path, text)
    assert told in str(caught.value)
