"""Transactions of work on runtimes, on SQLite."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import apsw

from lastgood.model.events import Event
from lastgood.model.ids import SessionId
from lastgood.store.rows import Row
from lastgood.store.sqlite.database import SqliteDatabase
from lastgood.store.sqlite.events import insert_events
from lastgood.store.work_access import Work, WorkTransactions, run_to_end

T = TypeVar("T")


class SqliteStatements:
    def __init__(self, connection: apsw.Connection, sql: Mapping[str, str]) -> None:
        self._connection = connection
        self._sql = sql

    async def rows(self, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        return list(self._connection.execute(self._sql[name], parameters))

    async def insert_events(self, session: SessionId, last: int, events: Sequence[Event]) -> None:
        insert_events(self._connection, self._sql, session, last, events)


class _Reader:
    def __init__(self, db: SqliteDatabase) -> None:
        self._read: Callable[[str, Mapping[str, Any]], list[tuple[Any, ...]]] = db.rows

    async def rows(self, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        return list(self._read(name, parameters))

    async def insert_events(self, session: SessionId, last: int, events: Sequence[Event]) -> None:
        raise TypeError("this only reads")


class SqliteWork(WorkTransactions):
    db: SqliteDatabase

    async def _rows_aside(self, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        return list(await asyncio.to_thread(self.db.rows_aside, name, parameters))

    async def _transact(self, work: Work[T], *, durable: bool = True) -> T:
        def run(connection: apsw.Connection) -> T:
            return run_to_end(work(SqliteStatements(connection, self.db.sql)))

        return await self.db.write(run, durable=durable)

    async def _look(self, work: Work[T]) -> T:
        with self.db.snapshot():
            return run_to_end(work(_Reader(self.db)))

    async def _rows(self, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        return list(self.db.rows(name, parameters))
