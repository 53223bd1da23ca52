"""The audit log: who did what to a process, one JSON object a line, never a secret or a text."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler

# Anybody can cause refusals: so many lines at once, then so many a second.
_BURST, _PER_SECOND = 100, 10
_LONGEST = 256


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """Where audit lines go: to `file`, and to the process's log when that is empty.

    A file that has grown to `max_bytes` is renamed, and `keep` such files are kept.
    """

    file: str = ""
    max_bytes: int = 10 * 1024 * 1024
    keep: int = 5

    def __post_init__(self) -> None:
        if self.max_bytes < 4096:
            raise ValueError(f"audit.max_bytes must be at least 4096, got {self.max_bytes}")
        if self.keep < 1:
            raise ValueError(f"audit.keep must be at least 1, got {self.keep}")


class Audit:
    """Writes audit lines; thread-safe.

    `wall_s` is the time of day in seconds since 1970, `now_ns` the monotonic clock.
    """

    def __init__(
        self,
        config: AuditConfig,
        *,
        process: str,
        wall_s: Callable[[], float],
        now_ns: Callable[[], int],
    ) -> None:
        """Opens the file; raises OSError when it cannot be written."""
        self._wall_s = wall_s
        self._now_ns = now_ns
        self._allowance = float(_BURST)
        self._allowed_ns = now_ns()
        self._omitted = 0
        self._log = logging.getLogger(f"{process}.audit")
        self._handler: RotatingFileHandler | None = None
        if config.file:
            try:
                handler = RotatingFileHandler(
                    config.file,
                    maxBytes=config.max_bytes,
                    backupCount=config.keep,
                    encoding="utf-8",
                )
            except OSError as error:
                reason = error.strerror or error
                raise OSError(f"audit.file: cannot write {config.file}: {reason}") from None
            handler.setFormatter(logging.Formatter("%(message)s"))
            # A logger of its own: two processes' parts in one test must not share a file.
            self._log = logging.Logger(f"{process}.audit", logging.INFO)
            self._log.addHandler(handler)
            self._handler = handler

    def record(self, event: str, *, who: str, outcome: str, **what: str | int) -> None:
        """One line: `event` by `who` (a name, empty for nobody known) had this `outcome`."""
        line = {
            "time": datetime.fromtimestamp(self._wall_s(), UTC).isoformat(timespec="milliseconds"),
            "event": event,
            "who": who,
            "outcome": outcome,
            **{key: value for key, value in what.items() if value != ""},
        }
        self._log.info("%s", json.dumps({key: _bounded(value) for key, value in line.items()}))

    def refused(self, event: str, *, who: str, outcome: str, **what: str | int) -> None:
        """The same for what anybody can cause: lines beyond a rate are counted in the next."""
        now = self._now_ns()
        earned = (now - self._allowed_ns) / 1e9 * _PER_SECOND
        self._allowance = min(float(_BURST), self._allowance + earned)
        self._allowed_ns = now
        if self._allowance < 1.0:
            self._omitted += 1
            return
        self._allowance -= 1.0
        if self._omitted:
            what, self._omitted = {**what, "omitted_before": self._omitted}, 0
        self.record(event, who=who, outcome=outcome, **what)

    def close(self) -> None:
        """Close the file."""
        if self._handler is not None:
            self._handler.close()


def _bounded(value: str | int) -> str | int:
    return value[:_LONGEST] if isinstance(value, str) else value
