"""The whole server in this process, on a database of its own: everything but the sockets.

Addresses are sent as they are written, byte for byte, which no HTTP client would do.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import apsw

from lastgood.agents.sources import parse
from lastgood.flows.tokens import Tokens
from lastgood.model.ids import TenantId
from lastgood.server import open_server
from lastgood.server.server import Server
from lastgood.settings import Settings
from lastgood.store.database_url import open_store
from lastgood.surfaces.http.app import Route
from lastgood.wiring import SystemClock
from tests.contract.conftest import USAGE_SUMS
from tests.surfaces.asgi import SECONDS, Client, Given

AGENT = "builtin/scripted"

#: A lease is kept alive while a test looks; that is no change of what it holds.
_RENEWED = frozenset({"lease_until"})

Rows = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class InProcessServer:
    server: Server
    path: Path
    tokens: Mapping[str, str]

    @property
    def routes(self) -> list[Route]:
        """Of the APIs."""
        return [route for route in self.all_routes if not route.is_page]

    @property
    def all_routes(self) -> list[Route]:
        return [route for routes in self.server.app._table.values() for route in routes]

    # -- asking ----------------------------------------------------------------------

    async def ask(
        self,
        method: str,
        path: str,
        plain: Any = None,
        token: str | None = None,
        *,
        raw: bytes | None = None,
        leaves: bool = False,
        **headers: str,
    ) -> Given:
        """`plain` as JSON, or `raw` as it is. `leaves`: whoever asks reads the beginning of the answer."""
        body = json.dumps(plain).encode() if plain is not None else raw
        sent = {"authorization": f"Bearer {self.tokens.get(token, token)}"} if token else {}
        if body is not None:
            sent |= {"content-type": "application/json", "transfer-encoding": "chunked"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        client = Client(self.server.app, method, path, sent, [b"" if body is None else body])
        if leaves:
            client.leave()
        try:
            return await client.end()
        finally:
            client.leave()

    async def good(self, method: str, path: str, plain: Any = None, token: str | None = None) -> Any:
        given = await self.ask(method, path, plain, token)
        assert 200 <= given.status < 300, (method, path, given.body)
        return given.json

    async def session(self, token: str | None = None, **fields: Any) -> str:
        return str((await self.good("POST", "/api/sessions", {"agent": AGENT, **fields}, token))["id"])

    async def turn(self, session: str, text: str = "hello", token: str | None = None) -> Any:
        body = {"messages": [{"content": text}], "wait": True}
        return await self.good("POST", f"/api/sessions/{session}/turns", body, token)

    async def failed(self, session: str, token: str | None = None) -> str:
        """An attempt of that session that failed."""
        body = {"messages": [{"content": "!fail before"}], "wait": True}
        given = await self.ask("POST", f"/api/sessions/{session}/turns", body, token)
        assert given.status == 500, given.body
        listed = await self.good("GET", f"/api/sessions/{session}/attempts", token=token)
        return str(listed[-1]["id"])

    async def begun(self, session: str, text: str = "!slow 60", token: str | None = None) -> str:
        """An attempt that runs."""
        body = {"messages": [{"content": text}]}
        return str((await self.good("POST", f"/api/sessions/{session}/turns", body, token))["id"])

    async def parked(self, session: str, token: str | None = None) -> int:
        """The number of an entry of its queue that nobody can run."""
        body = {"messages": [{"content": "later"}], "agent": "nobody"}
        entry = await self.good("POST", f"/api/sessions/{session}/followup", body, token)
        async with asyncio.timeout(SECONDS):
            while True:
                queue = await self.good("GET", f"/api/sessions/{session}/queue", token=token)
                if queue["items"] and all("parked" in item for item in queue["items"]):
                    return int(entry["id"])
                await asyncio.sleep(0.01)

    async def settled(self) -> None:
        """Until every title is made, so that nothing is written any more but leases."""
        async with asyncio.timeout(SECONDS):
            while len(self.server.lastgood.live._tasks) > self.server.lastgood.live.count:
                await asyncio.sleep(0.01)

    # -- judging ---------------------------------------------------------------------

    def dump(self) -> Rows:
        """Every row of every table, past the server."""
        database = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            database.set_busy_timeout(5000)
            names = [
                name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type='table'")
            ]
            return {name: _rows(database, name) for name in names if not name.startswith(("sqlite_", "uses"))}
        finally:
            database.close()


def _rows(database: apsw.Connection, table: str) -> list[dict[str, Any]]:
    # A sweep moves rows of usage whenever it likes, and changes no sum.
    cursor = database.execute(USAGE_SUMS if table == "usage" else f"SELECT * FROM {table}")
    found = []
    for row in cursor:
        names = [column[0] for column in cursor.get_description()]
        found.append({k: v for k, v in zip(names, row, strict=True) if k not in _RENEWED})
    return found


def of_tenant(rows: Rows, tenant: str) -> Rows:
    """What belongs to it: by its name, or by its sessions and attempts."""
    sessions = {row["id"] for row in rows["sessions"] if row["tenant"] == tenant}
    attempts = {row["id"] for row in rows["attempts"] if row["tenant"] == tenant}

    def is_theirs(row: dict[str, Any]) -> bool:
        if "tenant" in row:
            return bool(row["tenant"] == tenant)
        return row.get("session_id") in sessions or row.get("attempt_id") in attempts

    return {table: [row for row in found if is_theirs(row)] for table, found in rows.items()}


#: Tenant and scopes; then, if they matter, the user and the worker.
NewTokens = Mapping[
    str,
    tuple[str, tuple[str, ...]]
    | tuple[str, tuple[str, ...], str]
    | tuple[str, tuple[str, ...], str, str | None],
]


async def make_tokens(database: str, tokens: NewTokens) -> Mapping[str, str]:
    """Before the server is there: with a token in its database, it asks for one."""
    store = await open_store(database)
    try:
        known = Tokens(store, SystemClock())
        made = {}
        for name, (of, scopes, *whose) in tokens.items():
            user, worker = whose[0] if whose else "", whose[1] if len(whose) > 1 else None
            made[name] = await known.create(name, TenantId(of), scopes, user=user or "", worker=worker)
    finally:
        await store.close()
    return {name: plain for name, (_, plain) in made.items()}


@asynccontextmanager
async def open_inside(
    folder: Path,
    *agents: str,
    tokens: NewTokens | None = None,
    **settings: Any,
) -> AsyncIterator[InProcessServer]:
    """`tokens`: by the name that a test calls it, what it is. None: no token is asked for."""
    path = folder / "lastgood.db"
    chosen = replace(Settings(data_dir=folder, database=f"sqlite:///{path}", shutdown_grace=0.0), **settings)
    made = await make_tokens(chosen.database, tokens or {})
    sources = [parse(agent, {}) for agent in agents or (AGENT,)]
    async with open_server(chosen, sources, "127.0.0.1") as server:
        yield InProcessServer(server, path, made)
        server.draining = True
