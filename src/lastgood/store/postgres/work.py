"""Transactions of work on runtimes, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from lastgood.store.postgres.database import PostgresDatabase
from lastgood.store.rows import Row
from lastgood.store.work_access import Work, WorkTransactions

T = TypeVar("T")


class PostgresWork(WorkTransactions):
    db: PostgresDatabase

    async def _transact(self, work: Work[T], *, durable: bool = True) -> T:
        async with self.db.transaction(durable=durable) as transaction:
            return await work(transaction)

    async def _look(self, work: Work[T]) -> T:
        async with self.db.moment() as transaction:
            return await work(transaction)

    async def _rows_aside(self, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        return await self.db.rows(name, parameters)

    async def _rows(self, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        return await self.db.rows(name, parameters)
