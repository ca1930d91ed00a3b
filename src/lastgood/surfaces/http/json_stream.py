"""JSON documents that may be too large to build in memory, written piece by piece.

A small one is an ordinary reply. A large one is a stream: its client holds it back by not reading,
stops it by leaving, and sees an error in the middle as a broken body.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import fields
from typing import Any

import orjson

from lastgood.errors import HistoryDamaged
from lastgood.flows.session_export import document_pieces, opened
from lastgood.flows.session_reader import SessionReader
from lastgood.model.ids import SessionId, TenantId
from lastgood.model.messages import decode
from lastgood.model.sessions import EncodedTurn, Session, Turn
from lastgood.surfaces.api.schemas import session_json, turn_json
from lastgood.surfaces.http.asgi import JSON, Reply, Response, Stream

#: A document up to this size is sent with its length. What fails in it is answered with a status.
SMALL_BYTES = 256 * 1024

#: A large one is sent in pieces of about this size.
PIECE_BYTES = 64 * 1024

#: So many messages are encoded at a time.
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
    """Few large pieces; whoever else waits for the loop has a turn between two of them."""
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


async def session_pieces(reader: SessionReader, session: Session) -> AsyncGenerator[bytes, None]:
    """A session with its flattened messages, without those of damaged turns."""
    yield opened(session_json(session), "messages")
    count = 0
    last: dict[str, Any] = {}
    async with aclosing(reader.stream(session)) as turns:
        async for turn in turns:
            if isinstance(turn, HistoryDamaged):
                last["damage"] = turn.message
                continue
            messages = [] if turn.damage else orjson.loads(turn.body)
            for start in range(0, len(messages), _BATCH):
                yield (b"," if count else b"") + _encoded(messages[start : start + _BATCH], turn)
                count += len(messages[start : start + _BATCH])
    yield b"]," + orjson.dumps({"num_messages": count} | last)[1:]


def _encoded(plain: Iterable[dict[str, Any]], turn: EncodedTurn) -> bytes:
    return orjson.dumps([_shown(message) | {"turn": turn.id} for message in plain])[1:-1]


def _shown(message: dict[str, Any]) -> dict[str, Any]:
    """Without what only a provider understands."""
    if "reasoning" in message:
        return message | {"reasoning": message["reasoning"]["text"]}
    return message


async def turn_pieces(
    reader: SessionReader, session: Session, after: int, limit: int
) -> AsyncGenerator[bytes, None]:
    """An array of at most `limit` turns, without the first `after` ones."""
    count = 0
    async with aclosing(reader.stream(session, after=after)) as turns:
        async for turn in turns:
            if isinstance(turn, HistoryDamaged):
                continue  # the turn says it, too
            yield (b"," if count else b"[") + orjson.dumps(turn_json(_decoded(turn)))
            count += 1
            if count == limit:
                break
    yield b"]" if count else b"[]"


async def batch_pieces(
    reader: SessionReader, tenant: TenantId, ids: Iterable[str], about: Mapping[str, Any]
) -> AsyncGenerator[bytes, None]:
    """Many exported sessions; `about` is what is said of the whole."""
    yield opened(dict(about), "sessions")
    count = 0
    failed: list[str] = []
    for id in ids:
        session = await reader.find(tenant, SessionId(id))
        if session is None:
            failed.append(id)
            continue
        if count:
            yield b","
        async with aclosing(document_pieces(reader, session)) as pieces:
            async for piece in pieces:
                yield piece
        count += 1
    yield b"]," + orjson.dumps({"session_count": count, "failed_ids": failed})[1:]


def _decoded(turn: EncodedTurn) -> Turn:
    """With the messages of a damaged turn, where these can be read."""
    plain = {field.name: getattr(turn, field.name) for field in fields(EncodedTurn)}
    try:
        return Turn(**plain, messages=decode(turn.body))
    except (ValueError, TypeError, KeyError, AttributeError):
        if not turn.damage:
            raise
        return Turn(**plain, messages=())
