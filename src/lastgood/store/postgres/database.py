"""The connection to PostgreSQL: the pool, the errors, and the schema.

A statement runs in a transaction of its own unless several must be one. No
connection keeps any state between two of them (no SET, no session lock, no
temporary table), so the server may be behind a transaction pooler; such a DSN
says `?prepared=off`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import asyncpg

from lastgood.errors import (
    DatabaseDamaged,
    InvalidRequest,
    LastgoodError,
    NoDatabase,
    NotADatabase,
    OutcomeUnknown,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from lastgood.model.events import Event
from lastgood.model.ids import SessionId
from lastgood.store.migrations import LEDGER, Applied, Migration, migrations, pending, refuse_older
from lastgood.store.postgres.event_arrays import of_events
from lastgood.store.rows import Row
from lastgood.store.statements import Positional, named, positional
from lastgood.store.writability import PROBE_BYTES, Writability

if TYPE_CHECKING:
    Connection = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
    Pool = asyncpg.Pool[asyncpg.Record]

POOL_SIZE = 8
#: For a connection, from the pool or new. Below the lease, so that a holder learns in time that it has none.
ACQUIRE_SECONDS = 5.0
#: For one statement. A server that says nothing for so long has been lost, not slow.
STATEMENT_SECONDS = 30.0
MIGRATION_SECONDS = 3600.0
CLOSE_SECONDS = 5.0
_IDLE_MS = 5_000

#: The first is built in from version 17 on, the other is there if the server was built with ICU.
COLLATION = """
SELECT collname FROM pg_collation WHERE collname IN ('pg_c_utf8', 'und-x-icu')
ORDER BY collname <> 'pg_c_utf8' LIMIT 1
"""

#: What the driver raises; anything else is a bug of ours and stays what it is.
FAILURES = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,  # TimeoutError is one of them
)
#: The connection went away with the statement under way. Among the server's own
#: words, too: one that shuts down may say so after it has committed.
LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InternalClientError,
    OSError,
)
#: The server is there and refused; it has rolled the transaction back, and may not refuse the next time.
NOT_NOW = (
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,
    asyncpg.OperatorInterventionError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.PostgresSystemError,
    asyncpg.PostgresIOError,
)
#: NUL, above all: it is a character everywhere but in the text of PostgreSQL.
UNWRITABLE = (asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError)
#: A prepared statement is of one connection, and a pooler has put us on another.
UNPREPARED = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
#: Waiting does not help against these; somebody has to change the DSN or the server.
MISCONFIGURED = (
    asyncpg.ClientConfigurationError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
)


class AlreadyThere(StoreError):
    """The database has something under this id or key already; nothing was changed."""

    def __init__(self, constraint: str | None) -> None:
        super().__init__(constraint=constraint)
        self.constraint = constraint


def translate(error: Exception, *, writing: bool) -> LastgoodError:
    """The driver's error as one of ours; once, here."""
    if isinstance(error, asyncpg.UniqueViolationError):
        return AlreadyThere(error.constraint_name)
    if isinstance(error, asyncpg.DiskFullError):
        return StoreFull()
    if isinstance(error, asyncpg.DataCorruptedError | asyncpg.IndexCorruptedError):
        return DatabaseDamaged(
            f"Database is damaged ({error}). Run `lastgood db check`, and restore a backup"
        )
    if isinstance(error, UNWRITABLE):
        return InvalidRequest(f"The database cannot store this text ({error}); remove the character")
    if isinstance(error, UNPREPARED):
        return StoreError(f"{error}; behind a transaction pooler, add prepared=off to the DSN")
    if isinstance(error, LOST):
        if writing:
            return OutcomeUnknown()
        return StoreUnavailable(f"Database connection lost ({_words(error)}); retry")
    if isinstance(error, NOT_NOW):
        return StoreUnavailable(f"Database temporarily unavailable ({error}); retry")
    if isinstance(error, asyncpg.InterfaceError) and "closed" in str(error):
        return StoreUnavailable()  # the driver knew before it sent anything
    return StoreError(f"Database error: {_words(error)}")


def unreachable(error: Exception) -> LastgoodError:
    """No connection was had, so nothing was sent."""
    if isinstance(error, MISCONFIGURED):
        return StoreError(f"The database rejected the credentials of this DSN: {_words(error)}")
    return StoreUnavailable(f"Database unreachable ({_words(error)}); retry shortly")


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


@asynccontextmanager
async def reaching(pool: Pool, *, writing: bool) -> AsyncIterator[Connection]:
    """The seam: every error of the driver passes here, and no other place looks at them."""
    try:
        connection = await pool.acquire(timeout=ACQUIRE_SECONDS)
    except FAILURES as error:
        raise unreachable(error) from error
    try:
        yield connection
    except FAILURES as error:
        raise translate(error, writing=writing) from error
    finally:
        # Of a statement that was cancelled the driver awaits the end, or drops
        # the connection: nobody gets one with somebody else's answer in it. If even that
        # fails, the connection is gone, and what happened before is what counts.
        with suppress(*FAILURES):
            await pool.release(connection)


@cache
def _statements(collation: str) -> Mapping[str, Positional]:
    return {
        name: positional(statement.replace("every script", collation))
        for name, statement in named("postgres").items()
    }


class PostgresDatabase:
    """A pool, and every statement by name."""

    def __init__(self, pool: Pool, collation: str) -> None:
        self._pool = pool
        self.sql = _statements(collation)
        self.writability = Writability(self._write_probe)

    async def rows(self, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        statement = self.sql[name]
        async with reaching(self._pool, writing=False) as connection:
            return cast(list[Row], await connection.fetch(statement.text, *statement.values(parameters)))

    async def row(self, name: str, parameters: Mapping[str, Any]) -> Row | None:
        return next(iter(await self.rows(name, parameters)), None)

    async def write(self, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        """One statement as one transaction; no rows: its condition did not hold, and nothing was written."""
        statement = self.sql[name]
        try:
            async with reaching(self._pool, writing=True) as connection:
                rows = await connection.fetch(statement.text, *statement.values(parameters))
        except StoreUnavailable:
            self.writability.failed()
            raise
        if rows:
            self.writability.succeeded()
        return cast(list[Row], rows)

    async def _write_probe(self) -> None:
        await self.write("write_probe", {"filler": os.urandom(PROBE_BYTES)})

    @asynccontextmanager
    async def transaction(self, *, durable: bool = True) -> AsyncIterator[Transaction]:
        """For what does not fit into one statement. Without `durable`, its flush is left to the server."""
        try:
            async with reaching(self._pool, writing=True) as connection, connection.transaction():
                # A process that is paused in the middle must not keep others from the rows it has locked.
                await connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = {_IDLE_MS}")
                if not durable:
                    await connection.execute("SET LOCAL synchronous_commit = off")
                yield Transaction(connection, self.sql)
        except StoreUnavailable:
            self.writability.failed()
            raise

    @asynccontextmanager
    async def moment(self) -> AsyncIterator[Transaction]:
        """A few reads of one moment."""
        async with (
            reaching(self._pool, writing=False) as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            yield Transaction(connection, self.sql)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[ReadSnapshot]:
        """Reads of one moment, however long they take and whatever others write meanwhile."""
        async with (
            reaching(self._pool, writing=False) as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            yield ReadSnapshot(connection, self.sql)

    async def close(self) -> None:
        """Lets what is under way finish, for a while."""
        try:
            await asyncio.wait_for(self._pool.close(), CLOSE_SECONDS)
        except (TimeoutError, *FAILURES):
            self._pool.terminate()


class Transaction:
    def __init__(self, connection: Connection, sql: Mapping[str, Positional]) -> None:
        self._connection = connection
        self._sql = sql

    async def row(self, name: str, parameters: Mapping[str, Any]) -> Row | None:
        statement = self._sql[name]
        row = await self._connection.fetchrow(statement.text, *statement.values(parameters))
        return cast(Row | None, row)

    async def rows(self, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        statement = self._sql[name]
        rows = await self._connection.fetch(statement.text, *statement.values(parameters))
        return cast(list[Row], rows)

    async def insert_events(self, session: SessionId, last: int, events: Sequence[Event]) -> None:
        """Numbers end at `last`: the session's counter was moved past them just before."""
        if events:
            await self.row("insert_events", {"session": session, "last": last} | of_events(events))


class ReadSnapshot:
    def __init__(self, connection: Connection, sql: Mapping[str, Positional]) -> None:
        self._connection = connection
        self._sql = sql

    async def rows(self, name: str) -> AsyncGenerator[Row, None]:
        """A page at a time. DatabaseDamaged: the server cannot read one of its pages."""
        try:
            # Sorting a large table may take the server a while before the first row comes.
            rows = self._connection.cursor(self._sql[name].text, prefetch=200, timeout=MIGRATION_SECONDS)
            async for row in rows:
                yield cast(Row, row)
        except asyncpg.DataCorruptedError as error:
            raise translate(error, writing=False) from error

    async def checksum_failures(self) -> int:
        failures = await self._connection.fetchval(
            "SELECT checksum_failures FROM pg_stat_database WHERE datname = current_database()"
        )
        return int(failures or 0)


async def open_database(
    dsn: str,
    *,
    pool_size: int = POOL_SIZE,
    steps: tuple[Migration, ...] | None = None,
    read_only: bool = False,
    migrate: bool = True,
) -> PostgresDatabase:
    """`read_only` changes nothing, the schema included. Without `migrate`, a schema that would have to be
    changed is refused."""
    pool = await _make_pool(dsn, pool_size)
    wanted = migrations("postgres") if steps is None else steps
    try:
        async with reaching(pool, writing=not read_only) as connection:
            if not read_only and migrate:
                await upgrade(connection, wanted)
            elif not read_only:
                refuse_older(wanted, await _applied(connection))
            elif pending(wanted, await _applied(connection)):
                raise NoDatabase("The database has no schema of this version yet; run a turn first")
            collation = await connection.fetchval(COLLATION) or "default"
        return PostgresDatabase(pool, collation)
    except BaseException:
        pool.terminate()
        raise


async def schema_of(dsn: str) -> int:
    """The version of the newest migration that the database has; 0: it has no schema."""
    pool = await _make_pool(dsn, 1)
    try:
        async with reaching(pool, writing=False) as connection:
            return max((step.version for step in await _applied(connection)), default=0)
    finally:
        pool.terminate()


async def _make_pool(dsn: str, size: int) -> Pool:
    address, prepared = split_dsn(dsn)
    try:
        return await asyncpg.create_pool(
            address,
            min_size=0,
            max_size=size,
            timeout=ACQUIRE_SECONDS,
            command_timeout=STATEMENT_SECONDS,
            statement_cache_size=100 if prepared else 0,
            reset=_keep,
        )
    except FAILURES as error:
        raise unreachable(error) from error


async def _keep(connection: object) -> None:
    """In place of the driver's reset, a round trip that would undo what we never do."""


def split_dsn(dsn: str) -> tuple[str, bool]:
    """The DSN as the driver knows it, and whether it may prepare statements."""
    address, _, query = dsn.partition("?")
    options = query.split("&") if query else []
    rest = "&".join(option for option in options if not option.startswith("prepared="))
    return f"{address}?{rest}" if rest else address, "prepared=off" not in options


async def upgrade(connection: Connection, steps: tuple[Migration, ...]) -> None:
    while pending(steps, await _applied(connection)):
        try:
            await _apply_next(connection, steps)
        except (asyncpg.DuplicateTableError, asyncpg.DuplicateFunctionError) as error:
            raise NotADatabase(
                f"This schema contains objects of another program ({error}); it was not changed. "
                "Choose another database or schema"
            ) from error


async def _apply_next(connection: Connection, steps: tuple[Migration, ...]) -> None:
    """One migration and its record, or nothing."""
    async with connection.transaction():
        # Nodes that start at the same time queue up here, and the later one finds
        # it done. The lock ends with the transaction: a pooler may give the
        # next transaction to another connection.
        await connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended('lastgood migrate', 0))", timeout=MIGRATION_SECONDS
        )
        step = next(iter(pending(steps, await _applied(connection))), None)
        if step is None:
            return
        await connection.execute(LEDGER)
        for statement in step.statements:
            await connection.execute(statement, timeout=MIGRATION_SECONDS)
        await connection.execute(
            "INSERT INTO lastgood_schema VALUES ($1, $2, $3)",
            step.version,
            step.compatible_from,
            step.digest,
        )


async def _applied(connection: Connection) -> list[Applied]:
    # Not to_regclass: that may answer from a cache of this connection, which does not yet
    # know what another node created while this one waited for the lock.
    found = await connection.fetch(
        "SELECT attname FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid "
        "WHERE relnamespace = current_schema()::text::regnamespace AND relname = 'lastgood_schema' "
        "AND attnum > 0"
    )
    if not found:
        return []
    digest = "digest" if "digest" in {str(name) for (name,) in found} else "NULL"
    rows = await connection.fetch(f"SELECT version, compatible_from, {digest} FROM lastgood_schema")
    return [Applied(int(version), int(compatible_from), digest) for version, compatible_from, digest in rows]
