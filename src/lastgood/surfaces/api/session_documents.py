"""Sessions, turns and exports as JSON documents, written piece by piece in bounded memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any

import orjson

from lastgood.errors import HistoryDamaged
from lastgood.flows.session_export import document_pieces, opened
from lastgood.flows.session_reader import SessionReader, decoded
from lastgood.model.sessions import EncodedTurn, Session
from lastgood.surfaces.api.resources import SESSION, TURN

#: Messages encoded at a time.
_BATCH = 200


async def session_pieces(reader: SessionReader, session: Session) -> AsyncGenerator[bytes, None]:
    """A session with its flattened messages, without those of damaged turns."""
    yield opened(SESSION.json(session), "messages")
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
            yield (b"," if count else b"[") + orjson.dumps(TURN.json(decoded(turn)))
            count += 1
            if count == limit:
                break
    yield b"]" if count else b"[]"


async def batch_pieces(
    reader: SessionReader,
    find: Callable[[str], Awaitable[Session | None]],
    ids: Iterable[str],
    about: Mapping[str, Any],
) -> AsyncGenerator[bytes, None]:
    """Many exported sessions, each as `find` finds it; `about` is what is said of the whole."""
    yield opened(dict(about), "sessions")
    count = 0
    failed: list[str] = []
    for id in ids:
        session = await find(id)
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
