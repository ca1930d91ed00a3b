"""Hints between nodes on one PostgreSQL: they come at once, or not at all, and nobody depends on them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

from lastgood.flows.dependencies import FlowLimits
from lastgood.flows.event_feed import follow
from lastgood.flows.submission import Submission
from lastgood.model.attempts import Ask
from lastgood.model.events import EventKind
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.model.messages import user
from lastgood.store.postgres import PostgresStore, open_postgres
from lastgood.store.postgres import hints as hints_module
from lastgood.wiring import Lastgood, running
from tests.faults.stores import Places
from tests.faults.world import World
from tests.postgres import PostgresServer

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 60.0


@pytest.fixture
def dsn(tmp_path: Path, postgres_server: PostgresServer) -> str:
    return Places(tmp_path, postgres_server, shared=True).new().where


@pytest.fixture
async def stores(dsn: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    pair = (await open_postgres(dsn, pool_size=3), await open_postgres(dsn, pool_size=3))
    yield pair
    for store in pair:
        await store.close()


async def listeners(dsn: str) -> list[int]:
    """The server's processes that somebody listens through: they run nothing but that and the hints."""
    connection = await asyncpg.connect(dsn)
    rows = await connection.fetch(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND (query LIKE '%LISTEN%' OR query LIKE '%pg_notify%')"
    )
    await connection.close()
    return [row["pid"] for row in rows]


async def until_listening(dsn: str, count: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(await listeners(dsn)) < count:
            await asyncio.sleep(0.01)


async def test_a_hint_reaches_the_other_node_and_not_its_sender(
    dsn: str, stores: tuple[PostgresStore, PostgresStore]
) -> None:
    here, there = stores
    own: list[SessionId] = []
    received: asyncio.Queue[SessionId] = asyncio.Queue()
    here.on_hint(own.append)
    there.on_hint(received.put_nowait)
    await until_listening(dsn, 2)
    sessions = {SessionId(f"ses_{n:032x}") for n in range(250)}
    for session in sessions:
        here.hint(session)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert {await received.get() for _ in sessions} == sessions
    assert own == []


async def test_a_broken_connection_is_made_again(
    dsn: str, stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints_module, "RECONNECT_SECONDS", 0.02)
    here, there = stores
    received: asyncio.Queue[SessionId] = asyncio.Queue()
    here.on_hint(lambda _: None)
    there.on_hint(received.put_nowait)
    await until_listening(dsn, 2)
    broken = await listeners(dsn)
    connection = await asyncpg.connect(dsn)
    for process in broken:
        await connection.execute("SELECT pg_terminate_backend($1)", process)
    await connection.close()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while set(await listeners(dsn)) & set(broken) or len(await listeners(dsn)) < 2:
            await asyncio.sleep(0.01)
        while received.empty():
            here.hint(SessionId("ses_again"))
            await asyncio.sleep(0.02)


async def test_a_hint_without_receivers_costs_nothing(stores: tuple[PostgresStore, PostgresStore]) -> None:
    stores[0].hint(SessionId("ses_unheard"))
    assert stores[0]._hints is not None
    assert stores[0]._hints._sessions == set()


def node(store: PostgresStore, name: str) -> Lastgood:
    limits = replace(FlowLimits(), poll_seconds=PATIENCE_SECONDS * 10, tick_seconds=0.002)
    return World(store).node(name, limits=limits)


async def test_a_watcher_on_another_node_need_not_wait_for_its_own_look(
    dsn: str, stores: tuple[PostgresStore, PostgresStore]
) -> None:
    """I24: any node serves any stream; the look comes long after this test would have ended."""
    async with running(node(stores[0], "here")) as here, running(node(stores[1], "there")) as there:
        await until_listening(dsn, 2)
        session = await here.sessions.create(DEFAULT_TENANT, "builtin/scripted", title="named")
        watching = asyncio.create_task(_first_commit(there, session.id))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not there.deps.signals.has_subscribers(session.id):
                await asyncio.sleep(0.005)
            started = time.monotonic()
            ask = Ask(DEFAULT_TENANT, session.id, (user("!slow 0.01\n!say a b c"),))
            await (await here.submitter.submit(Submission(ask))).outcome()
            await watching
        assert time.monotonic() - started < PATIENCE_SECONDS


async def _first_commit(there: Lastgood, session: SessionId) -> None:
    async for event in follow(there.deps, DEFAULT_TENANT, session):
        if event.kind is EventKind.TURN_COMMITTED:
            return
