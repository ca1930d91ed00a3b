"""A connection to a server that is cut, again and again, at places that a test has planned."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType


class CuttingProxy:
    """`plan`: for each connection in turn, what of the server's answers still gets through: so many bytes, or
    all before these words. None, and every connection after the plan: everything."""

    def __init__(
        self, port: int, plan: Sequence[int | bytes | None] = (), *, path: Path | None = None
    ) -> None:
        self._port = port
        self._plan = list(plan)
        self._path = path
        self._working: set[asyncio.Task[None]] = set()
        self.cuts = 0

    async def __aenter__(self) -> CuttingProxy:
        if self._path is not None:
            self._server = await asyncio.start_unix_server(self._accept, self._path)
        else:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await asyncio.sleep(0)  # whoever was let in at this moment begins, and is ended with the others
        for task in self._working:
            task.cancel()
        if self._working:
            await asyncio.wait(self._working)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        if self._path is not None:
            return f"unix://{self._path}"
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._working.add(task)
        with suppress(asyncio.CancelledError, OSError):
            await self._carry(reader, writer, self._plan.pop(0) if self._plan else None)
        writer.close()
        self._working.discard(task)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: int | bytes | None
    ) -> None:
        connecting = asyncio.ensure_future(asyncio.open_connection("127.0.0.1", self._port))
        try:
            from_server, to_server = await asyncio.shield(connecting)
        except asyncio.CancelledError:
            with suppress(OSError):
                (await connecting)[1].close()  # it is open by then, and nobody else would close it
            raise
        asking = asyncio.create_task(_pump(reader, to_server))
        try:
            received = b""
            while data := await from_server.read(65536):
                before, received = len(received), received + data
                place = received.find(cut) if isinstance(cut, bytes) else cut
                if place is not None and 0 <= place < len(received):
                    self.cuts += 1
                    writer.write(received[before : max(place, before)])
                    return
                writer.write(data)
                await writer.drain()
        finally:
            asking.cancel()
            await asyncio.wait({asking})
            to_server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
