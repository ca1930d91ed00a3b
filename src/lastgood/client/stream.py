"""Streams the events of a session or of one turn, through lost connections and dead servers.

No event is repeated or skipped: the server numbers and stores events, and after a lost connection the client
requests those after the last complete one. If a server dies, the next one retries its turns; the client
sends the request again with the same key and follows the new attempt.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lastgood.client.events import (
    ErrorEvent,
    Event,
    ResyncEvent,
    SessionExitedEvent,
    StreamStartedEvent,
    StreamStoppedEvent,
    TurnFailedEvent,
    event_of,
)
from lastgood.client.models import AttemptInfo, SessionInfo, TurnInfo, attempt_of, read, session_of, turn_of
from lastgood.client.transport import ApiCall, ApiResponse, Transport, escaped
from lastgood.errors import LastgoodError, ResponseLost, SessionNotFound, TurnNotFound

#: How often a turn whose server died is retried. A turn that kills its server must not do so forever.
_MOST_AGAIN = 3


@dataclass(frozen=True, slots=True)
class Accepted:
    """A turn that the server has accepted. `replayed`: it had ended before, and nothing runs."""

    session: str
    turn: str
    attempt: AttemptInfo | None  # None: a task that no worker has claimed yet
    replayed: bool
    since: int | None  # its events have higher numbers; None: it started before the request
    call: ApiCall | None  # can be repeated for the same turn; None: it has no idempotency key
    task: str | None = None  # of an agent on a runtime


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
        """Yields events after `since` until the session is deleted. None: from the oldest stored event."""
        patience = self._connection.patience()
        while True:
            error: LastgoodError = ResponseLost()
            try:
                async with aclosing(
                    self._connection.frames(path_of(session, "events"), {"since": since})
                ) as frames:
                    async for frame in frames:
                        patience.renew()
                        if frame.plain is None:
                            continue
                        event = read(partial(event_of, frame.seq), frame.plain)
                        # A resync may go back: a restored database assigns the same numbers again.
                        if event.seq is not None:
                            if (
                                since is not None
                                and event.seq <= since
                                and not isinstance(event, ResyncEvent)
                            ):
                                continue
                            since = event.seq
                        yield event
                        if isinstance(event, SessionExitedEvent):
                            return
            except LastgoodError as broken:
                if not self._connection.may_go_again(broken):
                    raise
                error = broken
            await patience.pause(error)

    # -- a turn ----------------------------------------------------------------------------

    async def accept(self, call: ApiCall, session: str, before: SessionInfo) -> Accepted:
        """`before` is the session before the call: events of the turn come after its last event."""
        answer = await self._connection.call(call)
        since: int | None = before.last_event_seq
        if "id" not in answer.plain:
            return _accepted(session, None, answer, since, call)
        attempt = read(attempt_of, answer.plain)
        if attempt.id == before.attempt:
            since = None if attempt.ended_at is None else 0
        return _accepted(session, attempt, answer, since, call)

    async def follow(self, accepted: Accepted) -> AsyncGenerator[Event, None]:
        """Yields the events of the turn; the last one is StreamStoppedEvent."""
        if accepted.task is not None:
            async with aclosing(self._of_task(accepted, accepted.task)) as events:
                async for event in events:
                    yield event
            return
        for tries in range(1, _MOST_AGAIN + 2):
            since, is_interrupted = accepted.since, False
            async with aclosing(self._of_attempt(accepted)) as events:
                async for event in events:
                    since = event.seq if event.seq is not None else since
                    if isinstance(event, TurnFailedEvent):
                        is_interrupted = event.status == "interrupted"
                    yield event
            if not is_interrupted or accepted.call is None or tries > _MOST_AGAIN:
                return
            # The next server may already have retried the turn: a request with the same key attaches to
            # it, replays it or starts it, but never runs it twice.
            again = replace(accepted.call, accepted=True)
            answer = await self._connection.call(again)
            accepted = _accepted(accepted.session, read(attempt_of, answer.plain), answer, since, again)

    async def _of_attempt(self, accepted: Accepted) -> AsyncGenerator[Event, None]:
        session, attempt = accepted.session, accepted.attempt
        assert attempt is not None, "only a task is without an attempt"
        last: int | None = None  # the number of its last stored event
        if attempt.ended_at is not None:
            last = (await self.session(session)).last_event_seq
            if last <= (accepted.since or 0):
                for event in await self._ending(session, attempt.id):
                    yield event
                return
        async with aclosing(self.events(session, accepted.since)) as events:
            async for event in events:
                if isinstance(event, SessionExitedEvent):
                    raise SessionNotFound("the session was deleted while the turn was running")
                if isinstance(event, ResyncEvent) or event.attempt == attempt.id:
                    yield event
                if isinstance(event, StreamStoppedEvent) and event.attempt == attempt.id:
                    return
                if isinstance(event, ResyncEvent):
                    # Its end may be among the missed events, and would never arrive.
                    ended = (await self.attempt(session, attempt.id)).ended_at is not None
                    last = (await self.session(session)).last_event_seq if ended else None
                if last is not None and event.seq is not None and event.seq >= last:
                    break
        for event in await self._ending(session, attempt.id):
            yield event

    async def _of_task(self, accepted: Accepted, task: str) -> AsyncGenerator[Event, None]:
        """Of all claims of the task: the end of one that is tried again is not the end of the turn."""
        session, ours = accepted.session, {accepted.attempt.id} if accepted.attempt else set[str]()
        held: list[Event] = []  # the last events of a claim, until it is known whether the task ended with it
        if await self._task_end(task) is None:
            async with aclosing(self.events(session, accepted.since)) as events:
                async for event in events:
                    if isinstance(event, SessionExitedEvent):
                        raise SessionNotFound("the session was deleted while the turn was running")
                    if isinstance(event, StreamStartedEvent) and event.turn == accepted.turn:
                        ours.add(event.attempt or "")
                    if isinstance(event, ResyncEvent):
                        yield event
                    elif event.attempt in ours and isinstance(event, ErrorEvent | TurnFailedEvent):
                        held.append(event)
                    elif event.attempt in ours and not isinstance(event, StreamStoppedEvent):
                        yield event
                    ends = isinstance(event, StreamStoppedEvent) and event.attempt in ours
                    failed = isinstance(event, TurnFailedEvent) and event.turn == accepted.turn
                    in_queue = failed and event.attempt is None
                    if ends or in_queue or isinstance(event, ResyncEvent):
                        last = await self._task_end(task)
                        if last is not None and ends and last == event.attempt:
                            for one in (*held, event):
                                yield one
                            return
                        if last is not None:
                            break
                        held.clear()
        for event in await self._ending_of_task(session, accepted.turn, task):
            yield event

    async def _task_end(self, task: str) -> str | None:
        """Returns the last attempt of a task that has ended; empty if no worker had claimed it; None if it
        has not ended."""
        found = await self._read(f"/api/tasks/{escaped(task)}")
        return None if found.get("ended_at") is None else found.get("attempt") or ""

    async def _ending_of_task(self, session: str, turn: str, task: str) -> list[Event]:
        attempt = await self._task_end(task)
        if attempt:
            return await self._ending(session, attempt)
        found = await self._read(f"/api/tasks/{escaped(task)}")
        error = found.get("error") or {}
        about = {"session_id": session, "turn": turn}
        code, message = error.get("code", "turn_failed"), error.get("message", "")
        failed = {"status": found["status"], "code": code, "message": message, "retryable": False}
        events = [
            {"type": "error", "code": code, "error": message},
            {"type": "turn_failed", **failed},
            {"type": "stream_stopped", "status": found["status"]},
        ]
        return [event_of(None, one | about) for one in events]

    async def _ending(self, session: str, attempt_id: str) -> list[Event]:
        """Builds the last events from the attempt itself, whose stored events have expired."""
        attempt = await self.attempt(session, attempt_id)
        about = {"session_id": session, "attempt": attempt.id, "turn": attempt.turn}
        stopped = {"type": "stream_stopped", "status": attempt.status}
        if attempt.status == "committed":
            turn = await self.turn(session, attempt.turn)
            raw_events: list[dict[str, Any]] = [
                {"type": "agent_choice", "content": turn.text},
                {"type": "turn_committed", "seq": turn.seq},
                stopped,
            ]
        else:
            code, message = attempt.error_code or "turn_failed", attempt.error_message or ""
            failed = {"status": attempt.status, "code": code, "message": message, "retryable": False}
            raw_events = [
                {"type": "error", "code": code, "error": message},
                {"type": "turn_failed", **failed},
                stopped,
            ]
        return [event_of(None, one | about) for one in raw_events]


def _accepted(
    session: str, attempt: AttemptInfo | None, answer: ApiResponse, since: int | None, call: ApiCall | None
) -> Accepted:
    # A replay after a lost response may be of our own first request, which is not a replay to the caller.
    replayed = answer.headers.get("idempotent-replayed") == "true" and not answer.was_lost
    is_keyed = call is not None and "idempotency-key" in (call.headers or {})
    plain = answer.plain
    return Accepted(
        session, plain["turn"], attempt, replayed, since, call if is_keyed else None, plain.get("task")
    )
