"""Two servers on one PostgreSQL, as processes of their own, and what is asked of them together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import asyncpg

from tests.e2e.api import TOOLS, Api
from tests.e2e.command import AGENT, until
from tests.e2e.server import LiveServer
from tests.postgres import PostgresServer

#: The agent whose tools leave a trace and can be held.
TOOLS_AGENT = "tools"


class Nodes:
    """`a` and `b` are the same service; `other(node)` is the one that is not meant."""

    def __init__(
        self, servers: tuple[LiveServer, LiveServer], postgres: PostgresServer, database: str
    ) -> None:
        self.servers = servers
        self.a, self.b = (Api(server) for server in servers)
        self.postgres = postgres
        self.dsn = postgres.dsn(database)

    def other(self, node: Api) -> Api:
        return self.b if node is self.a else self.a

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Past the servers: they may be dead, or might hide something."""

        async def ask() -> list[tuple[Any, ...]]:
            connection = await asyncpg.connect(self.dsn)
            try:
                return [tuple(row) for row in await connection.fetch(statement, *values)]
            finally:
                await connection.close()

        return asyncio.run(ask())

    def prompts(self) -> list[dict[str, Any]]:
        """What the scripted model has seen, on either node."""
        return [record for server in self.servers for record in server.prompts()]

    def until_ready(self) -> None:
        """Both, also after the database has come back."""
        until(lambda: all(server.status("/ready") == 200 for server in self.servers))


@contextmanager
def two_nodes(folder: Path, postgres: PostgresServer, database: str, *options: str) -> Iterator[Nodes]:
    """On a new database, which both of them set up at the same time."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{TOOLS_AGENT}.yaml"
    file.write_text(TOOLS.format(more=""))
    postgres.create_database(database)
    with ExitStack() as stack:
        servers = tuple(
            LiveServer(
                folder / name, AGENT, str(file), options=("--database", postgres.dsn(database), *options)
            )
            for name in ("a", "b")
        )
        for server in servers:
            stack.push(server)
        with ThreadPoolExecutor(len(servers)) as pool:
            list(pool.map(LiveServer.start, servers))
        yield Nodes((servers[0], servers[1]), postgres, database)
