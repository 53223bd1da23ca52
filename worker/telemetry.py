"""The process's log, which never holds content."""

from __future__ import annotations

import json
import logging
import sys


class _JsonFormatter(logging.Formatter):
    def __init__(self, worker_id: str) -> None:
        super().__init__()
        self._worker_id = worker_id

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "worker": self._worker_id,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def start_logging(level: str, style: str, worker_id: str) -> None:
    """Logs to standard error: `text` is one line a record, `json` one object a record."""
    handler = logging.StreamHandler(sys.stderr)
    if style == "json":
        handler.setFormatter(_JsonFormatter(worker_id))
    else:
        template = f"%(asctime)s %(levelname)s worker={worker_id} %(name)s: %(message)s"
        handler.setFormatter(logging.Formatter(template))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
