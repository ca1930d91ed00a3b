"""The whole store: one file per noun, put together here."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

from lastgood.errors import DatabaseDamaged
from lastgood.model.ids import SessionId
from lastgood.model.stored_rows import DatabaseStatistics, StoredRow, StoredTable, StoredTurn
from lastgood.ports import Renew
from lastgood.store.activity import SqlActivity
from lastgood.store.audit import SqlAudit
from lastgood.store.claims import SqlClaims
from lastgood.store.imports import SqlImports
from lastgood.store.notes import SqlNotes
from lastgood.store.pointers import SqlPointers
from lastgood.store.questions import SqlQuestions
from lastgood.store.restores import SqlRestores
from lastgood.store.row_checks import checks_of
from lastgood.store.runtimes import SqlRuntimes
from lastgood.store.sqlite.attempts import SqliteAttempts
from lastgood.store.sqlite.database import SqliteDatabase, open_beside, open_database
from lastgood.store.sqlite.events import SqliteEvents
from lastgood.store.sqlite.queue import SqliteQueue
from lastgood.store.sqlite.sessions import SqliteSessions, SqliteTurns
from lastgood.store.sqlite.tokens import SqliteTokens
from lastgood.store.sqlite.work import SqliteWork
from lastgood.store.statistics import to_statistics
from lastgood.store.tasks import SqlTasks
from lastgood.store.tickets import SqlTickets
from lastgood.store.usage import SqlUsage
from lastgood.store.webhooks import SqlWebhooks


class SqliteStore(
    SqliteSessions,
    SqliteTurns,
    SqliteAttempts,
    SqliteQueue,
    SqliteEvents,
    SqliteTokens,
    SqliteWork,
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
    #: The process that opened the file is its only writer, so attempts it finds running have no holder.
    alone = True

    def __init__(self, db: SqliteDatabase) -> None:
        self.db = db

    @asynccontextmanager
    async def renewals(self) -> AsyncIterator[Renew]:
        yield self.renew_leases

    def hint(self, session: SessionId) -> None:
        """No other process uses this database."""

    def on_hint(self, callback: Callable[[SessionId], None]) -> None:
        """No other process uses this database."""

    async def why_not_writable(self) -> str | None:
        return await self.db.writability.why_not()

    @asynccontextmanager
    async def inspect(self) -> AsyncIterator[SqliteInspection]:
        with self.db.inspection() as database:
            yield SqliteInspection(database)

    async def close(self) -> None:
        self.db.close()


class SqliteInspection:
    def __init__(self, db: SqliteDatabase) -> None:
        self._db = db

    async def structure(self) -> Sequence[str]:
        return self._db.problems()

    async def rows(self, table: StoredTable) -> AsyncGenerator[StoredRow | StoredTurn, None]:
        check = checks_of(table)
        with closing(self._db.every_row(f"check_{table.value}")) as rows:
            for row in rows:
                if isinstance(row, DatabaseDamaged):
                    yield StoredRow("", "", f"a row of the table {table.value}", row.message)
                else:
                    yield check(row)

    async def statistics(self) -> DatabaseStatistics:
        read = partial(self._db.rows, parameters={})
        (sessions,) = read("stats_sessions")
        return to_statistics(read("stats_rows"), read("stats_bytes"), read("stats_attempts"), sessions)


def open_sqlite(
    path: Path,
    *,
    read_only: bool = False,
    inline: bool = False,
    clock: Callable[[], float] = time.time,
    migrate: bool = True,
    address: str = "",
) -> SqliteStore:
    return SqliteStore(
        open_database(path, read_only=read_only, inline=inline, clock=clock, migrate=migrate, address=address)
    )


class AdministrationBeside(SqliteTokens, SqliteWork, SqlWebhooks):
    """Opens tokens and webhooks only, while a server has the file open; it reads them from the file, too."""

    def __init__(self, path: Path) -> None:
        self.db = open_beside(path)

    async def close(self) -> None:
        self.db.close()
