"""Hints between nodes: that a session has new events. The event table is the truth.

One dedicated connection sends and receives. Hints to send are gathered for a few
milliseconds and sent outside of any transaction, so that no commit waits for it.
A hint may be lost: the connection breaks, or a pooler does not let anybody
listen. Then watchers on other nodes find the events when they next look by
themselves, and the connection is made again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from itertools import islice

import asyncpg

from lastgood.model.ids import SessionId
from lastgood.store.postgres.database import ACQUIRE_SECONDS, FAILURES, split_dsn

CHANNEL = "lastgood_events"
GATHER_SECONDS = 0.01
RECONNECT_SECONDS = 1.0
#: A payload may have 8,000 bytes; an id has forty.
MOST_IN_PAYLOAD = 100


class Hints:
    def __init__(self, dsn: str) -> None:
        self._address, _ = split_dsn(dsn)
        self._sender = secrets.token_hex(4)  # so that a process ignores its own hints
        self._sessions: set[SessionId] = set()
        self._wanted = asyncio.Event()
        self._callback: Callable[[SessionId], None] | None = None
        self._task: asyncio.Task[None] | None = None

    def send(self, session: SessionId) -> None:
        if self._task is not None:
            self._sessions.add(session)
            self._wanted.set()

    def listen(self, callback: Callable[[SessionId], None]) -> None:
        self._callback = callback
        if self._task is None:
            self._task = asyncio.create_task(self._serve())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _serve(self) -> None:
        while True:
            with suppress(*FAILURES):
                await self._serve_connection()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _serve_connection(self) -> None:
        connection = await asyncpg.connect(self._address, timeout=ACQUIRE_SECONDS, statement_cache_size=0)
        try:
            # A connection that breaks while it is idle must be noticed, too.
            connection.add_termination_listener(lambda _: self._wanted.set())
            await connection.add_listener(CHANNEL, self._receive)
            while not connection.is_closed():
                await self._wanted.wait()
                self._wanted.clear()
                await self._tell(connection)
                await asyncio.sleep(GATHER_SECONDS)
        finally:
            connection.terminate()

    async def _tell(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        sessions = iter(self._sessions)
        self._sessions = set()
        while some := list(islice(sessions, MOST_IN_PAYLOAD)):
            await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, " ".join((self._sender, *some)))

    def _receive(self, _connection: object, _process: int, _channel: str, payload: object) -> None:
        sender, *sessions = str(payload).split()
        if sender != self._sender and self._callback is not None:
            for session in sessions:
                self._callback(SessionId(session))
