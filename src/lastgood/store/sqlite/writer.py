"""One writer, commits in groups.

Transactions that wait while the disk is busy share the next fsync: each runs
under a savepoint of its own, so one that fails does not undo its neighbours. A
group is flushed to the disk (synchronous=FULL) if one of its transactions asks
for it; batches of events alone are not, because what a power cut could take of
them belongs to an attempt that has failed anyway.

`Threaded` is what serves; `Inline` runs the same transactions on the caller's
thread, one by one, for simulations that move the clock by hand.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import apsw

from lastgood.errors import LastgoodError, NotADatabase, StoreError, StoreFull, StoreUnavailable

T = TypeVar("T")
Transaction = Callable[[apsw.Connection], T]

#: More would only make the last caller of a group wait longer.
MOST_IN_GROUP = 256


class Writer(Protocol):
    async def run(self, work: Transaction[T], *, durable: bool) -> T: ...

    def close(self) -> None: ...


def translate(error: Exception) -> Exception:
    """The driver's error as one of ours; once, here."""
    if isinstance(error, LastgoodError):
        return error
    if isinstance(error, apsw.FullError | apsw.ReadOnlyError | apsw.PermissionsError):
        return StoreFull()
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        return NotADatabase(f"the database file is damaged or not a database ({error}); it was left as it is")
    if isinstance(error, apsw.BusyError | apsw.IOError | apsw.CantOpenError | apsw.InterruptError):
        return StoreUnavailable(f"the database cannot be used just now ({error}); try again")
    if isinstance(error, apsw.Error):
        return StoreError(f"the database refused a statement: {error}")
    return error


class Inline:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._flushing = _Flushing(connection)

    async def run(self, work: Transaction[T], *, durable: bool) -> T:
        try:
            self._flushing.set(durable)
            with _transaction(self._connection):
                return work(self._connection)
        except apsw.Error as error:
            raise translate(error) from error

    def close(self) -> None:
        self._connection.close()


@dataclass(slots=True)
class _Job:
    work: Transaction[Any]
    durable: bool
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None


class Threaded:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._flushing = _Flushing(connection)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="lastgood-writer", daemon=True)
        self._thread.start()

    async def run(self, work: Transaction[T], *, durable: bool) -> T:
        if self._closed:
            raise StoreUnavailable("the database is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(work, durable, loop, future))
        return await future

    def close(self) -> None:
        """Finishes what was handed in, then closes the file."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
            self._thread.join()

    def _serve(self) -> None:
        last = False
        while not last:
            group, last = self._next_group()
            if group:
                self._write(group)
                _deliver(group)
        self._connection.close()

    def _next_group(self) -> tuple[list[_Job], bool]:
        job = self._jobs.get()
        group: list[_Job] = []
        while True:
            if job is None:
                return group, True
            group.append(job)
            if len(group) == MOST_IN_GROUP:
                return group, False
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return group, False

    def _write(self, group: list[_Job]) -> None:
        connection = self._connection
        try:
            self._flushing.set(any(job.durable for job in group))
            try:
                with _transaction(connection):
                    _run_together(connection, group)
            except _OneFailed:
                with _transaction(connection):
                    for job in group:
                        _run_in_savepoint(connection, job)
        except Exception as error:
            # The group was rolled back as one: nobody's write happened.
            for job in group:
                job.error = job.error or translate(error)


class _OneFailed(Exception):
    """One of a group, as few do. All are undone and run again, each so that it can fail alone."""


def _run_together(connection: apsw.Connection, group: list[_Job]) -> None:
    for job in group:
        try:
            job.result = job.work(connection)
        except Exception as error:
            if len(group) == 1:
                raise
            raise _OneFailed from error


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


class _transaction:
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK if anything failed, the COMMIT included."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        connection = self._connection
        if kind is None:
            try:
                connection.execute("COMMIT")
                return
            except apsw.Error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        if connection.in_transaction:
            connection.execute("ROLLBACK")


class _Flushing:
    """Whether a COMMIT waits for the disk. Remembered here: asking SQLite costs as much as setting it."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._durable: bool | None = None

    def set(self, durable: bool) -> None:
        if durable is not self._durable:
            self._connection.pragma("synchronous", 2 if durable else 1)
            self._durable = durable


def _deliver(group: list[_Job]) -> None:
    loops: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
    for job in group:
        loops.setdefault(job.loop, []).append(job)
    for loop, jobs in loops.items():
        try:
            loop.call_soon_threadsafe(_settle, jobs)
        except RuntimeError:  # the loop was closed meanwhile; nobody waits any more
            continue


def _settle(jobs: list[_Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)
