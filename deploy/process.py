"""One managed child process: start, watch, stop, and where it listens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to start: `service` is "controlplane" or "worker", `name` its file names."""

    name: str
    service: str
    directory: Path
    config: Path | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


class Child:
    """A running (or ended) child process; not thread-safe, its cluster serialises access."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.log_path = spec.directory / "logs" / f"{spec.name}.log"
        self._address_file = spec.directory / "run" / f"{spec.name}.address"
        for path in (self.log_path, self._address_file):
            path.parent.mkdir(parents=True, exist_ok=True)
        for path in (
            self._address_file,
            http_file(self._address_file),
            metrics_file(self._address_file),
            page_file(self._address_file),
        ):
            path.unlink(missing_ok=True)
        reading, self._lifeline = os.pipe()
        command = [sys.executable, "-m", "deploy.child", spec.service]
        command += ["--lifeline", str(reading), "--address-file", str(self._address_file)]
        if spec.config is not None:
            command += ["--config", str(spec.config)]
        if spec.overrides:
            command += ["--overrides", json.dumps(dict(spec.overrides))]
        try:
            with self.log_path.open("ab") as log:
                self._log_start = log.tell()
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(reading,),
                    env={**os.environ, "PYTHONUNBUFFERED": "1", **spec.env},
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(reading)
        self.started_ns = time.monotonic_ns()

    @property
    def pid(self) -> int:
        """Process id; meaningful while the child lives."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self._process.poll()

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.exit_code is None

    @property
    def address(self) -> str | None:
        """Where it listens; None until it does."""
        try:
            return self._address_file.read_text()
        except FileNotFoundError:
            return None

    @property
    def http_address(self) -> str:
        """Where it serves HTTP; empty when it does not. Known once `address` is."""
        return _told(http_file(self._address_file))

    @property
    def metrics_address(self) -> str:
        """Where it serves metrics; empty when it does not. Known once `address` is."""
        return _told(metrics_file(self._address_file))

    @property
    def page_url(self) -> str:
        """Of its status page, without a path; empty when it has none. Known once `address` is."""
        return _told(page_file(self._address_file))

    def signal(self, number: int) -> None:
        """Sends a signal; nothing when it has ended."""
        if self.alive:
            self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        self._close()

    def stop(self, timeout_s: float) -> int:
        """SIGTERM, SIGKILL after `timeout_s`; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float) -> int:
        """Waits for the end, kills after `timeout_s`; returns the exit code."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._close()
        return code

    def _close(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def log_tail(self, limit: int = _TAIL_BYTES) -> str:
        """The last `limit` bytes it wrote."""
        with self.log_path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, log.tell() - limit))
            return log.read().decode(errors="replace")


def http_file(address_file: Path) -> Path:
    """The file beside `address_file` that holds a process's HTTP address."""
    return address_file.with_suffix(".http")


def metrics_file(address_file: Path) -> Path:
    """The file beside `address_file` that holds a process's metrics address."""
    return address_file.with_suffix(".metrics")


def page_file(address_file: Path) -> Path:
    """The file beside `address_file` that holds the URL of a process's status page."""
    return address_file.with_suffix(".page")


def _told(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""
