"""Files of workers that are gone: the last ones stay, what is not a worker's is not touched."""

from __future__ import annotations

import os
from pathlib import Path

from deploy.leftovers import prune


def left(directory: Path, name: str, age_s: int) -> None:
    """What a worker of this name leaves, last written so long ago."""
    for file in (f"logs/{name}.log", f"traces/{name}.jsonl", f"traces/{name}.1.jsonl",
                 f"run/{name}.address"):  # fmt: skip
        path = directory / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
        os.utime(path, (1e9 - age_s, 1e9 - age_s))


def names(directory: Path, folder: str = "logs") -> set[str]:
    return {path.name.partition(".")[0] for path in (directory / folder).iterdir()}


def test_the_last_ones_stay_and_so_does_whoever_lives(tmp_path: Path) -> None:
    for number in range(6):
        left(tmp_path, f"worker-{number}", age_s=100 - number)
    left(tmp_path, "decode-0", age_s=50)
    left(tmp_path, "controlplane", age_s=1000)
    left(tmp_path, "launcher", age_s=1000)
    prune(tmp_path, {"worker-0", "worker-5"}, keep=2)
    kept = {"worker-0", "worker-5", "worker-4", "decode-0", "controlplane", "launcher"}
    for folder in ("logs", "traces", "run"):
        assert names(tmp_path, folder) == kept
    assert (tmp_path / "traces" / "worker-4.1.jsonl").exists()
    prune(tmp_path, (), keep=0)
    assert names(tmp_path) == {"controlplane", "launcher"}


def test_names_of_others_are_not_touched(tmp_path: Path) -> None:
    for name in ("worker-x", "my-worker-1", "worker-1-copy", "notes"):
        left(tmp_path, name, age_s=10)
    prune(tmp_path, (), keep=0)
    assert names(tmp_path) == {"worker-x", "my-worker-1", "worker-1-copy", "notes"}


def test_a_directory_without_anything_is_left_as_it_is(tmp_path: Path) -> None:
    prune(tmp_path / "nowhere", ())
    assert not (tmp_path / "nowhere").exists()
