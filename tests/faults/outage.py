"""A PostgreSQL that can be taken away for a while: a relay in front of its socket, as a process of its own.

Of its own, because the harness forks: threads of a parent would not be in its children.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import parse_qs, quote, urlsplit

from tests.postgres_proxy import Relay

KINDS = ("cut", "stall")
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


async def _serve(listen: str, upstream: str) -> None:
    relay = Relay(upstream)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    async with await asyncio.start_unix_server(relay.carry, listen):
        _say("over")
        while line := await reader.readline():
            kind, seconds = line.decode().split()
            (relay.cut if kind == "cut" else relay.stall)()
            await asyncio.sleep(float(seconds))  # real time: the length of the outage
            relay.restore()
            _say("over")


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:3]))
