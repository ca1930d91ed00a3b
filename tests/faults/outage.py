"""A PostgreSQL that can be taken away for a while: a proxy in front of its socket, as a process of its own.

Of its own, because the harness forks: threads of a parent would not be in its children.
`cut`: every connection is closed and new ones are refused, as when a server is gone.
`hold`: nothing passes in either direction, and nobody is told, as when a network is gone.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import parse_qs, quote, urlsplit

KINDS = ("cut", "hold")
SHORTEST_SECONDS, LONGEST_SECONDS = 0.2, 5.0


@dataclass(frozen=True, slots=True)
class Outages:
    """`dsn(where)` is the same database, through the proxy."""

    folder: Path
    commands: IO[bytes]
    answers: IO[bytes]

    def dsn(self, where: str) -> str:
        parts = urlsplit(where)
        (port,) = parse_qs(parts.query)["port"]
        return f"postgresql://postgres@{parts.path}?host={quote(str(self.folder))}&port={port}"

    def begin(self, kind: str, seconds: float) -> None:
        self.commands.write(f"{kind} {seconds}\n".encode())
        self.commands.flush()

    def wait(self) -> None:
        """Until the outage that was begun is over."""
        if self.answers.readline() != b"over\n":
            raise RuntimeError("the proxy is gone")


def outage_seconds(dice: random.Random) -> float:
    """Mostly short: a long one takes the harness's time, and is past every lease anyway."""
    spread = LONGEST_SECONDS / SHORTEST_SECONDS
    return float(SHORTEST_SECONDS * spread ** (dice.random() ** 2))


@contextmanager
def outages_of(where: str) -> Iterator[Outages]:
    """In front of the server that this address leads to."""
    query = parse_qs(urlsplit(where).query)
    name = f".s.PGSQL.{query['port'][0]}"
    with tempfile.TemporaryDirectory(prefix="outage") as folder:
        listen, upstream = Path(folder) / name, Path(query["host"][0]) / name
        command = [sys.executable, "-m", "tests.faults.outage", str(listen), str(upstream)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            outages = Outages(Path(folder), process.stdin, process.stdout)
            try:
                outages.wait()  # it listens
                yield outages
            finally:
                process.kill()


# -- the proxy -----------------------------------------------------------------------


class _Proxy:
    def __init__(self, listen: str, upstream: str) -> None:
        self._listen = listen
        self._upstream = upstream
        self._open: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self._is_cut = False

    async def serve(self) -> None:
        self._flows.set()
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        async with await asyncio.start_unix_server(self._accept, self._listen):
            _say("over")
            while line := await reader.readline():
                kind, seconds = line.decode().split()
                await self._outage(kind, float(seconds))
                _say("over")

    async def _outage(self, kind: str, seconds: float) -> None:
        if kind == "cut":
            self._is_cut = True
            for writer in list(self._open):
                writer.transport.abort()
        else:
            self._flows.clear()
        await asyncio.sleep(seconds)
        self._is_cut = False
        self._flows.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            from_server, to_server = await asyncio.open_unix_connection(self._upstream)
        except OSError:  # the server itself restarts
            writer.transport.abort()
            return
        both = {writer, to_server}
        self._open |= both
        try:
            await asyncio.gather(self._pump(reader, to_server), self._pump(from_server, writer))
        finally:
            self._open -= both
            for one in both:
                one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_Proxy(*sys.argv[1:3]).serve())
