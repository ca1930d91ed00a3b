"""The whole store: one file per noun, put together here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from lastgood.model.ids import SessionId
from lastgood.model.stored_rows import DatabaseStatistics, StoredRow, StoredTable, StoredTurn
from lastgood.ports import Renew
from lastgood.store.activity import SqlActivity
from lastgood.store.audit import SqlAudit
from lastgood.store.claims import SqlClaims
from lastgood.store.imports import SqlImports
from lastgood.store.migrations import Migration
from lastgood.store.notes import SqlNotes
from lastgood.store.pointers import SqlPointers
from lastgood.store.postgres.attempts import PostgresAttempts
from lastgood.store.postgres.database import POOL_SIZE, PostgresDatabase, ReadSnapshot, open_database
from lastgood.store.postgres.events import PostgresEvents
from lastgood.store.postgres.hints import Hints
from lastgood.store.postgres.queue import PostgresQueue
from lastgood.store.postgres.renewals import renewals
from lastgood.store.postgres.sessions import PostgresSessions, PostgresTurns
from lastgood.store.postgres.tokens import PostgresTokens
from lastgood.store.postgres.work import PostgresWork
from lastgood.store.questions import SqlQuestions
from lastgood.store.restores import SqlRestores
from lastgood.store.row_checks import checks_of
from lastgood.store.rows import Row
from lastgood.store.runtimes import SqlRuntimes
from lastgood.store.statistics import to_statistics
from lastgood.store.tasks import SqlTasks
from lastgood.store.tickets import SqlTickets
from lastgood.store.usage import SqlUsage
from lastgood.store.webhooks import SqlWebhooks


class PostgresStore(
    PostgresSessions,
    PostgresTurns,
    PostgresAttempts,
    PostgresQueue,
    PostgresEvents,
    PostgresTokens,
    PostgresWork,
    SqlRuntimes,
    SqlTasks,
    SqlClaims,
    SqlQuestions,
    SqlPointers,
    SqlImports,
    SqlAudit,
    SqlWebhooks,
    SqlUsage,
    SqlActivity,
    SqlTickets,
    SqlNotes,
    SqlRestores,
):
    #: Other nodes may hold what is found running; only an expired lease says that they do not.
    alone = False

    def __init__(self, db: PostgresDatabase, dsn: str, hints: Hints | None) -> None:
        self.db = db
        self._dsn = dsn
        self._hints = hints  # None: it was opened read-only, and neither sends nor receives hints

    def renewals(self) -> AbstractAsyncContextManager[Renew]:
        return renewals(self._dsn, self.db.sql["renew_leases"])

    def hint(self, session: SessionId) -> None:
        if self._hints is not None:
            self._hints.send(session)

    def on_hint(self, callback: Callable[[SessionId], None]) -> None:
        if self._hints is not None:
            self._hints.listen(callback)

    async def why_not_writable(self) -> str | None:
        return await self.db.writability.why_not()

    @asynccontextmanager
    async def inspect(self) -> AsyncIterator[PostgresInspection]:
        async with self.db.snapshot() as snapshot:
            yield PostgresInspection(snapshot)

    async def close(self) -> None:
        if self._hints is not None:
            await self._hints.close()
        await self.db.close()


class PostgresInspection:
    def __init__(self, snapshot: ReadSnapshot) -> None:
        self._snapshot = snapshot

    async def structure(self) -> Sequence[str]:
        """Pages are verified by the server as they are read, where it was set up with checksums."""
        failures = await self._snapshot.checksum_failures()
        return [f"the server reports {failures} failed page checksums"] if failures else []

    async def rows(self, table: StoredTable) -> AsyncGenerator[StoredRow | StoredTurn, None]:
        check = checks_of(table)
        async for row in self._snapshot.rows(f"check_{table.value}"):
            yield check(row)

    async def statistics(self) -> DatabaseStatistics:
        (sessions,) = await self._all("stats_sessions")
        rows, sizes = await self._all("stats_rows"), await self._all("stats_bytes")
        return to_statistics(rows, sizes, await self._all("stats_attempts"), sessions)

    async def _all(self, name: str) -> list[Row]:
        return [row async for row in self._snapshot.rows(name)]


async def open_postgres(
    dsn: str,
    *,
    pool_size: int = POOL_SIZE,
    steps: tuple[Migration, ...] | None = None,
    read_only: bool = False,
    migrate: bool = True,
) -> PostgresStore:
    db = await open_database(dsn, pool_size=pool_size, steps=steps, read_only=read_only, migrate=migrate)
    return PostgresStore(db, dsn, None if read_only else Hints(dsn))
