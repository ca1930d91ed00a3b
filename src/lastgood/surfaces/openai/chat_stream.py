"""A stream whose status is sent with its first chunk.

An error before the first chunk is an HTTP status, as without streaming: SDKs retry by it.
After PATIENCE_SECONDS the stream begins anyway, and a later error is a frame in it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from lastgood.errors import LastgoodError
from lastgood.surfaces.http.asgi import Broken, Reply, Request, Stream
from lastgood.surfaces.openai.completions import Chunks
from lastgood.surfaces.openai.error_envelope import error_reply

#: How long to wait for the first chunk before the response starts without it.
PATIENCE_SECONDS = 5.0

Frames = AsyncGenerator[bytes, None]


class StreamFailed(Exception):
    """Ends the frames with an error."""

    def __init__(self, error: LastgoodError, *, has_effects: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.has_effects = has_effects

    def reply(self, headers: Mapping[str, str], request: Request | None = None) -> Reply:
        """`request`: what the log says has failed."""
        if request is not None:
            request.failure = self.error.code
        reply = error_reply(self.error, has_effects=self.has_effects)
        return Reply(reply.status, reply.body, {**reply.headers, **headers})


def streamed(frames: Frames, chunks: Chunks, headers: Mapping[str, str]) -> Stream:
    """`frames` raise Failed where they cannot go on. They are closed in any case."""
    pieces = _pieces(frames, chunks, headers)
    return Stream(pieces, headers, opening=chunks.start(), patience_seconds=PATIENCE_SECONDS)


async def _pieces(frames: Frames, chunks: Chunks, headers: Mapping[str, str]) -> Frames:
    async with aclosing(frames):
        try:
            async for frame in frames:
                yield frame
        except StreamFailed as failed:
            last = chunks.failure(failed.error, has_effects=failed.has_effects)
            raise Broken(failed.reply(headers), last, failed.error.code) from failed
