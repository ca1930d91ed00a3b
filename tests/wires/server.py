"""A model server on a real loopback socket that sends exactly the bytes it is told to.

Written on bare streams: what a library would not let a server do is what a server
in trouble does.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, Self


class Framing(Enum):
    CHUNKED = "chunked"
    LENGTH = "length"
    CLOSE = "close"  # the end of the connection is the end of the body: a cut looks like an end


class End(Enum):
    CLEAN = "clean"
    CUT = "cut"  # the connection is closed where the body is not over
    RESET = "reset"
    HANG = "hang"  # nothing more comes, and nothing is closed


Piece = bytes | Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Reply:
    """What is sent back, piece by piece. A piece that is a function is waited for instead."""

    pieces: Sequence[Piece]
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "text/event-stream"})
    framing: Framing = Framing.CHUNKED
    end: End = End.CLEAN

    def cut_at(self, offset: int, framing: Framing) -> Reply:
        body = b"".join(piece for piece in self.pieces if isinstance(piece, bytes))
        return Reply([body[:offset]], self.status, self.headers, framing, End.CUT)


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: Any


#: A client that asks for these wants to know the size of a model's context, beside its turns.
ABOUT_MODELS = ("/models", "/api/ps", "/api/show", "/props")
NOT_FOUND = Reply([], 404, framing=Framing.LENGTH)


class Server:
    """Answers with what is in `replies`, in order; the last one again and again. What is asked about its
    models counts only if it `describes_models`."""

    def __init__(self, *replies: Reply, describes_models: bool = False) -> None:
        self._describes_models = describes_models
        self.replies = deque(replies)
        self.requests: list[Request] = []
        self.connections = 0
        self.sent = 0  # bytes of bodies that were taken
        self.left = asyncio.Event()  # a client closed its side, or broke it
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def asked(self) -> int:
        return len(self.requests)

    def say(self, *replies: Reply) -> None:
        self.replies = deque(replies)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while (request := await _read(reader)) is not None:
                if request.path.endswith(ABOUT_MODELS) and not self._describes_models:
                    await self._answer(NOT_FOUND, reader, writer)
                    break
                self.requests.append(request)
                reply = self.replies.popleft() if len(self.replies) > 1 else self.replies[0]
                if not await self._answer(reply, reader, writer):
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection can be used again."""
        gone = asyncio.create_task(self._watch(reader))
        try:
            writer.write(_head(reply))
            for piece in reply.pieces:
                if not isinstance(piece, bytes):
                    await piece()
                elif piece:
                    writer.write(_framed(piece, reply.framing))
                    await writer.drain()
                    self.sent += len(piece)
                    await asyncio.sleep(0)
            if reply.end is End.CLEAN and reply.framing is Framing.CHUNKED:
                writer.write(b"0\r\n\r\n")
            await writer.drain()
            if reply.end is End.HANG:
                await self.left.wait()
            elif reply.end is End.RESET:
                writer.transport.abort()
        except OSError:
            self.left.set()
            return False
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
        return reply.end is End.CLEAN and reply.framing is not Framing.CLOSE

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        """A client sends nothing while it is answered; when it goes, this is how one sees it."""
        try:
            # Not read(): what is read here is missing from the next request.
            while not reader.at_eof() and not reader.exception():
                await asyncio.sleep(0.005)  # real time: the interval of this look, which `_answer` ends
        finally:
            if reader.at_eof() or reader.exception():
                self.left.set()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length") or 0))
    method, path, _ = first.split(" ")
    return Request(method, path, headers, json.loads(body) if body else None)


def _head(reply: Reply) -> bytes:
    headers = dict(reply.headers)
    if reply.framing is Framing.CHUNKED:
        headers["Transfer-Encoding"] = "chunked"
    elif reply.framing is Framing.LENGTH:
        headers["Content-Length"] = str(sum(len(piece) for piece in reply.pieces if isinstance(piece, bytes)))
    else:
        headers["Connection"] = "close"
    lines = [f"HTTP/1.1 {reply.status} Whatever", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def _framed(piece: bytes, framing: Framing) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece) if framing is Framing.CHUNKED else piece


def as_json(body: Any, status: int = 200, headers: Iterable[tuple[str, str]] = ()) -> Reply:
    return Reply(
        [json.dumps(body).encode()],
        status,
        {"Content-Type": "application/json", **dict(headers)},
        Framing.LENGTH,
    )
