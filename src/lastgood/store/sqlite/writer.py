"""One writer, commits in groups.

Transactions run on the loop's thread, one after the other, and those that come together share
a COMMIT. One that waits for the disk (synchronous=FULL) is left to a thread of its own, and what
comes meanwhile is the next group. The thread does no more than that: it has to ask for the
interpreter at every statement, and a busy loop gives it back late. The connection is in one
pair of hands at a time.

Batches of events need not be flushed, because what a power cut could take of them belongs to an
attempt that has failed anyway: they are committed at once, before those that must be.
One that fails does not undo its neighbours: its group is run again, each under a savepoint.

`Threaded` is what serves; `Inline` runs the same transactions one by one, where there is nobody
to wait for: in simulations that move the clock by hand, and in commands beside a server.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Protocol, TypeVar

import apsw

from lastgood.errors import (
    DatabaseDamaged,
    LastgoodError,
    NotADatabase,
    OutcomeUnknown,
    StoreError,
    StoreFull,
    StoreUnavailable,
)

T = TypeVar("T")
Transaction = Callable[[apsw.Connection], T]

#: More would make the last caller of a group wait longer, and the loop with it.
MOST_IN_GROUP = 64

#: How long the log may grow before its pages are moved into the file.
LOG_PAGES = 1000

#: How long to wait for another program that writes to the file. The loop does not wait at all.
BUSY_MS = 5000


class Writer(Protocol):
    async def run(self, work: Transaction[T], *, durable: bool, long: bool = False) -> T:
        """`long`: a few statements that may touch very many rows. The loop need not wait for it."""

    def close(self) -> None: ...


def translate(error: Exception) -> Exception:
    """The driver's error as one of ours; once, here."""
    if isinstance(error, LastgoodError):
        return error
    if isinstance(error, apsw.FullError | apsw.ReadOnlyError | apsw.PermissionsError):
        return StoreFull()
    if isinstance(error, apsw.NotADBError):
        return NotADatabase(f"Database file is damaged or not a database ({error}); it was not changed")
    if isinstance(error, UnicodeDecodeError):
        return DatabaseDamaged(
            "A text column contains invalid Unicode, so its row cannot be read. Run "
            "`lastgood db check`, and restore a backup"
        )
    if isinstance(error, apsw.CorruptError):
        return DatabaseDamaged(
            f"Database file is damaged ({error}); it was not changed. Run `lastgood db check`, and "
            "restore a backup"
        )
    if isinstance(error, apsw.BusyError | apsw.IOError | apsw.CantOpenError | apsw.InterruptError):
        return StoreUnavailable(f"Database temporarily unavailable ({error}); retry")
    if isinstance(error, apsw.Error):
        return StoreError(f"Database error: {error}")
    if isinstance(error, StopIteration):
        return RuntimeError("a transaction ran out of rows")  # what no future can hold
    return error


class Inline:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._flushing = _Flushing(connection)

    async def run(self, work: Transaction[T], *, durable: bool, long: bool = False) -> T:
        connection = self._connection
        try:
            self._flushing.set(durable)
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(connection)
                connection.execute("COMMIT")
            except BaseException:
                _roll_back(connection)
                raise
        except (apsw.Error, UnicodeDecodeError) as error:
            raise translate(error) from error
        return result

    def close(self) -> None:
        self._connection.close()


@dataclass(slots=True)
class _Job:
    work: Transaction[Any]
    durable: bool
    long: bool
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None


@dataclass(slots=True)
class _Group:
    jobs: list[_Job]
    durable: bool
    long: bool = False
    has_run: bool = False  # all but its COMMIT


class Threaded:
    """Used by one loop at a time. Another may follow when that is closed."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._connection.set_busy_timeout(0)
        self._flushing = _Flushing(connection)
        self._quick: list[_Job] = []  # those that wait: for their turn alone,
        self._slow: list[_Job] = []  # and for the disk, or for very many rows
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_free = True  # no thread uses the connection
        self._groups: queue.SimpleQueue[_Group | None] = queue.SimpleQueue()
        self._rests = threading.Event()  # the thread has no group
        self._rests.set()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="lastgood-writer", daemon=True)
        self._thread.start()

    async def run(self, work: Transaction[T], *, durable: bool, long: bool = False) -> T:
        if self._closed:
            raise StoreUnavailable("Database is closed")
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._move_to(loop)
        future: asyncio.Future[T] = loop.create_future()
        waiting = self._slow if durable or long else self._quick
        waiting.append(_Job(work, durable, long, future))
        if self._is_free:
            self._is_free = False
            loop.call_soon(self._go_on)  # with whatever else comes until then
        return await future

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Finishes what the last event loop has submitted; nobody waits for it any more."""
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("Database is used by another event loop")
        self._rests.wait()
        self._loop, self._is_free = loop, True

    def close(self) -> None:
        """Finishes what was handed in, then closes the file."""
        if self._closed:
            return
        self._closed = True
        self._groups.put(None)
        self._thread.join()
        try:
            while (group := self._next_quick() or self._next_slow()) is not None:
                self._finish(group)
                _settle(group)
        finally:
            self._connection.close()

    # -- on the loop's thread ------------------------------------------------------------

    def _go_on(self) -> None:
        """With the connection in hand: a group that needs no flush, then one that does. Then others have
        their turn: the loop is theirs, too."""
        for next_group in (self._next_quick, self._next_slow):
            group = next_group()
            if group is None:
                continue
            if not self._is_done(group):
                self._rests.clear()
                self._groups.put(group)
                return
            _settle(group)
        self._soon()

    def _soon(self) -> None:
        self._is_free = not (self._quick or self._slow)
        if not self._is_free:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _next_quick(self) -> _Group | None:
        jobs, self._quick = self._quick[:MOST_IN_GROUP], self._quick[MOST_IN_GROUP:]
        return _Group(jobs, durable=self._flushing.needs_flush()) if jobs else None

    def _next_slow(self) -> _Group | None:
        """In the order they came; one that takes long is a group of its own."""
        jobs = [*takewhile(lambda job: not job.long, self._slow[:MOST_IN_GROUP])] or self._slow[:1]
        del self._slow[: len(jobs)]
        return _Group(jobs, jobs[0].durable, jobs[0].long) if jobs else None

    def _is_done(self, group: _Group) -> bool:
        """As much of it as need not wait; a group that failed is done."""
        if group.long:
            return False
        try:
            self._run(group)
            if not group.durable:
                self._connection.execute("COMMIT")
            return not group.durable
        except apsw.BusyError:
            return False
        except Exception as error:
            self._fail(group, error)
            return True
        except BaseException as error:
            # Ctrl-C, at any moment. What cleans up after it may have to write.
            self._fail(group, error)
            _settle(group)
            self._soon()
            raise

    def _done(self, group: _Group) -> None:
        _settle(group)
        self._go_on()

    # -- on the writer's -----------------------------------------------------------------

    def _serve(self) -> None:
        while (group := self._groups.get()) is not None:
            loop = self._loop
            assert loop is not None
            self._finish(group)
            self._rests.set()
            with suppress(RuntimeError):  # it was closed meanwhile; nobody waits any more
                loop.call_soon_threadsafe(self._done, group)

    # -- on either -----------------------------------------------------------------------

    def _finish(self, group: _Group) -> None:
        """Waits for as long as it takes."""
        self._connection.set_busy_timeout(BUSY_MS)
        try:
            if not group.has_run:
                self._run(group)
            self._connection.execute("COMMIT")
        except BaseException as error:
            self._fail(group, error)
        self._connection.set_busy_timeout(0)

    def _run(self, group: _Group) -> None:
        """In a transaction that is left open. An error: nothing of it happened."""
        connection = self._connection
        self._flushing.set(group.durable)
        connection.execute("BEGIN IMMEDIATE")
        try:
            for job in group.jobs:
                job.result = job.work(connection)
        except Exception:
            _roll_back(connection)
            if len(group.jobs) == 1:
                raise
            # One of them, as few do. All are run again, each so that it can fail alone.
            connection.execute("BEGIN IMMEDIATE")
            for job in group.jobs:
                _run_in_savepoint(connection, job)
        group.has_run = True

    def _fail(self, group: _Group, error: BaseException) -> None:
        """Fails the whole batch. It was rolled back as one: no write happened."""
        _roll_back(self._connection)
        known = translate(error) if isinstance(error, Exception) else OutcomeUnknown()
        for job in group.jobs:
            job.error = job.error or known


def _run_in_savepoint(connection: apsw.Connection, job: _Job) -> None:
    connection.execute("SAVEPOINT job")
    try:
        job.result = job.work(connection)
    except Exception as error:
        # A full disk may have ended the whole transaction by itself.
        if not connection.in_transaction:
            raise
        connection.execute("ROLLBACK TO job")
        job.error = translate(error)
    connection.execute("RELEASE job")


def _roll_back(connection: apsw.Connection) -> None:
    """If there is anything to roll back: a full disk may have ended the transaction by itself."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


class _Flushing:
    """Whether a COMMIT waits for the disk. Remembered here: asking SQLite costs as much as setting it.

    Moving the log's pages into the file waits for it, too, so that is left to those that do anyway.
    When the log starts over, its first page is flushed by any write: seldom, and unavoidable.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._durable: bool | None = None
        self._moved = 0  # pages logged when they could be moved last

    def set(self, durable: bool) -> None:
        if durable is not self._durable:
            self._durable = None  # if this should fail halfway
            self._connection.pragma("synchronous", 2 if durable else 1)
            self._connection.wal_autocheckpoint(LOG_PAGES if durable else 0)
            self._durable = durable
        if durable:
            self._moved = self._logged()

    def needs_flush(self) -> bool:
        """So much was written without a flush that the log has grown long."""
        return self._logged() - self._moved > LOG_PAGES

    def _logged(self) -> int:
        return self._connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0]


def _settle(group: _Group) -> None:
    for job in group.jobs:
        if job.future.done():
            continue
        with suppress(RuntimeError):  # its loop was closed meanwhile
            if job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.result)
