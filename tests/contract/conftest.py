"""One suite for every store. `-k sqlite` and `-k postgres` choose one."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Protocol

import apsw
import asyncpg
import pytest

from lastgood.ports import Store
from lastgood.store.postgres import open_postgres
from lastgood.store.sqlite import open_sqlite
from tests.postgres import PostgresServer

Dump = dict[str, list[tuple[Any, ...]]]


class Backend(Protocol):
    """A store and, past it, the database: to see what was really written, and to damage it."""

    name: str
    store: Store

    async def rows(self, sql: str) -> list[tuple[Any, ...]]: ...

    async def execute(self, sql: str) -> None: ...

    async def tables(self) -> list[str]: ...

    async def plan(self, sql: str) -> str:
        """How the database would go about it."""
        ...


USAGE_SUMS = (
    "SELECT tenant, sum(attempts), sum(calls), sum(input_tokens) FROM"
    " (SELECT tenant, attempts, calls, input_tokens FROM usage"
    " UNION ALL SELECT tenant, attempts, calls, input_tokens FROM uses) AS found GROUP BY tenant"
)


async def dump(backend: Backend) -> Dump:
    """Every row of every table; of usage its sums, because a sweep moves its rows whenever it likes."""
    found = {
        table: await backend.rows(USAGE_SUMS if table == "usage" else f"SELECT * FROM {table}")
        for table in await backend.tables()
        if table != "uses"
    }
    return {table: sorted(rows, key=repr) for table, rows in found.items()}


class SqliteBackend:
    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store: Store = open_sqlite(path)
        self._outside = apsw.Connection(str(path))
        self._outside.set_busy_timeout(5000)

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return list(self._outside.execute(sql))

    async def execute(self, sql: str) -> None:
        self._outside.execute(sql)

    async def tables(self) -> list[str]:
        found = await self.rows(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY 1"
        )
        return [name for (name,) in found]

    async def plan(self, sql: str) -> str:
        return "\n".join(row[3] for row in await self.rows(f"EXPLAIN QUERY PLAN {sql}"))

    async def close(self) -> None:
        self._outside.close()
        await self.store.close()


class PostgresBackend:
    name = "postgres"

    def __init__(self, dsn: str, store: Store) -> None:
        self.dsn = dsn
        self.store = store
        self._outside: Any = None

    async def _connection(self) -> Any:
        """Only for a test that looks past the store: a connection is a process of the server."""
        if self._outside is None:
            self._outside = await asyncpg.connect(self.dsn)
        return self._outside

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await (await self._connection()).fetch(sql)]

    async def execute(self, sql: str) -> None:
        await (await self._connection()).execute(sql)

    async def tables(self) -> list[str]:
        return await _tables(await self._connection())

    async def plan(self, sql: str) -> str:
        return "\n".join(line for (line,) in await self.rows(f"EXPLAIN {sql}"))

    async def close(self) -> None:
        await self.store.close()
        if self._outside is not None:
            await self._outside.close()


async def _tables(connection: Any) -> list[str]:
    found = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
    return [name for (name,) in found]


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """A migrated database, to be copied instead of migrating again."""
    name = "contract_template"
    postgres_server.create_database(name)

    async def migrate() -> None:
        await (await open_postgres(postgres_server.dsn(name))).close()

    asyncio.run(migrate())
    return name


_numbers = itertools.count()


@pytest.fixture(scope="module")
def postgres_database(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """A copy for each file of tests; between two tests it is emptied, which is fifty times faster."""
    name = f"contract_{next(_numbers)}"
    postgres_server.create_database(name, postgres_template)
    yield postgres_server.dsn(name)
    postgres_server.drop_database(name)


#: By connection string: a schema stays as it is between two tests of a file.
_emptying: dict[str, str] = {}


async def _emptied(dsn: str) -> PostgresBackend:
    store = await open_postgres(dsn)
    async with store.db._pool.acquire() as connection:
        if dsn not in _emptying:
            tables = [table for table in await _tables(connection) if table != "lastgood_schema"]
            _emptying[dsn] = ";".join(f"DELETE FROM {table}" for table in tables)
        await connection.execute(_emptying[dsn])
    return PostgresBackend(dsn, store)


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a database is: a file, or a connection string."""
    if request.param == "sqlite":
        return tmp_path / "lastgood.db"
    dsn: str = request.getfixturevalue("postgres_database")
    return dsn


@pytest.fixture
async def backend(where: Path | str) -> AsyncIterator[Backend]:
    opened = SqliteBackend(where) if isinstance(where, Path) else await _emptied(where)
    yield opened
    await opened.close()


@pytest.fixture
def store(backend: Backend) -> Store:
    return backend.store
