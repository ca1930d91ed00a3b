"""Both stores, opened the way a real process opens them."""

from __future__ import annotations

import asyncio
import itertools
import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import asyncpg

from lastgood.ports import Store
from lastgood.store.postgres import open_postgres
from lastgood.store.sqlite import open_sqlite
from tests.postgres import PostgresServer


@dataclass(frozen=True, slots=True)
class Place:
    """Where a store is: a SQLite file or a PostgreSQL database."""

    kind: str
    where: str

    async def open(self) -> Store:
        if self.kind == "sqlite":
            return open_sqlite(Path(self.where))
        return await open_postgres(self.where, pool_size=3)

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Past the store, while nobody has it open: what is really there."""
        if self.kind == "sqlite":
            database = apsw.Connection(self.where, flags=apsw.SQLITE_OPEN_READONLY)
            with closing(database):
                return list(database.execute(sql))
        connection = await asyncpg.connect(self.where)
        try:
            return [tuple(row) for row in await connection.fetch(sql)]
        finally:
            await connection.close()


#: An address in memory would be used again, and databases stay.
_names = itertools.count(1)


class Places:
    """Stores to work in, one after the other: on PostgreSQL if there is a server, else on SQLite.

    A database of its own costs time and space on PostgreSQL. Stories that run one after the other share one,
    which is emptied in between: what a story leaves behind, the sweeps of all later ones would look at.
    """

    def __init__(self, folder: Path, server: PostgresServer | None, *, shared: bool = False) -> None:
        self._shared = shared
        self._folder = folder
        self._server = server
        self._name = f"p{os.getpid()}n{next(_names)}"
        self._numbers = itertools.count(1)
        if server is not None:
            server.create_database(self._name)
            asyncio.run(_migrate(Place("postgres", server.dsn(self._name))))

    @property
    def kind(self) -> str:
        return "sqlite" if self._server is None else "postgres"

    def new(self) -> Place:
        number = next(self._numbers)
        if self._server is None:
            return Place("sqlite", str(self._folder / f"{number}.db"))
        if self._shared:
            asyncio.run(_empty(self._server.dsn(self._name)))
            return Place("postgres", self._server.dsn(self._name))
        name = f"{self._name}x{number}"
        self._server.create_database(name, template=self._name)
        return Place("postgres", self._server.dsn(name))

    def client_log(self) -> Path:
        return self._folder / f"{next(self._numbers)}.client_log"


async def _migrate(place: Place) -> None:
    await (await place.open()).close()


async def _empty(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        found = await connection.fetch(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
        )
        tables = [name for (name,) in found if name != "lastgood_schema"]
        await connection.execute(";".join(f"DELETE FROM {table}" for table in tables))
    finally:
        await connection.close()
