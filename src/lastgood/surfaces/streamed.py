"""A stream that begins when there is something to stream.

What fails before the first word is told by a status, as it is without a stream: clients
understand that best, and SDKs send the request again by themselves if they may. But nobody is
left without a byte for long: after a moment the stream begins, and what fails then is told in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

from lastgood.errors import LastgoodError
from lastgood.surfaces import refusals
from lastgood.surfaces.completions import Chunks
from lastgood.surfaces.http import Answer, Reply, Request, Stream

#: How long the first word may take before the stream begins without it.
PATIENCE_SECONDS = 5.0

Frames = AsyncGenerator[bytes, None]


class Failed(Exception):
    """The frames end here, and not well."""

    def __init__(self, error: LastgoodError, *, tool_ran: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.tool_ran = tool_ran

    def reply(self, headers: Mapping[str, str]) -> Reply:
        told = refusals.openai(self.error, tool_ran=self.tool_ran)
        return Reply(told.status, told.body, {**told.headers, **headers})


async def streamed(request: Request, frames: Frames, chunks: Chunks, headers: Mapping[str, str]) -> Answer:
    """`frames` raise Failed where they cannot go on. They are closed in any case."""
    first = asyncio.ensure_future(anext(frames, None))
    begins = False
    try:
        await request.unless_gone(asyncio.wait({first}, timeout=PATIENCE_SECONDS))
        if first.done():
            first.result()
        begins = True
    except Failed as failed:
        return failed.reply(headers)
    finally:
        if not begins:
            await _close(first, frames)
    return Stream(_from(first, frames, chunks), headers)


async def _from(first: asyncio.Future[bytes | None], frames: Frames, chunks: Chunks) -> Frames:
    try:
        yield chunks.start()
        frame = await first
        while frame is not None:
            yield frame
            frame = await anext(frames, None)
    except Failed as failed:
        yield chunks.failure(failed.error)
    finally:
        await _close(first, frames)


async def _close(first: asyncio.Future[bytes | None], frames: Frames) -> None:
    """A generator that is at work cannot be closed: so first its work is stopped."""
    if not first.done():
        first.cancel()
        await asyncio.wait({first})
    if not first.cancelled():
        first.exception()  # looked at: whoever asked has gone
    await frames.aclose()
