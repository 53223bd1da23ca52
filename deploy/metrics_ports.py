"""Where the processes of a local cluster serve metrics, and how Prometheus finds them."""

from __future__ import annotations

import json
import socket
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

from deploy.state import ClusterRecord

# OpenTelemetry's port for Prometheus, on this machine alone.
DEFAULT_METRICS = "127.0.0.1:9464"
TARGETS = "metrics-targets.json"

_LAST_PORT = 65535


class MetricsPorts:
    """Hands out `host:port`, one to each process: `first`, and then the next ports that are free.

    `exact` gives the first one out as it is, so that its process says when it is not to be had.
    Port 0 leaves the choice to each process; `first` empty gives out empty addresses, which
    serve nothing. A port that one kind of process has had is given to that kind alone, so that
    what Prometheus kept of it stays of one kind.
    """

    def __init__(self, first: str, *, exact: bool = False) -> None:
        self._host, _, port = first.rpartition(":")
        self._port = int(port or 0)
        self._exact = exact
        self._off = not first
        self._kinds: dict[int, str] = {}

    def take(self, used: Collection[str], kind: str = "") -> str:
        """The first address that is neither in `used` nor taken by anybody else, for one `kind`."""
        if self._off:
            return ""
        if not self._port:
            return f"{self._host}:0"
        exact, self._exact = self._exact, False
        for port in range(self._port, _LAST_PORT + 1):
            address = f"{self._host}:{port}"
            if self._kinds.get(port, kind) != kind:
                continue
            if exact or (address not in used and _is_free(self._host, port)):
                self._kinds[port] = kind
                return address
        # Whoever is told this port says what is wrong with it.
        return f"{self._host}:{_LAST_PORT}"


def _is_free(host: str, port: int) -> bool:
    """Whether a listener could be had there at this moment."""
    plain = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in plain else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_STREAM)) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((plain, port))
        except OSError:
            return False
    return True


def write_targets(directory: Path, record: ClusterRecord) -> None:
    """Writes what serves metrics as a target file of Prometheus (`file_sd_configs`)."""
    targets = [
        {
            "targets": [address],
            "labels": {
                "component": "controlplane" if name == "controlplane" else "worker",
                "process": name,
                **({"__scheme__": "https"} if name in record.secure else {}),
            },
        }
        for name, address in record.metrics_addresses().items()
    ]
    path = directory / TARGETS
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(targets, indent=1) + "\n")
    partial.replace(path)
