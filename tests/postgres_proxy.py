"""A PostgreSQL whose network fails: a relay in front of the server's socket, here on a thread of its own.

with PostgresProxy(server) as proxy:
    store = await open_postgres(proxy.dsn("mine"))
    proxy.cut()       # connections break, and new ones are refused
    proxy.stall()     # nothing gets through, and nothing breaks
    proxy.restore()
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import quote

from tests.postgres import PORT, PostgresServer


class Relay:
    """Carries connections to the server's socket, as long as it is let. Lives on one event loop."""

    def __init__(self, upstream: str) -> None:
        self.cuts = 0  # connections that were cut before an answer
        self.felt = 0  # refused connections and held requests: how often a client has met the outage
        self._upstream = upstream
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._lost: tuple[bytes, int] | None = None

    def cut(self) -> None:
        """Connections break, and new ones are refused, as when a server is gone."""
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def stall(self) -> None:
        """Nothing passes in either direction, and nobody is told, as when a network is gone."""
        self._flows.clear()

    def restore(self) -> None:
        self._is_cut = False
        self._flows.set()

    def lose_answer(self, marker: bytes, answers: int) -> None:
        """Cuts the next connection that sends this text, after so many answers to it."""
        self._lost = (marker, answers)

    async def carry(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if self._is_cut:
            self.felt += 1
            to_client.transport.abort()
            return
        with suppress(OSError):
            server, to_server = await asyncio.open_unix_connection(self._upstream)
            pair = {to_client, to_server}
            self._writers |= pair
            link = _Link()
            try:
                await asyncio.gather(
                    self._ask(client, to_server, link), self._answer(server, to_client, link)
                )
            finally:
                self._writers -= pair
                for writer in pair:
                    writer.transport.abort()
        to_client.transport.abort()  # also where the server itself is not there

    async def _ask(self, client: asyncio.StreamReader, server: asyncio.StreamWriter, link: _Link) -> None:
        while data := await client.read(65536):
            self.felt += not self._flows.is_set()
            await self._flows.wait()
            if self._lost is not None and self._lost[0] in data:
                link.answers_left, self._lost = self._lost[1], None
            server.write(data)
            await server.drain()
        raise ConnectionResetError

    async def _answer(self, server: asyncio.StreamReader, client: asyncio.StreamWriter, link: _Link) -> None:
        while data := await server.read(65536):
            await self._flows.wait()
            if link.answers_left == 0:
                self.cuts += 1
                raise ConnectionResetError
            if link.answers_left is not None:
                link.answers_left -= 1
            client.write(data)
            await client.drain()
        raise ConnectionResetError


class _Link:
    """One connection. `answers_left`: of the server, until it is cut; None: it is not going to be."""

    answers_left: int | None = None


class PostgresProxy:
    def __init__(self, server: PostgresServer) -> None:
        self._server = str(server.directory / f".s.PGSQL.{PORT}")
        self._folder = tempfile.TemporaryDirectory(prefix="lgproxy")
        self._loop: asyncio.AbstractEventLoop
        self._relay: Relay
        self._ends: asyncio.Event
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ends.set)
        self._thread.join()
        self._folder.cleanup()

    def dsn(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={quote(self._folder.name, safe='')}&prepared=off"

    @property
    def cuts(self) -> int:
        return self._relay.cuts

    @property
    def felt(self) -> int:
        return self._relay.felt

    # -- faults ----------------------------------------------------------------------

    def cut(self) -> None:
        self._do(self._relay.cut)

    def stall(self) -> None:
        self._do(self._relay.stall)

    def restore(self) -> None:
        self._do(self._relay.restore)

    def lose_answer(self, marker: bytes, *, is_executed: bool = True) -> None:
        """Cuts the next connection on which a statement with this text is sent: after the server has
        executed it and before the client sees the answer, or before the server executes it."""
        self._relay.lose_answer(marker, 1 if is_executed else 0)

    def _do(self, change: Callable[[], None]) -> None:
        done = threading.Event()

        def work() -> None:
            change()
            done.set()

        self._loop.call_soon_threadsafe(work)
        done.wait()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._relay, self._ends = Relay(self._server), asyncio.Event()
        path = Path(self._folder.name) / f".s.PGSQL.{PORT}"
        listening = await asyncio.start_unix_server(self._relay.carry, path)
        self._is_ready.set()
        await self._ends.wait()
        listening.close()
        self._relay.cut()
