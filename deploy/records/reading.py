"""Opens a store of records to read it, also while a control plane writes to it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from controlplane.records.store import OtherSchema, StoreFault, check_schema

_TIMEOUT_S = 5.0
_SALVAGE = (
    "a control plane that keeps its records there sets it aside when it starts; "
    "`sqlite3 FILE .recover` may save some of them"
)


class RecordsError(Exception):
    """The records cannot be read; `remedy` says what may help."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that only reads; raises RecordsError, also for faults while it is used."""
    if not path.is_file():
        raise RecordsError(
            f"no records in {path}", "orchid up keeps them there; --state and --file name others"
        )
    try:
        # What a process left that was killed is taken in first, which takes leave to write.
        mode = "rw" if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK) else "ro"
        address = f"file:{quote(str(path.absolute()))}?mode={mode}"
        with closing(sqlite3.connect(address, uri=True, timeout=_TIMEOUT_S)) as database:
            database.execute("PRAGMA query_only = ON")
            check_schema(database, path)
            yield database
    except OtherSchema as fault:
        raise RecordsError(str(fault), "the release that wrote it reads it") from None
    except StoreFault as fault:
        raise RecordsError(str(fault), "--file names a store of records") from None
    except sqlite3.OperationalError as error:
        raise RecordsError(f"{path} cannot be read now: {error}") from None
    except sqlite3.DatabaseError as error:
        raise RecordsError(f"{path} is torn: {error}", _SALVAGE) from None
