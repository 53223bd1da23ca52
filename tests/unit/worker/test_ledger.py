"""The memory ledger: what is booked where, what a load may take, how near it is to the truth."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.unit.worker import graphs
from worker.engine import HUGE_PAGE, SMALL_PAGE, MemoryStats
from worker.kv_arena import KvArena
from worker.ledger import Lifetime, MemoryLedger, MemoryLine, MemoryTable, Sources
from worker.memory import MemoryRoom
from worker.process_memory import Heap, ProcessMemory, heap, mapped_weights, process_memory

MIB = 1 << 20
LAYERS, WIDTH = 12, 1024
WEIGHT_BYTES = LAYERS * WIDTH * WIDTH * 4


class Machine:
    """Figures that a test sets."""

    def __init__(self) -> None:
        self.process = ProcessMemory(100 * MIB, 60 * MIB, 40 * MIB)
        self.heap = Heap(30 * MIB, 2 * MIB)
        self.weights: Mapping[str, int] = {}
        self.engine = MemoryStats(0, 0, 0)
        self.room = MemoryRoom(1000 * MIB, "host")
        self.trims = 0

    def trim(self) -> None:
        self.trims += 1

    def ledger(self, budget: int = 0) -> MemoryLedger:
        return MemoryLedger(
            Sources(
                process=lambda: self.process,
                heap=lambda: self.heap,
                weights=lambda: self.weights,
                engine=lambda: self.engine,
                trim=self.trim,
                room=lambda: self.room,
            ),
            budget,
        )


def by_lifetime(table: MemoryTable) -> dict[str, int]:
    sums: dict[str, int] = {}
    for line in table.lines:
        sums[line.lifetime] = sums.get(line.lifetime, 0) + line.bytes // MIB
    return {name: size for name, size in sums.items() if size}


def test_what_is_there_before_any_model_is_the_runtimes() -> None:
    table = Machine().ledger().latest
    assert by_lifetime(table) == {"runtime": 100}
    assert (table.accounted, table.measured) == (100 * MIB, 100 * MIB)
    assert (table.available, table.limited_by) == (1000 * MIB, "host")


def test_a_load_is_booked_to_its_variant() -> None:
    machine = Machine()
    ledger = machine.ledger()
    with ledger.loading("m", "a", 50 * MIB):
        machine.heap = Heap(37 * MIB, 3 * MIB)
        machine.engine = MemoryStats(0, 16 * MIB, 20 * MIB)
        ledger.clear()
        ledger.ran(128)
        machine.process = ProcessMemory(150 * MIB, 108 * MIB, 42 * MIB)
        half = ledger.refresh()
        (line,) = [each for each in half.lines if each.lifetime is Lifetime.LOADING]
        assert (line.owner, line.most) == ("m/a", 50 * MIB)
        # 100 from the start, 2 of libraries, 16 of runs, 7 and 1 of the heap are accounted for.
        assert line.bytes == (150 - 126) * MIB
    machine.weights = {"m/a": 30 * MIB}
    machine.process = ProcessMemory(180 * MIB, 110 * MIB, 70 * MIB)
    table = ledger.refresh()
    assert by_lifetime(table) == {
        "runtime": 100, "weights": 50, "state": 7, "workspace": 16, "allocator": 1
    }  # fmt: skip
    assert machine.trims == 1
    assert MemoryLine(Lifetime.WORKSPACE, "m/a 128 tokens", 0, 16 * MIB) in table.lines
    ledger.unloaded("m")
    machine.weights = {}
    after = ledger.refresh()
    assert not any("m/a" in line.owner for line in after.lines)


def test_a_load_that_failed_leaves_nothing() -> None:
    ledger = Machine().ledger()
    with pytest.raises(RuntimeError), ledger.loading("m", "a", 1):
        raise RuntimeError
    assert by_lifetime(ledger.refresh()) == {"runtime": 100}


def test_request_buffers_are_not_counted_twice() -> None:
    machine = Machine()
    ledger = machine.ledger()
    ledger.add_source(lambda: [MemoryLine(Lifetime.REQUESTS, "inputs", 5 * MIB)])
    machine.heap = Heap(36 * MIB, 2 * MIB)
    assert by_lifetime(ledger.refresh()) == {"runtime": 101, "requests": 5}


def test_the_largest_known_run_must_fit_beside_a_load() -> None:
    machine = Machine()
    ledger = machine.ledger()
    with ledger.loading("m", "a", 1):
        machine.engine = MemoryStats(0, 300 * MIB, 0)
        ledger.ran(512)
    machine.engine = MemoryStats(50 * MIB, 100 * MIB, 0)
    assert ledger.room() == MemoryRoom(850 * MIB, "host")
    machine.room = MemoryRoom(100 * MIB, "control group a")
    assert ledger.room() == MemoryRoom(0, "control group a")


def test_a_budget_holds_where_it_is_tighter() -> None:
    machine = Machine()
    ledger = machine.ledger(budget=120 * MIB)
    assert ledger.room() == MemoryRoom(20 * MIB, "memory_mib")
    assert ledger.latest.budget == 120 * MIB
    machine.room = MemoryRoom(10 * MIB, "host")
    assert ledger.room() == MemoryRoom(10 * MIB, "host")
    machine.process = ProcessMemory(130 * MIB, 90 * MIB, 40 * MIB)
    assert ledger.room() == MemoryRoom(0, "memory_mib")


def test_the_table_of_an_error_adds_up() -> None:
    text = Machine().ledger().latest.text()
    assert [line.split() for line in text.splitlines()] == [
        ["runtime", "100.0"], ["workspace", "0.0"], ["allocator", "0.0"],
        ["accounted", "100.0"], ["measured", "100.0"],
    ]  # fmt: skip


def test_pss_is_read_by_its_parts(tmp_path: Path) -> None:
    rollup = tmp_path / "smaps_rollup"
    rollup.write_text(
        "5-7 ---p 00000000 00:00 0    [rollup]\nRss:  90 kB\nPss:  70 kB\nPss_Anon:  40 kB\n"
        "Pss_File:  25 kB\nPss_Shmem:  5 kB\nAnonHugePages:  8 kB\n"
    )
    assert process_memory(rollup) == ProcessMemory(70 << 10, 40 << 10, 30 << 10, 8 << 10)
    statm = tmp_path / "statm"
    statm.write_text("100 50 20 1 0 9 0\n")
    assert process_memory(tmp_path / "none", statm) == ProcessMemory(50 << 12, 30 << 12, 20 << 12)
    with pytest.raises(OSError, match="none"):
        process_memory(tmp_path / "none", tmp_path / "none")


def test_mapped_weights_belong_to_what_they_were_prepared_from(tmp_path: Path) -> None:
    repository, cache = tmp_path / "models", tmp_path / "cache"
    entry = cache / "3f"
    entry.mkdir(parents=True)
    (repository / "m").mkdir(parents=True)
    (entry / "source").write_text(str(repository / "m" / "a b.onnx"))
    smaps = tmp_path / "smaps"
    smaps.write_text(
        f"7f00-7f10 r--p 00000000 08:01 9   {entry}/weights.bin\nRss: 9 kB\nPss: 4 kB\n"
        f"7f20-7f30 r--p 00000000 08:01 9   {entry}/weights.bin (deleted)\nPss: 3 kB\n"
        f"7f40-7f50 r--p 00000000 08:01 9   {repository}/m/words.weights\nPss: 5 kB\n"
        "7f60-7f70 rw-p 00000000 00:00 0\nPss: 100 kB\n"
        f"7f80-7f90 r--p 00000000 08:01 9   {repository}-other/x\nPss: 1 kB\n"
        "7fa0-7fb0 r-xp 00000000 08:01 9   /usr/lib/libc.so.6\nPss: 50 kB\n"
    )
    assert mapped_weights(repository, cache, smaps) == {"m/a b": 7 << 10, "m": 5 << 10}
    assert mapped_weights(repository, cache, tmp_path / "none") == {}


def test_this_machine_tells_both() -> None:
    process, pool = process_memory(), heap()
    assert process.pss == process.anonymous + process.mapped
    assert 0 < process.huge <= process.anonymous or process.huge == 0
    assert pool.used > 0 and pool.free >= 0


def test_the_touched_part_of_an_arena_is_counted_in_pages() -> None:
    # Two layers of 64 blocks of 32 KiB: each begins where the one before ends.
    arena = KvArena(layers=2, kv_heads=8, head_dim=64, blocks=64, half=True)
    block = arena.stats().bytes // (2 * 64)
    assert block == 32 << 10
    assert arena.touched_bytes(0, SMALL_PAGE) == 0
    assert arena.touched_bytes(1, SMALL_PAGE) == 2 * block
    assert arena.touched_bytes(64, SMALL_PAGE) == arena.stats().bytes
    assert arena.touched_bytes(1, HUGE_PAGE) == 2 * HUGE_PAGE
    assert arena.touched_bytes(64, HUGE_PAGE) == arena.stats().bytes
    # Layers that share a huge page share its bytes.
    small = KvArena(layers=30, kv_heads=1, head_dim=16, blocks=8, half=True)
    assert small.touched_bytes(8, HUGE_PAGE) == HUGE_PAGE


LIFE = """
import sys
from pathlib import Path
import numpy as np
from worker import engine
from worker.ledger import MemoryLedger, Sources
from worker.memory import memory_room
from worker.process_memory import heap, mapped_weights, process_memory

graph, cache, width = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
ledger = MemoryLedger(Sources(
    process_memory, heap, lambda: mapped_weights(graph.parent, cache), engine.memory_stats,
    engine.trim_memory, memory_room,
))

def show():
    table = ledger.refresh()
    print(table.accounted, table.measured, flush=True)

def run(session, rows):
    session.run({"x": np.ones((rows, width), np.float32)})

show()
with ledger.loading("m", "shared", 1):
    shared = engine.Session(graph, cache=cache)
    run(shared, 4)
    ledger.ran(4)
show()
with ledger.loading("m", "own", 1):
    own = engine.Session(graph, share_weights=False)
    run(own, 4)
    ledger.ran(4)
show()
run(shared, 2048)
show()
engine.trim_memory()
del own
ledger.unloaded("m")
show()
"""


def test_the_ledger_of_a_process_is_within_a_tenth_of_what_it_takes(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    graph = graphs.heavy_chain(folder, LAYERS, WIDTH)
    done = subprocess.run(
        [sys.executable, "-c", LIFE, str(graph), str(tmp_path / "cache"), str(WIDTH)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    moments = np.array([[int(word) for word in line.split()] for line in done.stdout.splitlines()])
    accounted, measured = moments.T
    assert np.abs(accounted / measured - 1.0).max() <= 0.1
    # It is not the runtime alone that is known: what came with models and runs is, too.
    came, booked = measured[1:4] - measured[0], accounted[1:4] - accounted[0]
    assert came[0] > 0.8 * WEIGHT_BYTES and came[1] > 1.5 * WEIGHT_BYTES
    assert np.abs(booked / came - 1.0).max() <= 0.1
    assert measured[4] < measured[3]
