"""Two servers on one PostgreSQL, as processes of their own, and what is asked of them together."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import asyncpg

from tests.e2e.api import TOOLS, Api, Given
from tests.e2e.command import AGENT, SECONDS, until
from tests.e2e.server import LiveServer
from tests.postgres import PostgresServer

#: The agent whose tools leave a trace and can be held.
TOOLS_AGENT = "tools"
SETTINGS = ("--safety", "autonomous")


class NodeApi(Api):
    """Of a server that may end at any moment: whatever is not answered is closed all the same."""

    def ask(self, method: str, path: str, plain: Any = None, **headers: str) -> Given:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=SECONDS)
        try:
            body = None if plain is None else json.dumps(plain)
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, {"Content-Type": "application/json"} | sent)
            answer = connection.getresponse()
            received = {name.lower(): value for name, value in answer.getheaders()}
            return Given(answer.status, received, answer.read())
        finally:
            connection.close()


class Nodes:
    """`a` and `b` are the same service; `other(node)` is the one that is not meant."""

    def __init__(
        self, servers: tuple[LiveServer, LiveServer], postgres: PostgresServer, database: str
    ) -> None:
        self.servers = servers
        self.a, self.b = (NodeApi(server) for server in servers)
        self.postgres = postgres
        self.dsn = postgres.dsn(database)

    def other(self, node: Api) -> NodeApi:
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
def two_nodes(
    folder: Path,
    postgres: PostgresServer,
    database: str,
    *options: str,
    through: Callable[[str], str] = str,
) -> Iterator[Nodes]:
    """On a new database, which both set up at the same time. `through` gives its address as they know it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{TOOLS_AGENT}.yaml"
    file.write_text(TOOLS.format(more=""))
    postgres.create_database(database)
    with ExitStack() as stack:
        servers = tuple(
            LiveServer(
                folder / name,
                AGENT,
                str(file),
                options=(*SETTINGS, "--database", through(postgres.dsn(database)), *options),
            )
            for name in ("a", "b")
        )
        for server in servers:
            stack.push(server)
        with ThreadPoolExecutor(len(servers)) as pool:
            list(pool.map(LiveServer.start, servers))
        yield Nodes((servers[0], servers[1]), postgres, database)
