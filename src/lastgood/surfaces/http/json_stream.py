"""JSON documents that may be too large to build in memory, written piece by piece.

A small one is an ordinary reply. A large one is a stream: its client holds it back by not reading,
stops it by leaving, and sees an error in the middle as a broken body.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from lastgood.surfaces.http.asgi import JSON, Reply, Response, Stream

#: A document up to this size is sent with its length. What fails in it is answered with a status.
SMALL_BYTES = 256 * 1024

#: A large one is sent in pieces of about this size.
PIECE_BYTES = 64 * 1024

#: Messages encoded at a time.
_BATCH = 200


async def json_document(
    pieces: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None
) -> Response:
    first = bytearray()
    async for piece in pieces:
        first += piece
        if len(first) > SMALL_BYTES:
            return Stream(_joined(bytes(first), pieces), headers or {}, type=JSON, is_document=True)
    return Reply(200, bytes(first), headers or {})


async def _joined(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yields a few large pieces; other tasks of the event loop run between two of them."""
    async with aclosing(rest):
        yield first
        held = bytearray()
        async for piece in rest:
            held += piece
            if len(held) >= PIECE_BYTES:
                yield bytes(held)
                held.clear()
                await asyncio.sleep(0)
        if held:
            yield bytes(held)
