"""Configuration: defaults, checks and deadlines."""

from typing import Any

import pytest

from controlplane.config import ClassConfig, ControlPlaneConfig, QueueConfig, TelemetryConfig


def test_the_defaults_hold() -> None:
    config = ControlPlaneConfig()
    assert config.policy == "orchid-cascade"
    assert config.max_message_bytes == 64 * 1024 * 1024


@pytest.mark.parametrize(
    ("made", "values", "names"),
    [
        (ControlPlaneConfig, {"reserve_fraction": 0.0}, "reserve_fraction"),
        (ControlPlaneConfig, {"confidence_z": -1.0}, "confidence_z"),
        (ControlPlaneConfig, {"confidence_z": float("inf")}, "confidence_z"),
        (ControlPlaneConfig, {"listen": "127.0.0.1:99999"}, "at most 65535"),
        (ControlPlaneConfig, {"http_listen": "8901"}, "http_listen must be host:port, got '8901'"),
        (ControlPlaneConfig, {"status_listen": "x"}, "status_listen must be host:port, got 'x'"),
        (ControlPlaneConfig, {"health_listen": "x"}, "health_listen must be host:port, got 'x'"),
        (ControlPlaneConfig, {"http_listen": "h:70000"}, "http_listen must be host:port"),
        (ControlPlaneConfig, {"prefetch": -1}, "prefetch must be at least 0, got -1"),
        (ControlPlaneConfig, {"max_batch": 0}, "max_batch"),
        (ControlPlaneConfig, {"preprocess_threads": 0}, "preprocess_threads"),
        (QueueConfig, {"max_items": 0}, r"queue\.max_items must be at least 1, got 0"),
        (QueueConfig, {"max_predicted_work_ms": 0}, "max_predicted_work_ms"),
        (ClassConfig, {"minimum_quality": 1.5}, "minimum_quality"),
        (ClassConfig, {"deadline_ms": -1}, "deadline_ms"),
        (TelemetryConfig, {"sample_ratio": 2.0}, "sample_ratio"),
    ],
)
def test_a_wrong_value_is_named(made: Any, values: dict[str, Any], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        made(**values)


def test_a_deadline_comes_from_the_nearest_that_says_one() -> None:
    config = ControlPlaneConfig(
        default_deadline_ms=300, classes={"fast": ClassConfig(deadline_ms=50), "any": ClassConfig()}
    )
    assert config.deadline_ms("fast", 70) == 70
    assert config.deadline_ms("fast", 0) == 50
    assert config.deadline_ms("any", 0) == 300
    assert config.deadline_ms("", 0) == 300
    assert ControlPlaneConfig().deadline_ms("", 0) == 10_000


@pytest.mark.parametrize("value", ["9464", ":9464", "host:", "host:70000", "unix:/run/x"])
def test_metrics_are_served_at_a_host_and_port(value: str) -> None:
    with pytest.raises(ValueError, match="metrics_listen must be host:port"):
        ControlPlaneConfig(metrics_listen=value)


def test_metrics_are_pushed_only_to_somebody() -> None:
    with pytest.raises(ValueError, match=r"metrics_push_ms needs telemetry\.otlp_endpoint"):
        ControlPlaneConfig(metrics_push_ms=1000)
    telemetry = TelemetryConfig(otlp_endpoint="127.0.0.1:4317")
    assert ControlPlaneConfig(metrics_push_ms=1000, telemetry=telemetry).metrics_push_ms == 1000


@pytest.mark.parametrize("key", ["listen", "http_listen", "metrics_listen"])
def test_plain_text_for_other_machines_is_refused_until_it_is_wanted(key: str) -> None:
    given: dict[str, Any] = {key: "0.0.0.0:8900"}
    with pytest.raises(ValueError, match=rf"{key}: .*0\.0\.0\.0:8900.*insecure"):
        ControlPlaneConfig(**given)
    assert getattr(ControlPlaneConfig(**given, insecure=True), key)


@pytest.mark.parametrize("key", ["http_listen", "status_listen", "metrics_listen"])
def test_a_socket_of_unix_is_no_host_that_passes_for_local(key: str) -> None:
    given: dict[str, Any] = {key: "unix:8000"}
    with pytest.raises(ValueError, match=rf"{key} must be host:port, sockets of unix are not"):
        ControlPlaneConfig(**given)


@pytest.mark.parametrize("rate", [-1.0, float("inf"), float("nan")])
def test_rates_of_traces_are_finite(rate: float) -> None:
    with pytest.raises(ValueError, match=r"telemetry\.traces_per_s must be finite"):
        TelemetryConfig(traces_per_s=rate)
