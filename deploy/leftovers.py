"""What processes that are gone have left in a state directory, kept for a while."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from deploy.traces.client import FOLDER

# Of workers that were replaced the last so many can still be looked at.
KEPT = 8
_FOLDERS = ("logs", "run", FOLDER)
# Names that a cluster gives; what others put there is theirs.
_WORKER = re.compile(r"(?:worker|decode)-\d+")


def prune(directory: Path, alive: Collection[str], *, keep: int = KEPT) -> None:
    """Removes the logs, spans and addresses of workers that are not `alive`.

    Those of the `keep` that wrote last stay. A file that cannot be removed is left.
    """
    files: dict[str, list[Path]] = {}
    latest: dict[str, float] = {}
    for folder in _FOLDERS:
        for path in (directory / folder).glob("*"):
            name = path.name.partition(".")[0]
            if name in alive or not _WORKER.fullmatch(name):
                continue
            with suppress(OSError):
                changed = path.stat().st_mtime
                files.setdefault(name, []).append(path)
                latest[name] = max(changed, latest.get(name, 0.0))
    gone = sorted(files, key=lambda name: latest[name], reverse=True)
    for name in gone[keep:]:
        for path in files[name]:
            with suppress(OSError):
                path.unlink()
