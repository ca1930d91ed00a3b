"""Reads a multica database, and never writes to it.

multica adds columns with almost every release. Columns that every release with chats has are required;
newer ones are read from the row as JSON, where a column that does not exist is simply absent.
All rows are of one moment, in one read-only transaction, and come in pages.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from lastgood.errors import InvalidRequest, StoreError, StoreUnavailable
from lastgood.model.multica import (
    MulticaAgent,
    MulticaChat,
    MulticaIssue,
    MulticaMessage,
    MulticaRuntime,
    MulticaTask,
)
from lastgood.store.statements import positional, standalone

_CONNECT_SECONDS = 10.0
_STATEMENT_SECONDS = 300.0
_PAGE = 200

#: Without these it is no multica database, or one from before it had chats.
_REQUIRED: Mapping[str, frozenset[str]] = {
    "chat_session": frozenset({"id", "agent_id", "title", "session_id", "work_dir", "created_at"}),
    "chat_message": frozenset({"id", "chat_session_id", "role", "content", "created_at"}),
    "agent_task_queue": frozenset(
        {"id", "agent_id", "issue_id", "chat_session_id", "runtime_id", "status", "session_id", "work_dir"}
        | {"created_at", "dispatched_at", "started_at", "completed_at"}
    ),
    "agent_runtime": frozenset({"id", "daemon_id", "provider", "name"}),
}


@asynccontextmanager
async def open_multica(url: str) -> AsyncIterator[MulticaDatabase]:
    if not url.startswith(("postgresql://", "postgres://")):
        raise InvalidRequest("the URL of a multica database starts with postgresql://")
    try:
        connection = await asyncpg.connect(url, timeout=_CONNECT_SECONDS, command_timeout=_STATEMENT_SECONDS)
    except (OSError, TimeoutError) as error:
        why = str(error) or "no response"
        raise StoreUnavailable(f"cannot reach the multica database: {why}; check host and port") from None
    except (asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        raise StoreError(f"cannot open the multica database: {error}") from None
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            database = MulticaDatabase(connection)
            await database.check()
            yield database
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise StoreError(
            f"reading the multica database failed: {error}; what was imported so far stays, run it again"
        ) from None
    finally:
        await connection.close(timeout=_CONNECT_SECONDS)


class MulticaDatabase:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._sql = {name: positional(text) for name, text in standalone("multica.sql").items()}
        self._tables: Mapping[str, frozenset[str]] = {}

    async def check(self) -> None:
        """Raises InvalidRequest and names every table and column that is missing."""
        found: dict[str, set[str]] = {}
        async for table, column in self._rows("columns"):
            found.setdefault(table, set()).add(column)
        self._tables = {table: frozenset(columns) for table, columns in found.items()}
        tables = [name for name in _REQUIRED if name not in found]
        if len(tables) == len(_REQUIRED):
            raise InvalidRequest(
                "this is not a multica database: it has none of the tables "
                f"{', '.join(_REQUIRED)}; check the database name in the URL"
            )
        missing = [f"the table {name}" for name in tables]
        for table in found.keys() & _REQUIRED.keys():
            missing += [f"the column {table}.{name}" for name in sorted(_REQUIRED[table] - found[table])]
        if missing:
            raise InvalidRequest(
                f"this multica database lacks {', '.join(sorted(missing))}; "
                "upgrade multica to a release with chats, then import again"
            )

    async def agents(self) -> Sequence[MulticaAgent]:
        name = "agents" if "agent" in self._tables else "agents_without_table"
        return [MulticaAgent(*row) async for row in self._rows(name)]

    async def runtimes(self) -> Mapping[str, MulticaRuntime]:
        return {row[0]: MulticaRuntime(*row) async for row in self._rows("runtimes")}

    async def chats(self, agent: str) -> AsyncGenerator[MulticaChat, None]:
        async for row in self._rows("chats", agent=agent):
            yield MulticaChat(*row)

    async def issues(self, agent: str) -> AsyncGenerator[MulticaIssue, None]:
        name = "issues" if "issue" in self._tables else "issues_without_table"
        async for row in self._rows(name, agent=agent):
            yield MulticaIssue(*row)

    async def messages(self, chat: str) -> AsyncGenerator[MulticaMessage, None]:
        async for row in self._rows("messages", chat=chat):
            yield MulticaMessage(*row)

    async def tasks(
        self, agent: str, *, chat: str | None = None, issue: str | None = None
    ) -> Sequence[MulticaTask]:
        rows = self._rows("tasks", agent=agent, chat=chat, issue=issue)
        return [MulticaTask(*row) async for row in rows]

    async def _rows(self, name: str, **parameters: Any) -> AsyncGenerator[Any, None]:
        statement = self._sql[name]
        values = statement.values(parameters)
        async for row in self._connection.cursor(statement.text, *values, prefetch=_PAGE):
            yield row
