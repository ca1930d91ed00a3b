"""One session: a window of its chain, failed attempts beside their turns, and the queue.

Reads only the turns that are shown: a session of thousands of turns opens as fast as a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from lastgood.errors import HistoryDamaged
from lastgood.flows.session_reader import decoded
from lastgood.flows.task_queue import QueuedTask
from lastgood.model.attempts import Attempt, AttemptStatus
from lastgood.model.ids import TurnId
from lastgood.model.messages import ToolCall
from lastgood.model.queue import Queued
from lastgood.model.sessions import Session, SessionStatus, Turn, TurnKind
from lastgood.surfaces.console.approvals import asked_view
from lastgood.surfaces.console.console_flows import ConsoleFlows
from lastgood.surfaces.console.pages import Page
from lastgood.surfaces.console.session_list import listed_views
from lastgood.surfaces.console.text_format import command_of
from lastgood.surfaces.console.views import (
    attempt_view,
    branch_view,
    queue_view,
    session_view,
    turn_view,
    with_results,
)
from lastgood.surfaces.http.asgi import Request
from lastgood.surfaces.http.body_parser import whole_number
from lastgood.surfaces.http.session_gate import SessionGate
from lastgood.surfaces.http.turn_headers import session_of

IN_WINDOW = 30
_MOST_BRANCHES = 100
#: Turns that were not committed, of a window: a client may have tried hundreds of times after one turn.
MOST_FAILED = 30


class SessionPages:
    def __init__(self, flows: ConsoleFlows, gate: SessionGate) -> None:
        self._flows = flows
        self._gate = gate

    async def show(self, request: Request) -> Page:
        caller, sessions = request.caller, self._flows.sessions
        session = await sessions.get(caller.tenant, session_of(request))
        last = min(await self._last_shown(request, session), session.turns)
        before, turns, after, damage = await self._window(session, last)
        attempts = await sessions.attempts_around(session, before, after)

        async def may_read(other: Session) -> bool:
            return await self._gate.may_read(caller, other)

        branches = await sessions.branches(caller.tenant, session.id, limit=_MOST_BRANCHES)
        authors = [await self._author_of(session, turn) for turn in turns]
        chain = [
            turn_view(turn, author) | _tries(turn, attempts)
            for turn, author in zip(turns, authors, strict=True)
        ]
        ids = {turn.id for turn in turns} | ({None} if not turns or turns[0].seq == 1 else set())
        uncommitted, hidden = await self._uncommitted(session, attempts, ids)
        (shown,) = await listed_views(self._flows, caller.tenant, [session])
        data: dict[str, Any] = {
            "session": shown,
            "turns": chain,
            "damage": damage,
            "failed": uncommitted,
            "failed_hidden": hidden,
            "branches": [branch_view(one) for one in branches],
            "forks": [session_view(one) for one in await sessions.forks(session, may_read)],
            "running": self._running(session, attempts),
            "questions": [
                await asked_view(self._flows, request, session, one)
                for one in await self._flows.approvals.pending(caller.tenant, session.id, caller.user)
            ],
            "queue": await self._queue(session),
            "first_shown": turns[0].seq if turns else 0,
            "last_shown": turns[-1].seq if turns else 0,
            "older": turns[0].seq - 1 if turns and turns[0].seq > 1 else None,
            "newer": min(last + IN_WINDOW, session.turns) if last < session.turns else None,
            "is_newest": last == session.turns,
        }
        more = {
            "is_idle": session.status is SessionStatus.IDLE,
            "agents": list(self._flows.agents.list_keys()),
        }
        return Page("session.html", shown["title"], data, more=more)

    async def _last_shown(self, request: Request, session: Session) -> int:
        """The number in the address, or the end of a window around the turn in the address. A turn that is
        among the newest is shown with them, live."""
        wanted = request.query.get("turn", "")
        if not wanted:
            to: int = whole_number(request.query, "to", session.turns, least=1, most=2**53)
            return to
        try:
            place = await self._flows.sessions.place_of(session, TurnId(wanted))
        except HistoryDamaged:  # the newest window says what is damaged
            return session.turns
        return session.turns if place > session.turns - IN_WINDOW else place + IN_WINDOW // 2

    async def _author_of(self, session: Session, turn: Turn) -> str:
        """A turn names only a user; its request names the token, too."""
        if turn.user or turn.kind is not TurnKind.RUN:
            return turn.user
        sent = await self._flows.sessions.request_of(session.tenant, turn.id)
        return await self._flows.author(session.tenant, sent)

    async def _queue(self, session: Session) -> list[dict[str, Any]]:
        async def shown(entry: Queued | QueuedTask) -> dict[str, Any]:
            if isinstance(entry, Queued):
                user, caller = entry.user, entry.caller
            else:
                user, caller = entry.task.user, entry.task.created_by
            return queue_view(entry, await self._flows.authors.name(session.tenant, user, caller))

        return [await shown(one) for one in await self._flows.queue.read(session.tenant, session.id)]

    async def _window(self, session: Session, last: int) -> tuple[Turn | None, list[Turn], Turn | None, str]:
        """The turns up to number `last`, with the one before and the one after them, and what is damaged."""
        found: list[Turn] = []
        damage = ""
        first = max(last - IN_WINDOW, 0) + 1
        stream = self._flows.sessions.stream(session, after=max(first - 2, 0))
        async with aclosing(stream) as turns:
            async for turn in turns:
                if isinstance(turn, HistoryDamaged):
                    damage = turn.message
                    continue
                found.append(decoded(turn))
                if turn.seq > last:
                    break
        before = found.pop(0) if found and found[0].seq < first else None
        after = found.pop() if found and found[-1].seq > last else None
        return before, found, after, damage

    async def _uncommitted(
        self, session: Session, attempts: Sequence[Attempt], shown: set[TurnId | None]
    ) -> tuple[list[dict[str, Any]], int]:
        """Turns that were tried and never committed, beside the turn that they would have followed: the
        newest, and how many there are before them."""
        committed = {one.turn for one in attempts if one.status is AttemptStatus.COMMITTED}
        by_turn: dict[TurnId, list[Attempt]] = {}
        for attempt in attempts:
            if attempt.turn not in committed and attempt.base in shown:
                by_turn.setdefault(attempt.turn, []).append(attempt)
        newest = [*by_turn.values()][-MOST_FAILED:]
        return [await self._failed_turn(session, tries) for tries in newest], len(by_turn) - len(newest)

    async def _failed_turn(self, session: Session, tries: Sequence[Attempt]) -> dict[str, Any]:
        newest = tries[-1]
        asked = await self._flows.sessions.request_of(session.tenant, newest.turn)
        messages = asked.messages if asked is not None and asked.messages else ()
        head = session.head.turn if session.head else None
        ended = newest.status not in (AttemptStatus.RUNNING, AttemptStatus.WAITING)
        may_retry = ended and newest.head == head and session.attempt is None and bool(messages)
        return {
            "turn": newest.turn,
            "after": newest.base,
            "author": await self._flows.author(session.tenant, asked),
            "inputs": with_results(messages),
            "attempts": [attempt_view(one) for one in tries if one.status is not AttemptStatus.RUNNING],
            "is_running": not ended,
            "newest": attempt_view(newest),
            "may_retry": may_retry,
            "preview": await self._preview(newest) if may_retry else None,
        }

    async def _preview(self, attempt: Attempt) -> dict[str, Any]:
        """What a retry keeps and repeats, from the journal of the attempt."""
        found = await self._flows.sessions.retry_preview(attempt)

        def listed(calls: Sequence[ToolCall]) -> list[dict[str, str]]:
            return [{"tool": one.name, "command": command_of(one.arguments)} for one in calls]

        return {
            "on_runtime": attempt.task is not None,
            "responses": found.kept_responses,
            "kept": listed(found.kept),
            "repeats": listed(found.repeats),
            "unknown": listed(found.unknown),
        }

    def _running(self, session: Session, attempts: Sequence[Attempt]) -> dict[str, Any] | None:
        found = next((one for one in attempts if one.id == session.attempt), None)
        return attempt_view(found) if found is not None else None


def _tries(turn: Turn, attempts: Sequence[Attempt]) -> dict[str, Any]:
    """The attempts before the one that was committed, and how long that one took."""
    tries = [one for one in attempts if one.turn == turn.id]
    done = next((one for one in tries if one.id == turn.attempt), None)
    seconds = done.ended_at - done.started_at if done is not None and done.ended_at is not None else None
    return {
        "ghosts": [attempt_view(one) for one in tries if one.id != turn.attempt],
        "seconds": seconds,
        "committed": attempt_view(done) if done is not None else None,
    }
