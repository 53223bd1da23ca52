"""The audit log: its lines, its bounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protos.audit import Audit, AuditConfig


class Clock:
    ns = 0

    def now_ns(self) -> int:
        return self.ns


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def audit_to(path: Path, clock: Clock, **settings: int) -> Audit:
    config = AuditConfig(file=str(path), **settings)
    return Audit(config, process="test", wall_s=lambda: 86_400.25, now_ns=clock.now_ns)


def test_a_line_says_when_who_what_and_how_it_ended(tmp_path: Path) -> None:
    audit = audit_to(tmp_path / "audit.log", Clock())
    audit.record("model.load", who="operator", outcome="ok", model="tiny\n{}", peer="")
    audit.close()
    assert lines(tmp_path / "audit.log") == [
        {
            "time": "1970-01-02T00:00:00.250+00:00",
            "event": "model.load",
            "who": "operator",
            "outcome": "ok",
            "model": "tiny\n{}",
        }
    ]


def test_long_values_are_cut(tmp_path: Path) -> None:
    audit = audit_to(tmp_path / "audit.log", Clock())
    audit.record("x", who="w" * 10_000, outcome="ok")
    audit.close()
    assert len(str(lines(tmp_path / "audit.log")[0]["who"])) == 256


def test_files_are_rotated_and_only_so_many_kept(tmp_path: Path) -> None:
    audit = audit_to(tmp_path / "audit.log", Clock(), max_bytes=4096, keep=2)
    for number in range(200):
        audit.record("model.load", who="operator", outcome="ok", number=number)
    audit.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["audit.log", "audit.log.1", "audit.log.2"]
    assert all(path.stat().st_size <= 4096 for path in tmp_path.iterdir())
    assert lines(tmp_path / "audit.log")[-1]["number"] == 199


def test_a_flood_of_refusals_is_counted_and_not_written_line_by_line(tmp_path: Path) -> None:
    clock = Clock()
    audit = audit_to(tmp_path / "audit.log", clock)
    for _ in range(1000):
        audit.refused("orchid.v1.Inference/Infer", who="", outcome="unauthenticated")
    clock.ns += 1_000_000_000
    audit.refused("orchid.v1.Inference/Infer", who="", outcome="unauthenticated")
    audit.close()
    written = lines(tmp_path / "audit.log")
    assert len(written) == 101
    assert written[-1]["omitted_before"] == 900


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "audit.log"
    with pytest.raises(OSError, match=f"audit.file: cannot write {path}"):
        audit_to(path, Clock())


@pytest.mark.parametrize(("key", "value"), [("max_bytes", 10), ("keep", 0)])
def test_settings_out_of_range_are_named(key: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"audit.{key}"):
        AuditConfig(**{key: value})  # type: ignore[arg-type]
