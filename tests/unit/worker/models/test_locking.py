"""One writer at a time."""

from __future__ import annotations

import threading
from pathlib import Path

from worker.models.locking import exclusive


def test_writers_take_turns(tmp_path: Path) -> None:
    inside = 0
    most = 0
    entered = threading.Barrier(4)

    def write() -> None:
        nonlocal inside, most
        entered.wait(timeout=10)
        for _ in range(50):
            with exclusive(tmp_path / "new"):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert (inside, most) == (0, 1)
