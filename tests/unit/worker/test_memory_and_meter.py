from __future__ import annotations

from pathlib import Path

import pytest

from worker.cpu_plan import throttle_counter
from worker.memory import memory_room
from worker.meter import HostTimes, LoadMeter

GIB = 1 << 30


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    return write(tmp_path / "meminfo", "MemTotal: 9999 kB\nMemAvailable: 8388608 kB\n")


def test_the_host_limits_when_no_group_does(tmp_path: Path, meminfo: Path) -> None:
    own = write(tmp_path / "self", "0::/\n")
    write(tmp_path / "cg" / "memory.max", "max\n")
    room = memory_room(meminfo, tmp_path / "cg", own)
    assert (room.available, room.limited_by) == (8 * GIB, "host")


def test_the_tightest_enclosing_group_limits(tmp_path: Path, meminfo: Path) -> None:
    own = write(tmp_path / "self", "1:name=x:/old\n0::/a/b\n")
    root = tmp_path / "cg"
    write(root / "a/memory.max", f"{3 * GIB}\n")
    write(root / "a/memory.current", f"{2 * GIB}\n")
    write(root / "a/memory.stat", f"anon 5\ninactive_file {GIB // 2}\n")
    write(root / "a/b/memory.max", "max\n")
    write(root / "a/b/memory.current", "1\n")
    room = memory_room(meminfo, root, own)
    assert (room.available, room.limited_by) == (GIB + GIB // 2, "control group a")


def test_a_group_over_its_limit_has_no_room(tmp_path: Path, meminfo: Path) -> None:
    own = write(tmp_path / "self", "0::/a\n")
    write(tmp_path / "cg/a/memory.max", "10\n")
    write(tmp_path / "cg/a/memory.current", "20\n")
    assert memory_room(meminfo, tmp_path / "cg", own).available == 0


def test_groups_of_version_1_limit_too(tmp_path: Path, meminfo: Path) -> None:
    own = write(tmp_path / "self", "4:memory:/a/b\n2:cpu,cpuacct:/x\n")
    root = tmp_path / "cg"
    write(root / "memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(root / "memory/memory.usage_in_bytes", "5\n")
    write(root / "memory/a/memory.limit_in_bytes", f"{GIB}\n")
    write(root / "memory/a/memory.usage_in_bytes", f"{GIB}\n")
    write(root / "memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 4096\n")
    room = memory_room(meminfo, root, own)
    assert (room.available, room.limited_by) == (4096, "control group memory/a")
    write(root / "cpu,cpuacct/x/cpu.cfs_quota_us", "50000\n")
    write(root / "cpu,cpuacct/x/cpu.cfs_period_us", "100000\n")
    write(root / "cpu,cpuacct/x/cpu.stat", "nr_periods 9\nnr_throttled 4\n")
    assert throttle_counter(root, own)() == 4


def test_this_machine_tells_its_memory() -> None:
    assert memory_room().available > 0


def test_cpu_use_is_taken_over_whole_windows() -> None:
    now, spent, host = [0], [0], [HostTimes(100.0, 50.0)]
    meter = LoadMeter(
        now_ns=lambda: now[0],
        process_cpu_ns=lambda: spent[0],
        host=lambda: host[0],
        resident_bytes=lambda: 7,
        throttled_periods=lambda: 3,
        window_ns=1000,
    )
    now[0], spent[0], host[0] = 999, 500, HostTimes(101.0, 51.0)
    assert meter.sample().process_cpu_percent == 0.0
    now[0], spent[0], host[0] = 1000, 1500, HostTimes(102.0, 51.5)
    sample = meter.sample()
    assert (sample.process_cpu_percent, sample.host_cpu_percent) == (150.0, 75.0)
    assert (sample.resident_bytes, sample.throttled_periods) == (7, 3)
    now[0], spent[0] = 1500, 9999
    assert meter.process_cpu_ns() == 9999
    assert meter.sample().process_cpu_percent == 150.0 and meter.latest.host_cpu_percent == 75.0


def test_throttled_periods_are_those_of_the_group_with_the_quota(tmp_path: Path) -> None:
    own = write(tmp_path / "self", "0::/a/b\n")
    root = tmp_path / "cg"
    write(root / "a/cpu.max", "150000 100000\n")
    write(root / "a/cpu.stat", "usage_usec 9\nnr_periods 50\nnr_throttled 7\n")
    write(root / "a/b/cpu.max", "max 100000\n")
    write(root / "a/b/cpu.stat", "nr_throttled 99\n")
    count = throttle_counter(root, own)
    assert count() == 7
    write(root / "a/cpu.stat", "nr_throttled 8\n")
    assert count() == 8
    assert throttle_counter(tmp_path / "no", tmp_path / "none")() == 0
