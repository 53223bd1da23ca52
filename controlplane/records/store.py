"""The store of records: one SQLite file, written by one thread in batches, bounded.

Whoever puts a record never waits: it is appended to a queue, or dropped and counted. The file has
write-ahead logging, so a process that is killed loses what it had not written and nothing else, and
readers do not stop the writer. A store that fails is given up with one line in the log.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from controlplane.records.demand import (
    COLUMNS,
    REAL_COLUMNS,
    TEXT_COLUMNS,
    Cell,
    DemandRecord,
    WorkerSample,
    row_of,
)

_log = logging.getLogger(__name__)

Connect = Callable[[Path], sqlite3.Connection]

SCHEMA: Final = 1
# "ORCH": what `file` and a reader recognise the store by.
APPLICATION: Final = 0x4F524348
_INTERVAL_S = 0.25
_BATCH = 2048
MOST_WAITING: Final = 16_384
# Of workers' sessions and of control planes.
_MOST_SESSIONS = 4096
# A log that readers keep from being taken in may grow; it is cut to this afterwards.
_LOG_BYTES = 4 << 20
_SUFFIXES = (".sqlite", ".sqlite3", ".db")
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_LARGEST = 2**62
# So many of the oldest go at once when the file is full: one in this many.
_PORTION = 16


def _column(name: str) -> str:
    kind = "TEXT" if name in TEXT_COLUMNS else "REAL" if name in REAL_COLUMNS else "INTEGER"
    return f"{name} {kind} NOT NULL"


_TABLES = f"""
CREATE TABLE IF NOT EXISTS requests (id INTEGER PRIMARY KEY, {", ".join(map(_column, COLUMNS))});
CREATE TABLE IF NOT EXISTS workers (
    begun_us INTEGER NOT NULL, session INTEGER NOT NULL, worker TEXT NOT NULL, lane TEXT NOT NULL,
    at_us INTEGER NOT NULL, run_cpu_us INTEGER NOT NULL, process_cpu_us INTEGER NOT NULL,
    live_token_ms INTEGER NOT NULL, charged_cpu_us INTEGER NOT NULL,
    charged_token_ms INTEGER NOT NULL, PRIMARY KEY (begun_us, session));
CREATE TABLE IF NOT EXISTS houses (
    begun_us INTEGER PRIMARY KEY, written INTEGER NOT NULL, dropped INTEGER NOT NULL);
"""
_INSERT = f"INSERT INTO requests ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
_SAMPLE = f"INSERT OR REPLACE INTO workers VALUES ({', '.join('?' * len(WorkerSample._fields))})"
_HOUSE = "INSERT OR REPLACE INTO houses VALUES (?, ?, ?)"
_FORGET = "DELETE FROM requests WHERE id <= ?"
_FORGET_SESSIONS = (
    "DELETE FROM workers WHERE at_us < "
    f"(SELECT at_us FROM workers ORDER BY at_us DESC LIMIT 1 OFFSET {_MOST_SESSIONS})"
)
_FORGET_HOUSES = (
    "DELETE FROM houses WHERE begun_us < "
    f"(SELECT begun_us FROM houses ORDER BY begun_us DESC LIMIT 1 OFFSET {_MOST_SESSIONS})"
)


class StoreFault(Exception):
    """The file is no store of records; the text says what it is."""


class OtherSchema(StoreFault):
    """It is one of another release."""


def connect_file(path: Path) -> sqlite3.Connection:
    """A connection to the file, which is made when it is not there, for its owner's eyes only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    return sqlite3.connect(path, timeout=2.0)


class RecordStore:
    """`put` and `sample` belong to one event loop and never block; the file to one thread.

    `rows` and `file_bytes` bound the file; the oldest records give way. `begun_us` is when the
    control plane began, since 1970. `written` and `dropped` count records.
    """

    def __init__(
        self,
        path: Path,
        *,
        rows: int,
        file_bytes: int,
        begun_us: int,
        connect: Connect = connect_file,
    ) -> None:
        self.path = path
        self.written = 0
        self.dropped = 0
        self.failed = False
        self._rows = rows
        self._file_bytes = file_bytes
        self._begun_us = begun_us
        self._connect = connect
        self._waiting: deque[DemandRecord] = deque()
        self._samples: deque[WorkerSample] = deque(maxlen=_MOST_SESSIONS)
        # What a busy file did not take.
        self._batch: list[DemandRecord] = []
        self._stopping = threading.Event()
        self._writer = threading.Thread(target=self._serve, name="records", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._writer.start()

    def put(self, record: DemandRecord) -> None:
        """Keep a record, or drop it when too many wait or the store has failed."""
        if self.failed or len(self._waiting) >= MOST_WAITING:
            self.dropped += 1
        else:
            self._waiting.append(record)

    def sample(self, sample: WorkerSample) -> None:
        """Keep a worker's totals, in place of those before."""
        if not self.failed:
            self._samples.append(sample)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits and end the thread."""
        self._stopping.set()
        if self._writer.is_alive():
            self._writer.join(timeout_s)

    # --- the thread -------------------------------------------------------------------

    def _serve(self) -> None:
        # A file that is torn is set aside once; a second time something else is wrong.
        for last in (False, True):
            try:
                while not self._write_all():
                    _log.warning(
                        "the store of records %s was taken away; a new one begins", self.path
                    )
                return
            except Exception as error:
                if last or not _is_torn(error, self.path):
                    self._give_up(error)
                    return
                self._set_aside(error)

    def _write_all(self) -> bool:
        """Write until the end; False when the file is no longer the one that was opened."""
        with closing(self._opened()) as database:
            opened = _identity(self.path)
            while True:
                stopping = self._stopping.wait(_INTERVAL_S)
                if self._waiting and (opened is None or _identity(self.path) != opened):
                    # What is written now would be in a file that nobody finds.
                    return False
                try:
                    while self._write(database):
                        pass
                except sqlite3.OperationalError as error:
                    if _code(error) not in _BUSY or stopping:
                        raise
                    # Somebody else has the file; what waits is bounded.
                    _log.debug("the store of records is busy")
                if stopping:
                    return True

    def _opened(self) -> sqlite3.Connection:
        database = self._connect(self.path)
        try:
            check_schema(database, self.path)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
            # Marked before it has tables: one that is killed in between is still known as ours.
            database.execute(f"PRAGMA application_id = {APPLICATION}")
            database.execute(f"PRAGMA user_version = {SCHEMA}")
            database.executescript(_TABLES)
        except BaseException:
            database.close()
            raise
        return database

    def _write(self, database: sqlite3.Connection) -> bool:
        """Write one batch; True when there may be more."""
        batch, waiting = self._batch, self._waiting
        while waiting and len(batch) < _BATCH:
            batch.append(waiting.popleft())
        samples = []
        while self._samples:
            samples.append(self._samples.popleft())
        if not batch and not samples:
            return False
        rows = [row_of(record) for record in batch]
        try:
            self._insert(database, rows, samples)
        except (UnicodeEncodeError, OverflowError, sqlite3.IntegrityError):
            # Names are what callers like, also what no file can hold; NaN is taken for NULL.
            self._insert(database, [_storable(row) for row in rows], samples)
        self.written += len(batch)
        batch.clear()
        self._trim(database)
        return bool(waiting)

    def _insert(
        self,
        database: sqlite3.Connection,
        rows: Sequence[tuple[Cell, ...]],
        samples: Sequence[WorkerSample],
    ) -> None:
        with database:
            database.executemany(_INSERT, rows)
            database.executemany(_SAMPLE, samples)
            house = (self._begun_us, self.written + len(rows), self.dropped)
            database.execute(_HOUSE, house)
            if samples:
                database.execute(_FORGET_SESSIONS)
                database.execute(_FORGET_HOUSES)

    def _trim(self, database: sqlite3.Connection) -> None:
        """Let the oldest go until the file is within its bounds."""
        ends = _ends(database)
        if ends is not None and ends[1] - ends[0] >= self._rows:
            with database:
                database.execute(_FORGET, (ends[1] - self._rows,))
        for _ in range(_PORTION):
            if used_bytes(database) <= self._file_bytes:
                return
            ends = _ends(database)
            if ends is None:
                return
            with database:
                database.execute(_FORGET, (ends[0] + (ends[1] - ends[0]) // _PORTION,))

    def _give_up(self, error: Exception) -> None:
        self.failed = True
        self.dropped += len(self._waiting) + len(self._batch)
        self._waiting.clear()
        self._batch.clear()
        _log.error("no more records are kept in %s: %s", self.path, error)

    def _set_aside(self, error: Exception) -> None:
        """Make room for a new file; the torn one is kept, the one torn before it is not."""
        aside = self.path.with_name(f"{self.path.name}.torn")
        with suppress(OSError):
            for end in ("-wal", "-shm"):
                self.path.with_name(self.path.name + end).unlink(missing_ok=True)
            self.path.replace(aside)
        _log.warning(
            "the store of records %s cannot be read and was set aside as %s; a new one begins: %s",
            self.path,
            aside.name,
            error,
        )


def check_schema(database: sqlite3.Connection, path: Path) -> None:
    """Raises StoreFault for a file of something else or of another release."""
    schema = _number(database, "PRAGMA user_version")
    application = _number(database, "PRAGMA application_id")
    tables = _number(database, "SELECT count(*) FROM sqlite_master")
    if not schema and not application and not tables:
        return
    if application != APPLICATION:
        raise StoreFault(f"{path} is a database of something else")
    if schema != SCHEMA:
        raise OtherSchema(f"{path} has records of schema {schema}, this release keeps {SCHEMA}")


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file it is; None when there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def used_bytes(database: sqlite3.Connection) -> int:
    """Bytes of the file that hold something."""
    pages = _number(database, "PRAGMA page_count") - _number(database, "PRAGMA freelist_count")
    return pages * _number(database, "PRAGMA page_size")


def _storable(row: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """The row with what no file can hold replaced."""
    return tuple(
        cell.encode("utf-8", "replace").decode()
        if isinstance(cell, str)
        else 0
        if math.isnan(cell)
        else min(max(cell, -_LARGEST), _LARGEST)
        for cell in row
    )


def _number(database: sqlite3.Connection, query: str) -> int:
    return int(database.execute(query).fetchone()[0])


def _ends(database: sqlite3.Connection) -> tuple[int, int] | None:
    """The ids of the oldest and the newest record; None when there is none."""
    oldest, newest = database.execute("SELECT min(id), max(id) FROM requests").fetchone()
    return None if oldest is None else (int(oldest), int(newest))


def _code(error: Exception) -> int:
    """SQLite's primary result code, 0 for faults of another kind."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def _is_torn(error: Exception, path: Path) -> bool:
    """Whether the file itself is at fault, so that a new one may do better.

    What was never a store is only moved where its name says that it may have been one.
    """
    if _code(error) == sqlite3.SQLITE_NOTADB:
        return path.suffix in _SUFFIXES
    return isinstance(error, OtherSchema) or _code(error) == sqlite3.SQLITE_CORRUPT
