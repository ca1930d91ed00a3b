"""Opens a SQLite file: checks that it is ours and not in use, and sets it up.

The lock file says who may write. Its holder is the only process, so whatever it
finds running at start was left by a dead one and is recovered at once. A file
that is busy, unreadable, damaged, newer or not ours is refused; it is never moved away
and never reset.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import apsw

from lastgood.errors import (
    DatabaseDamaged,
    NoDatabase,
    NotADatabase,
    StoreLocked,
    StoreUnavailable,
)
from lastgood.store.migrations import Migration, migrations, pending, refuse_older
from lastgood.store.sqlite.lock_file import Lock, cannot_open
from lastgood.store.sqlite.schema_ledger import applied, upgrade
from lastgood.store.sqlite.writer import BUSY_MS, Inline, Threaded, Transaction, Writer, translate
from lastgood.store.statements import named
from lastgood.store.writability import PROBE_BYTES, Writability

#: 'LGud' in the file's header: a SQLite file of another program is not ours to touch.
APPLICATION_ID = 0x4C477564
#: Statements that stay prepared: those of the last 512 executions (apsw's limit). With its default of 100, a
#: group of 16 commits prepared each of its statements anew: a statement left the cache before the next group.
PREPARED = 512

T = TypeVar("T")
Row = tuple[Any, ...]

log = logging.getLogger(__name__)


class SqliteDatabase:
    """One connection that reads, on the caller's thread, and one writer. `connect` opens another reader."""

    def __init__(
        self,
        reader: apsw.Connection,
        writer: Writer,
        lock: Lock | None,
        connect: Callable[[], apsw.Connection],
    ) -> None:
        self._reader = reader
        self._connect = connect
        self._writer = writer
        self._lock = lock
        self.sql = named("sqlite")
        self.writability = Writability(self._write_probe)

    def rows(
        self,
        name: str,
        parameters: Mapping[str, Any],
        *,
        is_last: Callable[[Row], bool] = lambda row: False,
    ) -> list[Row]:
        """All rows of a read, or those up to the first for which `is_last` is true.

        A row whose text is not Unicode any more is logged and left out, so that the others can be read.
        That it is missing shows in the hash chain; `row` raises.
        """
        found = []
        with closing(self._rows(name, parameters)) as rows:
            for row in rows:
                if isinstance(row, DatabaseDamaged):
                    log.error("%s", row)
                    continue
                found.append(row)
                if is_last(row):
                    break
        return found

    def rows_aside(self, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        """On a connection of its own: the caller may be another thread than everybody else's."""
        try:
            with closing(self._connect()) as reader:
                return list(reader.execute(self.sql[name], parameters))
        except apsw.Error as error:
            raise translate(error) from error

    def row(self, name: str, parameters: Mapping[str, Any]) -> Row | None:
        """Returns None if there is no such row."""
        with closing(self._rows(name, parameters)) as rows:
            row = next(rows, None)
        if isinstance(row, DatabaseDamaged):
            raise row
        return row

    def _rows(self, name: str, parameters: Mapping[str, Any]) -> Generator[Row | DatabaseDamaged, None, None]:
        """Must be closed by the caller. An open cursor holds the reader at the moment when
        it was opened: no later read would see what was committed since."""
        cursor = None
        try:
            cursor = self._reader.execute(self.sql[name], parameters)
            while True:
                try:
                    yield next(cursor)
                except StopIteration:
                    return
                except UnicodeDecodeError as error:
                    damaged = translate(error)
                    assert isinstance(damaged, DatabaseDamaged)
                    yield damaged
        except apsw.Error as error:
            raise translate(error) from error
        finally:
            if cursor is not None:
                cursor.close(True)

    def every_row(self, name: str) -> Generator[Row | DatabaseDamaged, None, None]:
        """In place of a row whose text is not Unicode any more comes the error that it raises."""
        return self._rows(name, {})

    def problems(self) -> list[str]:
        """What SQLite finds wrong with the file: in its pages, or between its rows and their indexes."""
        try:
            found = [str(row[0]) for row in self._reader.execute("PRAGMA integrity_check(100)")]
        except apsw.Error as error:
            return [str(translate(error))]
        return [problem for problem in found if problem != "ok"]

    @contextmanager
    def inspection(self) -> Iterator[SqliteDatabase]:
        """Returns this database at one moment, on a connection of its own. A check awaits between its rows;
        on the shared reader, every other read of this process would stay at the moment of the check."""
        with closing(self._connect()) as reader:
            database = SqliteDatabase(reader, _NoWriter(), None, self._connect)
            with database.snapshot():
                yield database

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Reads in this block see one moment, whatever the writer commits meanwhile. The block must not
        await: other reads of this process would see that moment, too."""
        self._reader.execute("BEGIN")
        try:
            yield
        finally:
            # It has written nothing; and on a damaged file not even this may work.
            with suppress(apsw.Error):
                self._reader.execute("ROLLBACK")

    async def write(self, work: Transaction[T], *, durable: bool = True, long: bool = False) -> T:
        changes = 0

        def counted(connection: apsw.Connection) -> T:
            nonlocal changes
            before = connection.total_changes()
            result = work(connection)
            changes = connection.total_changes() - before
            return result

        try:
            result = await self._writer.run(counted, durable=durable, long=long)
        except StoreUnavailable:
            self.writability.failed()
            raise
        if changes:  # a transaction that changed nothing touched no disk, and shows nothing
            self.writability.succeeded()
        return result

    async def _write_probe(self) -> None:
        filler = os.urandom(PROBE_BYTES)
        await self.write(lambda connection: connection.execute(self.sql["write_probe"], {"filler": filler}))

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
        if self._lock is not None:
            self._lock.release()


def open_database(
    path: Path,
    *,
    read_only: bool = False,
    inline: bool = False,
    clock: Callable[[], float] = time.time,
    steps: tuple[Migration, ...] | None = None,
    migrate: bool = True,
    address: str = "",
) -> SqliteDatabase:
    """`read_only` takes no lock: it can look into the file of a process that runs. Without `migrate`,
    a file whose schema would have to be changed is refused, as one that is not there is."""
    wanted = steps or migrations("sqlite")
    _refuse_lost(path)

    def connect() -> apsw.Connection:
        return _connect(path, apsw.SQLITE_OPEN_READONLY, clock)

    if read_only:
        if not path.exists():
            raise NoDatabase(f"No database at {path} yet; run a turn first")
        reader = connect()
        _check_ours(reader, path)
        if pending(wanted, applied(reader), str(path)):
            raise NoDatabase(f"The database at {path} has no schema yet; run a turn first")
        return SqliteDatabase(reader, _NoWriter(), None, connect)
    _look_first(path, clock)
    if not migrate and not path.exists():
        refuse_older(wanted, (), str(path))
    lock = Lock(path.with_name(path.name + ".lock"), address)
    try:
        connection = _connect(path, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE, clock)
        _check_ours(connection, path)
        # Refused before anything is changed.
        (pending if migrate else refuse_older)(wanted, applied(connection), str(path))
        _set_up(connection, path)
        upgrade(connection, wanted)
        reader = _connect(path, apsw.SQLITE_OPEN_READWRITE, clock)
        reader.pragma("query_only", True)
    except BaseException:
        lock.release()
        raise
    return SqliteDatabase(reader, Inline(connection) if inline else Threaded(connection), lock, connect)


def open_beside(path: Path) -> SqliteDatabase:
    """Beside the process that has the lock, and only for what that process does not rely on to be its own."""
    _refuse_lost(path)

    def connect() -> apsw.Connection:
        return _connect(path, apsw.SQLITE_OPEN_READWRITE, time.time)

    reader = connect()
    _check_ours(reader, path)
    refuse_older(migrations("sqlite"), applied(reader), str(path))
    return SqliteDatabase(reader, Inline(connect()), None, connect)


def open_source(path: Path) -> apsw.Connection:
    """For a copy of the whole file, whatever its schema. A file that is not ours is refused."""
    _refuse_lost(path)
    try:
        connection = _connect(path, apsw.SQLITE_OPEN_READONLY, time.time)
    except NotADatabase as error:
        raise NotADatabase(f"{path} is not a database; it was not changed. Choose another path") from error
    _check_ours(connection, path)
    return connection


def schema_of(path: Path) -> int:
    """The version of the newest migration that the file has; 0: it does not exist, or is empty."""
    if not path.exists() or path.stat().st_size == 0:
        return 0
    with closing(open_source(path)) as connection:
        return max((step.version for step in applied(connection)), default=0)


def _refuse_lost(path: Path) -> None:
    """A write-ahead log belongs to a database. SQLite would delete it, and start with an empty file."""
    log = path.with_name(path.name + "-wal")
    if path.exists() and (path.is_dir() or path.stat().st_size):
        return
    if log.exists() and log.stat().st_size:
        state = "is empty (0 bytes)" if path.exists() else "is missing"
        raise DatabaseDamaged(
            f"Database file {path} {state}, but its write-ahead log {log} holds "
            f"{log.stat().st_size} bytes. Neither was changed. Restore the database file from a "
            "backup, or move the log away to "
            "start with an empty database"
        )


def _look_first(path: Path, clock: Callable[[], float]) -> None:
    """A file that is not ours is rejected before a lock file is created next to it."""
    if path.is_dir():
        raise NotADatabase(f"{path} is a directory; give the path of a file")
    if not path.exists() or path.stat().st_size == 0:
        return
    try:
        connection = _connect(path, apsw.SQLITE_OPEN_READONLY, clock)
    except NotADatabase as error:
        raise NotADatabase(f"{path} is not a database; it was not changed. Choose another path") from error
    except StoreUnavailable:
        return  # busy, or not readable for us: what follows says so
    _check_ours(connection, path)
    connection.close()


class _NoWriter:
    async def run(self, work: Transaction[T], *, durable: bool, long: bool = False) -> T:
        raise StoreLocked("Database was opened read-only")

    def close(self) -> None:
        pass


def _connect(path: Path, flags: int, clock: Callable[[], float]) -> apsw.Connection:
    if flags & apsw.SQLITE_OPEN_CREATE:
        _create_private(path)
    try:
        connection = apsw.Connection(str(path), flags=flags, statementcachesize=PREPARED)
        connection.set_busy_timeout(BUSY_MS)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        connection.create_scalar_function("clock", lambda *_: clock(), 0)
        # SQLite's own knows only ASCII.
        connection.create_scalar_function("lower", _lower, 1, deterministic=True)
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except apsw.Error as error:
        raise translate(error) from error
    return connection


def _lower(*texts: Any) -> str:
    return str(texts[0]).lower()


def _create_private(path: Path) -> None:
    """Conversations are private: only the owner may read the file."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise cannot_open(path, error) from error


def _check_ours(connection: apsw.Connection, path: Path) -> None:
    try:
        mark = connection.pragma("application_id")
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]
    except apsw.Error as error:
        raise translate(error) from error
    if mark != APPLICATION_ID and (mark != 0 or tables):
        raise NotADatabase(
            f"{path} is the database of another program; it was not changed. Choose another path"
        )


def _set_up(connection: apsw.Connection, path: Path) -> None:
    try:
        if connection.pragma("application_id") == 0:
            connection.pragma("application_id", APPLICATION_ID)
        mode = connection.pragma("journal_mode", "wal")
        connection.pragma("foreign_keys", False)
        connection.pragma("cache_size", -16_000)
    except apsw.Error as error:
        raise translate(error) from error
    if mode != "wal":
        raise StoreUnavailable(
            f"The file system of {path} does not support a write-ahead log; use a local disk, or PostgreSQL"
        )
