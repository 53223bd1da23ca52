"""The store of records: what is put in it is there, within its bounds, and faults stay small."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from controlplane.records.demand import COLUMNS, row_of
from controlplane.records.store import (
    MOST_WAITING,
    SCHEMA,
    RecordStore,
    check_schema,
    connect_file,
    used_bytes,
)
from tests.unit.controlplane.records.samples import record, sample

ROOT = Path(__file__).parents[4]


def store(path: Path, **changes: Any) -> RecordStore:
    given: dict[str, Any] = {"rows": 1000, "file_bytes": 64 << 20, "begun_us": 1, **changes}
    return RecordStore(path, **given)


def rows(path: Path, query: str = f"SELECT {', '.join(COLUMNS)} FROM requests") -> list[Any]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


def written(made: RecordStore, count: int) -> None:
    """Waits until the store has written so many records, or has failed."""
    while made.written < count and not made.failed:
        made._writer.join(0.02)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "records.sqlite"


def test_what_is_put_is_there_when_the_store_is_closed(file: Path) -> None:
    made = store(file)
    made.start()
    records = [record(number, tenant=f"t{number}") for number in range(5000)]
    for each in records:
        made.put(each)
    made.sample(sample())
    made.sample(sample(run_cpu_us=30_000))
    made.close()
    assert rows(file) == [row_of(each) for each in records[-1000:]]
    assert (made.written, made.dropped, made.failed) == (5000, 0, False)
    # A session has one row, the latest.
    assert rows(file, "SELECT run_cpu_us FROM workers") == [(30_000,)]
    assert rows(file, "SELECT * FROM houses") == [(1, 5000, 0)]
    assert file.stat().st_mode & 0o077 == 0


def test_a_second_process_adds_to_the_file(file: Path) -> None:
    for begun in (1, 2):
        made = store(file, begun_us=begun)
        made.start()
        made.put(record(begun))
        made.sample(sample(begun_us=begun))
        made.close()
    assert len(rows(file)) == 2
    assert rows(file, "SELECT begun_us FROM workers") == [(1,), (2,)]


def test_the_file_stays_within_its_bytes(file: Path) -> None:
    bound = 1 << 20
    made = store(file, rows=1_000_000, file_bytes=bound)
    made.start()
    for number in range(16_000):
        made.put(record(number))
    made.close()
    assert made.written == 16_000
    with closing(sqlite3.connect(file)) as database:
        assert used_bytes(database) <= bound
        (count,) = database.execute("SELECT count(*) FROM requests").fetchone()
        (newest,) = database.execute("SELECT max(at_us) FROM requests").fetchone()
    assert 1000 < count < 16_000
    assert newest == record(15_999).at_us


def test_who_puts_too_fast_loses_records_and_no_time(file: Path) -> None:
    made = store(file)
    for _ in range(MOST_WAITING + 7):
        made.put(record())
    assert made.dropped == 7
    made.start()
    made.close()
    assert rows(file, "SELECT dropped FROM houses") == [(7,)]


class Full(sqlite3.Connection):
    """A disk that is full once there are records."""

    def executemany(self, query: str, parameters: Any, /) -> sqlite3.Cursor:
        if "requests" in query:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return super().executemany(query, parameters)


def test_a_full_disk_ends_the_store_with_one_line(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.parent.mkdir()
    made = store(file, connect=lambda path: sqlite3.connect(path, factory=Full))
    with caplog.at_level(logging.INFO):
        made.put(record())
        made.start()
        made.close()
        made.put(record())
    assert (made.failed, made.written, made.dropped) == (True, 0, 2)
    (line,) = caplog.messages
    assert line == f"no more records are kept in {file}: database or disk is full"


class Busy(sqlite3.Connection):
    """A file that somebody else holds for the first two batches."""

    tries = 0

    def executemany(self, query: str, parameters: Any, /) -> sqlite3.Cursor:
        Busy.tries += 1
        if Busy.tries <= 2:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error
        return super().executemany(query, parameters)


def test_a_busy_file_is_written_later(file: Path) -> None:
    file.parent.mkdir()
    Busy.tries = 0
    made = store(file, connect=lambda path: sqlite3.connect(path, factory=Busy))
    made.put(record())
    made.start()
    written(made, 1)
    made.close()
    assert (made.written, made.failed) == (1, False)
    assert len(rows(file)) == 1


@pytest.mark.parametrize("torn", [b"", b"SQLite format 3\0 and no more of it" * 200, b"\0" * 9000])
def test_a_torn_file_is_set_aside_and_a_new_one_begins(
    file: Path, torn: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file.parent.mkdir()
    file.write_bytes(torn)
    made = store(file)
    made.put(record())
    made.start()
    made.close()
    assert (made.failed, made.written) == (False, 1)
    assert len(rows(file)) == 1
    aside = file.with_name("records.sqlite.torn")
    if torn:
        assert aside.read_bytes() == torn
        assert "was set aside as records.sqlite.torn" in caplog.text
    else:
        assert not aside.exists()


def test_a_file_that_tears_while_it_is_written_is_set_aside(file: Path) -> None:
    made = store(file)
    made.start()
    for number in range(2000):
        made.put(record(number))
    made.close()
    # The middle of its pages is gone.
    with file.open("r+b") as handle:
        handle.seek(4096)
        handle.write(b"\xff" * 4096 * 8)
    again = store(file, begun_us=2)
    again.start()
    for number in range(2000):
        again.put(record(number))
    again.close()
    assert again.written >= 2000 and not again.failed
    assert file.with_name("records.sqlite.torn").exists()
    assert len(rows(file)) == 1000


@pytest.mark.parametrize("what", ["removed", "replaced", "with its folder"])
def test_a_file_that_is_taken_away_is_begun_anew(
    file: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = store(file)
    made.start()
    made.put(record(0))
    written(made, 1)
    for each in tuple(file.parent.iterdir()):
        each.unlink()
    if what == "replaced":
        file.with_name("other").touch()
        file.with_name("other").rename(file)
    elif what == "with its folder":
        file.parent.rmdir()
    made.put(record(1))
    written(made, 2)
    made.close()
    assert rows(file) == [row_of(record(1))]
    assert caplog.text.count("was taken away; a new one begins") == 1
    assert (made.written, made.dropped, made.failed) == (2, 0, False)


def test_a_number_that_is_none_loses_nothing_else(file: Path) -> None:
    made = store(file)
    made.start()
    for price in (float("nan"), float("inf"), 2.0):
        made.put(record(1, price=price))
    made.close()
    assert (made.written, made.failed) == (3, False)
    assert [row[0] for row in rows(file, "SELECT price FROM requests")] == [0.0, 2.0**62, 2.0]


def test_what_is_no_store_is_left_alone(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.parent.mkdir()
    notes = file.with_name("notes.md")
    notes.write_text("these are no records\n" * 1000)
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE mine (a)")
        database.commit()
    before = file.read_bytes()
    for path in (notes, file):
        made = store(path)
        made.put(record())
        made.start()
        made.close()
        assert made.failed and made.dropped == 1
    assert notes.read_text().startswith("these are no records")
    assert file.read_bytes() == before
    assert "is a database of something else" in caplog.text


def test_a_folder_that_cannot_be_made_ends_the_store(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    made = store(tmp_path / "taken" / "records.sqlite")
    made.start()
    made.close()
    assert made.failed


def test_records_of_another_release_are_set_aside(file: Path) -> None:
    made = store(file)
    made.start()
    made.put(record())
    made.close()
    with closing(sqlite3.connect(file)) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    again = store(file)
    again.start()
    again.put(record())
    again.close()
    assert again.written == 1 and len(rows(file)) == 1
    assert file.with_name("records.sqlite.torn").exists()


def test_names_that_no_file_can_hold_lose_nothing(file: Path) -> None:
    made = store(file)
    made.put(record(tenant="\ud800x"))
    made.put(record(deadline_us=10**30))
    made.start()
    made.close()
    assert not made.failed
    assert rows(file, "SELECT tenant FROM requests") == [("?x",), ("shop",)]


_KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from controlplane.records.store import RecordStore
from tests.unit.controlplane.records.samples import record
store = RecordStore(Path(sys.argv[1]), rows=10**6, file_bytes=1 << 30, begun_us=1)
store.start()
number = 0
while store.written < 3000:
    store.put(record(number))
    number += 1
    if number % 500 == 0:
        store._writer.join(0.05)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_leaves_what_it_had_written(file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(file), str(ROOT)], check=False, timeout=60
    )
    assert done.returncode == -9
    with closing(sqlite3.connect(file)) as database:
        check_schema(database, file)
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    kept = [each[0] for each in rows(file, "SELECT at_us FROM requests ORDER BY id")]
    assert len(kept) >= 3000
    assert kept == [record(number).at_us for number in range(len(kept))]
    again = store(file, rows=10**6, begun_us=2)
    again.put(record())
    again.start()
    again.close()
    assert len(rows(file)) == len(kept) + 1


def test_the_file_is_for_its_owner(file: Path) -> None:
    connect_file(file).close()
    assert file.stat().st_mode & 0o777 == 0o600
