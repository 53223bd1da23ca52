"""Where this process stands among the control groups of its host, of versions 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
SELF_CGROUP = Path("/proc/self/cgroup")


def own_groups(*wanted: str, root: Path, self_cgroup: Path) -> Iterator[Path]:
    """Folders of the process's group and of those around it, innermost first.

    Of version 2 and of each version 1 hierarchy with one of the `wanted` controllers. Not
    all of them need exist: what is mounted differs from container to container.
    """
    try:
        lines = self_cgroup.read_text().splitlines()
    except OSError:
        lines = ["0::/"]
    for line in lines:
        controllers, _, path = line.partition(":")[2].partition(":")
        for top in _hierarchy_roots(root, controllers, wanted):
            yield from _upwards(top, path.strip("/"))


def number(*files: Path) -> int | None:
    """The number in the first of the files that exists; None for `max`, or without one."""
    for file in files:
        with suppress(OSError):
            text = file.read_text().strip()
            return int(text) if text.isdigit() else None
    return None


def statistics(file: Path) -> dict[str, int]:
    """The numbers in a group's file of `key value` lines; empty when there is no such file."""
    values: dict[str, int] = {}
    with suppress(OSError):
        for line in file.read_text().splitlines():
            name, _, value = line.partition(" ")
            if value.strip().isdigit():
                values[name] = int(value)
    return values


def _hierarchy_roots(root: Path, controllers: str, wanted: tuple[str, ...]) -> Iterator[Path]:
    if not controllers:  # version 2: the whole tree, or beside version 1 in its own folder
        yield from (root, root / "unified")
    elif set(wanted) & set(controllers.split(",")):
        yield root / controllers


def _upwards(top: Path, relative: str) -> Iterator[Path]:
    folder = top / relative
    while folder != top and top in folder.parents:
        yield folder
        folder = folder.parent
    yield top
