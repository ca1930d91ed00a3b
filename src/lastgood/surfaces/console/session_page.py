"""One session: a window of its chain, failed attempts beside the turns they tried, and what waits.

Reads only the turns that are shown: a session of thousands of turns opens as fast as a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import fields
from typing import Any

from lastgood.errors import HistoryDamaged, LastgoodError
from lastgood.model.attempts import Attempt, AttemptStatus
from lastgood.model.ids import AttemptId, TurnId
from lastgood.model.messages import decode
from lastgood.model.sessions import EncodedTurn, Session, SessionStatus, Turn
from lastgood.surfaces.console.approvals import asked_view
from lastgood.surfaces.console.console_flows import ConsoleFlows
from lastgood.surfaces.console.pages import Page
from lastgood.surfaces.console.views import (
    attempt_view,
    branch_view,
    message_view,
    queue_view,
    session_view,
    turn_view,
    with_results,
)
from lastgood.surfaces.console.words import pretty, resume_words
from lastgood.surfaces.http.asgi import Request
from lastgood.surfaces.http.parsing import whole_number
from lastgood.surfaces.http.turn_headers import session_of

IN_WINDOW = 30
_MOST_BRANCHES = 100


class SessionPages:
    def __init__(self, flows: ConsoleFlows) -> None:
        self._flows = flows

    async def show(self, request: Request) -> Page:
        caller, sessions = request.caller, self._flows.sessions
        session = await sessions.get(caller.tenant, session_of(request))
        last = whole_number(request.query, "to", session.turns, least=1, most=2**53)
        last = min(last, session.turns)
        turns, damage = await self._window(session, last)
        attempts = await sessions.attempts(caller.tenant, session.id)
        branches = await sessions.branches(caller.tenant, session.id, limit=_MOST_BRANCHES)
        chain = [turn_view(turn) | _tries(turn, attempts) for turn in turns]
        shown = {turn.id for turn in turns} | ({None} if not turns or turns[0].seq == 1 else set())
        uncommitted = await self._uncommitted(session, attempts, shown)
        data = {
            "session": session_view(session),
            "turns": chain,
            "damage": damage,
            "failed": uncommitted,
            "branches": [branch_view(one) for one in branches],
            "running": self._running(session, attempts),
            "questions": [
                await asked_view(self._flows, request, session, one)
                for one in await self._flows.approvals.pending(caller.tenant, session.id, caller.user)
            ],
            "queue": [queue_view(one) for one in await self._flows.queue.read(caller.tenant, session.id)],
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
        return Page("session.html", data["session"]["title"], data, more=more)

    async def _window(self, session: Session, last: int) -> tuple[list[Turn], str]:
        """The turns up to number `last`, and what is damaged in them."""
        found: list[Turn] = []
        damage = ""
        stream = self._flows.sessions.stream(session, after=max(last - IN_WINDOW, 0))
        async with aclosing(stream) as turns:
            async for turn in turns:
                if isinstance(turn, HistoryDamaged):
                    damage = turn.message
                    continue
                if turn.seq > last:
                    break
                found.append(_decoded(turn))
        return found, damage

    async def _uncommitted(
        self, session: Session, attempts: Sequence[Attempt], shown: set[TurnId | None]
    ) -> list[dict[str, Any]]:
        """Turns that were tried and never committed, beside the turn that they would have followed."""
        committed = {one.turn for one in attempts if one.status is AttemptStatus.COMMITTED}
        by_turn: dict[TurnId, list[Attempt]] = {}
        for attempt in attempts:
            if attempt.turn not in committed and attempt.base in shown:
                by_turn.setdefault(attempt.turn, []).append(attempt)
        return [await self._failed_turn(session, tries) for tries in by_turn.values()]

    async def _failed_turn(self, session: Session, tries: Sequence[Attempt]) -> dict[str, Any]:
        newest = tries[-1]
        asked = await self._flows.sessions.request_of(session.tenant, newest.turn)
        messages = asked.messages if asked is not None and asked.messages else ()
        head = session.head.turn if session.head else None
        ended = newest.status not in (AttemptStatus.RUNNING, AttemptStatus.WAITING)
        return {
            "turn": newest.turn,
            "after": newest.base,
            "user": asked.user if asked is not None else "",
            "inputs": with_results(messages),
            "attempts": [attempt_view(one) for one in tries if one.status is not AttemptStatus.RUNNING],
            "is_running": not ended,
            "newest": attempt_view(newest),
            "may_retry": ended and newest.head == head and session.attempt is None and bool(messages),
        }

    def _running(self, session: Session, attempts: Sequence[Attempt]) -> dict[str, Any] | None:
        found = next((one for one in attempts if one.id == session.attempt), None)
        return attempt_view(found) if found is not None else None

    # -- below a session -----------------------------------------------------------------

    async def attempt(self, request: Request) -> Page:
        found = await self._flows.sessions.attempt(
            request.caller.tenant, session_of(request), AttemptId(request.path["attempt"])
        )
        steps = [
            {
                "kind": step.kind.value,
                "within": step.within,
                "outcome": step.outcome.value if step.outcome else None,
                "seconds": step.seconds,
                "has_effects": bool(step.effects),
                "message": message_view(step.message),
                "input_tokens": step.usage.input_tokens,
                "output_tokens": step.usage.output_tokens,
            }
            for step in found.steps
        ]
        session = await self._flows.sessions.get(request.caller.tenant, session_of(request))
        data = {
            "session": session_view(session),
            "attempt": attempt_view(found.attempt),
            "steps": steps,
            "raw_decision": pretty(found.attempt.decision),
        }
        return Page("attempt.html", f"Attempt {found.attempt.number}", data)

    async def prompt(self, request: Request) -> Page:
        """With what is new since the turn before it."""
        tenant, id = request.caller.tenant, session_of(request)
        session = await self._flows.sessions.get(tenant, id)
        turn, prompt = await self._flows.sessions.prompt(tenant, id, TurnId(request.path["turn"]))
        messages = [message_view(one) for one in prompt.messages]
        known = 0
        if turn.parent is not None:
            _, before = await self._flows.sessions.prompt(tenant, id, turn.parent)
            earlier = [message_view(one) for one in before.messages]
            known = _common(earlier, messages)
        data = {
            "session": session_view(session),
            "turn": {"id": turn.id, "seq": turn.seq, "model": turn.model, "digest": turn.agent_digest},
            "left_out": prompt.left_out,
            "messages": messages,
            "known": known,
        }
        return Page("prompt.html", f"What the model saw in turn {turn.seq}", data)

    async def pointers(self, request: Request) -> Page:
        caller, work = request.caller, self._flows.work
        session = await self._flows.sessions.get(caller.tenant, session_of(request))
        found = await work.tasks.pointers(caller.tenant, session.id, caller.user, None)
        try:
            decided = await work.explainer.decisions(session, caller.user, None)
        except LastgoodError as error:  # its agent may be served no more
            decided, problem = [], error.message
        else:
            problem = ""
        data = {
            "session": session_view(session),
            "problem": problem,
            "decisions": [
                {
                    "runtime": one["runtime"],
                    "words": resume_words(one),
                    "rejected": one.get("rejected", []),
                    "disclosures": one.get("disclosures", []),
                }
                for one in decided
            ],
            "pointers": [
                {
                    "number": one.number,
                    "native_session": one.native_session,
                    "runtime": one.runtime.id if one.runtime else None,
                    "worker": one.worker,
                    "work_dir": one.work_dir,
                    "through": one.through,
                    "outcome": one.outcome.value,
                    "is_dirty": one.is_dirty,
                    "retired": one.retired,
                }
                for one in reversed(found)
            ],
        }
        return Page("pointers.html", "Native sessions", data)


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


def _common(earlier: Sequence[dict[str, Any]], later: Sequence[dict[str, Any]]) -> int:
    """How many messages at the beginning are the same in both prompts."""
    pairs = zip(earlier, later, strict=False)
    return next(
        (number for number, (one, two) in enumerate(pairs) if one != two), min(len(earlier), len(later))
    )


def _decoded(turn: EncodedTurn) -> Turn:
    """A damaged turn is shown with its messages, where these can be read."""
    plain = {field.name: getattr(turn, field.name) for field in fields(EncodedTurn)}
    try:
        return Turn(**plain, messages=decode(turn.body))
    except (ValueError, TypeError, KeyError, AttributeError):
        if not turn.damage:
            raise
        return Turn(**plain, messages=())
