from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from worker.config import WorkerConfig


def test_defaults_are_valid() -> None:
    config = WorkerConfig()
    assert config.max_queued_items == 256 and config.max_message_bytes == 64 << 20


def test_repository_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHID_REPOSITORY", "elsewhere")
    assert WorkerConfig().repository == Path("elsewhere")


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:80", "host.name:65535", "unix:w.sock"])
def test_addresses_that_are_accepted(address: str) -> None:
    assert WorkerConfig(listen=address, controlplane=address, insecure=True).listen == address


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listen", "no-port"),
        ("listen", "host:70000"),
        ("listen", "unix:"),
        ("controlplane", ":80"),
        ("advertise", "x"),
        ("health_listen", "8920"),
        ("intra_op_threads", 0),
        ("report_interval_ms", 51),
        ("report_interval_ms", 0),
        ("max_queued_items", 0),
        ("max_message_bytes", -1),
        ("drain_timeout_ms", -1),
        ("memory_mib", -1),
        ("warm_budget_ms", 0),
        ("trace_sample", 1.5),
        ("log_level", "loud"),
        ("log_format", "xml"),
    ],
)
def test_a_wrong_value_is_named(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=key):
        WorkerConfig(**{key: value})


@pytest.mark.parametrize("value", ["9464", ":9464", "host:70000", "unix:/run/x"])
def test_metrics_are_served_at_a_host_and_port(value: str) -> None:
    with pytest.raises(ValueError, match=r"metrics_listen: must be host:port"):
        WorkerConfig(metrics_listen=value)


def test_metrics_are_pushed_only_to_somebody() -> None:
    with pytest.raises(ValueError, match="metrics_push_ms: needs otlp_endpoint"):
        WorkerConfig(metrics_push_ms=1000)


@pytest.mark.parametrize(
    ("key", "address"), [("listen", "0.0.0.0:0"), ("controlplane", "plane.example:8900")]
)
def test_plain_text_to_other_machines_is_refused_until_it_is_wanted(key: str, address: str) -> None:
    given: dict[str, Any] = {key: address}
    with pytest.raises(ValueError, match=f"{key}: .*{address}.*insecure"):
        WorkerConfig(**given)
    assert getattr(WorkerConfig(**given, insecure=True), key) == address
