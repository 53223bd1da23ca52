from __future__ import annotations

import json
import logging

import pytest

from worker.telemetry import start_logging


def test_json_logs_are_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        start_logging("info", "json", "w")
        logging.getLogger("x").info("model=%s ready", "tiny")
        line = json.loads(capsys.readouterr().err)
        assert (line["level"], line["message"], line["worker"]) == ("info", "model=tiny ready", "w")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
