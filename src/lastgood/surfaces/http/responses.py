"""Sends responses: whole ones, and streams with their heartbeats until an end, an error or a disconnect.

Knows no route and no session; what a stream says is in its pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

from lastgood.errors import ShuttingDown, StoreError
from lastgood.surfaces.http.asgi import ClientGone, Reply, Request, Send, Stream, first_of, stop, until_gone

#: Clients that read no byte of a stream for this long are disconnected.
STUCK_SECONDS = 60.0
#: How often an open stream checks that its client may still read it.
TRUST_SECONDS = 5.0


async def send_reply(send: Send, reply: Reply, headers: Mapping[str, str], *, has_body: bool = True) -> None:
    """Without its body, for HEAD: everything else is as it would be."""
    all_headers = {"content-type": reply.type, "content-length": str(len(reply.body)), **headers}
    if reply.status == 204:
        all_headers = dict(headers)
    await send(_start(reply.status, {**all_headers, **reply.headers}))
    await send({"type": "http.response.body", "body": reply.body if has_body else b""})


async def send_stream(
    send: Send,
    request: Request,
    stream: Stream,
    headers: Mapping[str, str],
    pause_seconds: float,
    last_words: Callable[[Exception], bytes],
) -> bool:
    """Sends the stream to its end. Returns False if the client disconnected before.

    An error, or the shutdown of the server, is sent as a last frame: a stream that simply stopped would look
    complete. Before the stream has begun it is raised, and can still become a status.
    """
    more = {"content-type": stream.type, "cache-control": "no-store", "x-accel-buffering": "no", **headers}
    outgoing = _Outgoing(send, _start(stream.status, {**more, **stream.headers}), stream, pause_seconds)
    # A stream has many pieces and one end: watching for the end costs one task, not one for each piece.
    sending = asyncio.create_task(outgoing.send_all(stream.pieces))
    leaving = asyncio.create_task(until_gone(request.receive))
    trust = _Trust(stream.check)
    try:
        await first_of(sending, leaving, outgoing.stuck, request.ending, trust.refused)
        is_there = sending.done() or not (leaving.done() or outgoing.stuck.done())
        await stop(sending)
        await outgoing.stop()
        ended = trust.refused.result() if trust.refused.done() else ShuttingDown()
        broken = ended if sending.cancelled() else sending.exception()
        if not outgoing.has_begun and broken is not None:
            raise broken if is_there else ClientGone
        if is_there:
            last = _last(broken, last_words)
            if stream.is_document and broken is not None:
                request.abort()
            else:
                await send({"type": "http.response.body", "body": last})
        return is_there
    finally:
        await stop(sending)
        await outgoing.stop()
        await stop(leaving)
        await trust.stop()


def _last(broken: BaseException | None, last_words: Callable[[Exception], bytes]) -> bytes:
    return last_words(broken) if isinstance(broken, Exception) else b""


async def skip_stream(send: Send, stream: Stream, headers: Mapping[str, str]) -> None:
    """For HEAD: as the stream would begin."""
    await stream.pieces.aclose()
    await send_reply(send, Reply(stream.status, b"", stream.headers, stream.type), headers)


class _Outgoing:
    """A stream in progress: starts when it may, and sends heartbeats while idle. Frames are never
    interleaved."""

    def __init__(self, send: Send, start: dict[str, Any], stream: Stream, pause_seconds: float) -> None:
        self._send = send
        self._start = start
        self._opening = stream.opening
        self._sign_of_life = b"" if stream.is_document else b": ping\n\n"
        self._patience = stream.patience_seconds
        self._pause = pause_seconds
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer = self._loop.call_later(self._patience or self._pause, self._tick)
        self._sign: asyncio.Task[None] | None = None
        self.has_begun = False
        self.stuck: asyncio.Future[None] = self._loop.create_future()  # its client does not read any more

    async def send_all(self, pieces: AsyncGenerator[bytes, None]) -> None:
        async with aclosing(pieces):
            if not self._patience:
                await self._begin()
            async for piece in pieces:
                self._last = self._loop.time()
                if self.has_begun:
                    await self._send(_piece(piece))
                else:
                    await self._begin(piece)
            await self._begin()

    async def stop(self) -> None:
        self._timer.cancel()
        if self._sign is not None:
            await stop(self._sign)

    async def _begin(self, piece: bytes = b"") -> None:
        if not self.has_begun:
            self.has_begun = True
            await self._send(self._start)
            if self._opening or piece:
                await self._send(_piece(self._opening + piece))

    def _tick(self) -> None:
        """A timer, not a task: nearly every stream ends before it has anything to do."""
        quiet = self._loop.time() - self._last
        if self.has_begun and quiet < self._pause:
            self._timer = self._loop.call_later(self._pause - quiet, self._tick)
        else:
            self._sign = asyncio.create_task(self._give_sign())

    async def _give_sign(self) -> None:
        try:
            async with asyncio.timeout(STUCK_SECONDS):
                if self.has_begun:
                    await self._send(_piece(self._sign_of_life))
                else:
                    await self._begin()
        except TimeoutError:
            self.stuck.set_result(None)
            return
        self._last = self._loop.time()
        self._timer = self._loop.call_later(self._pause, self._tick)


class _Trust:
    """Whether the client of an open stream may still read it: tokens are revoked, and sharing ends. A stream
    that is idle ends, too. Not knowing is not a refusal: nothing can be read from a store that is away."""

    def __init__(self, check: Callable[[], Awaitable[object]] | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._check = check
        self._asking: asyncio.Task[None] | None = None
        self._timer = None if check is None else self._loop.call_later(TRUST_SECONDS, self._tick)
        self.refused: asyncio.Future[Exception] = self._loop.create_future()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._asking is not None:
            await stop(self._asking)

    def _tick(self) -> None:
        self._asking = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        assert self._check is not None
        try:
            await self._check()
        except StoreError:
            pass
        except Exception as refusal:
            self.refused.set_result(refusal)
            return
        self._timer = self._loop.call_later(TRUST_SECONDS, self._tick)


def _start(status: int, headers: Mapping[str, str]) -> dict[str, Any]:
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": encoded}


def _piece(body: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": True}
