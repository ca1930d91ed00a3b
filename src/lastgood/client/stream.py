"""Following a session, and one turn of it to its end, through cut connections and dead servers.

Never an event twice and never a gap: the server has numbered and stored what it tells, and whoever was
cut off asks for what comes after the last whole event. A turn whose server died is tried again by the
next one, under the same key, and followed there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lastgood.client.events import Event, Resync, SessionExited, StreamStopped, TurnFailed, event_of
from lastgood.client.models import AttemptInfo, SessionInfo, TurnInfo, attempt_of, read, session_of, turn_of
from lastgood.client.transport import ApiCall, ApiResponse, Transport, escaped
from lastgood.errors import AnswerLost, LastgoodError, SessionNotFound, TurnNotFound

#: How often a turn whose server died is asked for again. One that kills its server would else do so for ever.
_MOST_AGAIN = 3


@dataclass(frozen=True, slots=True)
class Accepted:
    """A turn that the server has promised. `replayed`: it has ended before, and nothing is run."""

    session: str
    turn: str
    attempt: AttemptInfo
    replayed: bool
    since: int | None  # its events come after this number; None: it began before we looked
    call: ApiCall | None  # sent again as it was, it means the same turn; None: it has no key


def path_of(session: str, *more: str) -> str:
    return "/".join(["/api/sessions", *map(escaped, (session, *more))])


class TurnStream:
    def __init__(self, connection: Transport) -> None:
        self._connection = connection

    # -- reading ---------------------------------------------------------------------------

    async def session(self, session: str) -> SessionInfo:
        return read(session_of, await self._read(f"{path_of(session)}?messages=0"))

    async def attempt(self, session: str, attempt: str) -> AttemptInfo:
        return read(attempt_of, await self._read(path_of(session, "attempts", attempt)))

    async def turn_at(self, session: str, seq: int) -> TurnInfo:
        found = await self._read(f"{path_of(session, 'turns')}?cursor={seq - 1}&limit=1")
        if not found:
            raise TurnNotFound()
        return read(turn_of, found[0])

    async def turn(self, session: str, turn: str) -> TurnInfo:
        return read(turn_of, await self._read(path_of(session, "turns", turn)))

    async def _read(self, path: str) -> Any:
        return (await self._connection.call(ApiCall("GET", path))).plain

    # -- a session -------------------------------------------------------------------------

    async def events(self, session: str, since: int | None) -> AsyncGenerator[Event, None]:
        """Exactly what comes after `since`; None: from the oldest that is kept. Ends with the session."""
        patience = self._connection.patience()
        while True:
            error: LastgoodError = AnswerLost()
            try:
                async with aclosing(
                    self._connection.frames(path_of(session, "events"), {"since": since})
                ) as frames:
                    async for frame in frames:
                        patience.renew()
                        if frame.plain is None:
                            continue
                        event = read(partial(event_of, frame.seq), frame.plain)
                        # A resync may go back: a database that was restored gives numbers once more.
                        if event.seq is not None:
                            if since is not None and event.seq <= since and not isinstance(event, Resync):
                                continue
                            since = event.seq
                        yield event
                        if isinstance(event, SessionExited):
                            return
            except LastgoodError as broken:
                if not self._connection.may_go_again(broken):
                    raise
                error = broken
            await patience.pause(error)

    # -- a turn ----------------------------------------------------------------------------

    async def accept(self, call: ApiCall, session: str, before: SessionInfo) -> Accepted:
        """`before`: the session before the call. What begins later comes after its last event."""
        answer = await self._connection.call(call)
        attempt = read(attempt_of, answer.plain)
        since: int | None = before.last_event_seq
        if attempt.id == before.attempt:
            since = None if attempt.ended_at is None else 0
        return _accepted(session, attempt, answer, since, call)

    async def follow(self, accepted: Accepted) -> AsyncGenerator[Event, None]:
        """The events of the turn, ending with StreamStopped."""
        for tries in range(1, _MOST_AGAIN + 2):
            since, is_interrupted = accepted.since, False
            async with aclosing(self._of_attempt(accepted)) as events:
                async for event in events:
                    since = event.seq if event.seq is not None else since
                    if isinstance(event, TurnFailed):
                        is_interrupted = event.status == "interrupted"
                    yield event
            if not is_interrupted or accepted.call is None or tries > _MOST_AGAIN:
                return
            # Its server owes it, and may have begun it again already: asked for under its key, it is
            # attached to, told, or begun, but never done twice.
            again = replace(accepted.call, accepted=True)
            answer = await self._connection.call(again)
            accepted = _accepted(accepted.session, read(attempt_of, answer.plain), answer, since, again)

    async def _of_attempt(self, accepted: Accepted) -> AsyncGenerator[Event, None]:
        session, attempt = accepted.session, accepted.attempt
        last: int | None = None  # all there is of it is stored up to here
        if attempt.ended_at is not None:
            last = (await self.session(session)).last_event_seq
            if last <= (accepted.since or 0):
                for event in await self._ending(session, attempt.id):
                    yield event
                return
        async with aclosing(self.events(session, accepted.since)) as events:
            async for event in events:
                if isinstance(event, SessionExited):
                    raise SessionNotFound("the session was deleted while the turn was running")
                if isinstance(event, Resync) or event.attempt == attempt.id:
                    yield event
                if isinstance(event, StreamStopped) and event.attempt == attempt.id:
                    return
                if isinstance(event, Resync):
                    # Its end may be among what was missed, and would never come.
                    ended = (await self.attempt(session, attempt.id)).ended_at is not None
                    last = (await self.session(session)).last_event_seq if ended else None
                if last is not None and event.seq is not None and event.seq >= last:
                    break
        for event in await self._ending(session, attempt.id):
            yield event

    async def _ending(self, session: str, attempt_id: str) -> list[Event]:
        """Its events have served their time; how it ended is known all the same."""
        attempt = await self.attempt(session, attempt_id)
        about = {"session_id": session, "attempt": attempt.id, "turn": attempt.turn}
        stopped = {"type": "stream_stopped", "status": attempt.status}
        if attempt.status == "committed":
            turn = await self.turn(session, attempt.turn)
            told: list[dict[str, Any]] = [
                {"type": "agent_choice", "content": turn.text},
                {"type": "turn_committed", "seq": turn.seq},
                stopped,
            ]
        else:
            code, message = attempt.error_code or "turn_failed", attempt.error_message or ""
            failed = {"status": attempt.status, "code": code, "message": message, "retryable": False}
            told = [
                {"type": "error", "code": code, "error": message},
                {"type": "turn_failed", **failed},
                stopped,
            ]
        return [event_of(None, one | about) for one in told]


def _accepted(
    session: str, attempt: AttemptInfo, answer: ApiResponse, since: int | None, call: ApiCall | None
) -> Accepted:
    # Told as an old one, it may be our own all the same, if the answer that said so was lost.
    replayed = answer.headers.get("idempotent-replayed") == "true" and not answer.was_lost
    is_keyed = call is not None and "idempotency-key" in (call.headers or {})
    return Accepted(session, attempt.turn, attempt, replayed, since, call if is_keyed else None)
