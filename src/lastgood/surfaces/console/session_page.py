"""One session: a window of its chain, failed attempts beside their turns, and the queue.

Reads only the turns that are shown: a session of thousands of turns opens as fast as a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from lastgood.core.tool_ledger import adopted_steps
from lastgood.errors import HistoryDamaged, LastgoodError
from lastgood.flows.session_reader import AttemptDetails, decoded
from lastgood.flows.task_queue import QueuedTask
from lastgood.model.attempts import Attempt, AttemptStatus, TurnRequest
from lastgood.model.ids import AttemptId, TurnId
from lastgood.model.messages import Message, ToolCall
from lastgood.model.queue import Queued
from lastgood.model.sessions import Session, SessionStatus, Turn, TurnKind, Usage
from lastgood.surfaces.console.approvals import asked_view
from lastgood.surfaces.console.console_flows import ConsoleFlows
from lastgood.surfaces.console.pages import Page
from lastgood.surfaces.console.text_format import command_of, pretty, resume_words
from lastgood.surfaces.console.timeline import timeline
from lastgood.surfaces.console.views import (
    attempt_view,
    branch_view,
    context_view,
    message_view,
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
#: Of the messages that the turn before saw as well, the newest.
MOST_KNOWN = 100
_MOST_BRANCHES = 100
#: Turns that were not committed, of a window: a client may have tried hundreds of times after one turn.
MOST_FAILED = 30
#: Of what a runtime reported, so much is on the timeline of a turn.
_MOST_REPORTED = 200


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
        shown = {turn.id for turn in turns} | ({None} if not turns or turns[0].seq == 1 else set())
        uncommitted, hidden = await self._uncommitted(session, attempts, shown)
        data: dict[str, Any] = {
            "session": session_view(session),
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
        return Page("session.html", data["session"]["title"], data, more=more)

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

    async def _author(self, session: Session, sent: TurnRequest | None) -> str:
        return "" if sent is None else await self._flows.authors.name(session.tenant, sent.user, sent.caller)

    async def _author_of(self, session: Session, turn: Turn) -> str:
        """A turn names only a user; its request names the token, too."""
        if turn.user or turn.kind is not TurnKind.RUN:
            return turn.user
        return await self._author(session, await self._flows.sessions.request_of(session.tenant, turn.id))

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
            "author": await self._author(session, asked),
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

    async def turn(self, request: Request) -> Page:
        """All attempts at a turn as bars, with their errors and decisions."""
        tenant, id = request.caller.tenant, TurnId(request.path["turn"])
        session = await self._flows.sessions.get(tenant, session_of(request))
        tries = await self._flows.sessions.tries(session, id)
        asked = await self._flows.sessions.request_of(tenant, id)
        queued_at = await self._flows.sessions.queued_at(session, id)
        is_committed = tries[-1].attempt.status is AttemptStatus.COMMITTED
        done = await self._flows.sessions.turn_of(session, id) if is_committed else None
        model = done.model if done is not None else ""
        said = done.messages[: done.inputs] if done is not None else (asked.messages or () if asked else ())
        used = _used(tries)
        messages_of = self._flows.work.tasks.messages_of
        reported = {
            one.attempt.id: await messages_of(
                tenant, session.id, one.attempt.id, request.caller.user, limit=_MOST_REPORTED
            )
            for one in tries
            if one.attempt.task is not None
        }
        data = {
            "session": session_view(session),
            "turn": {
                "id": id,
                "is_committed": is_committed,
                "asked": message_view(said[-1])["text"] if said else "",
                "author": await self._author(session, asked),
                "input_tokens": sum(one.input_tokens for one in used),
                "output_tokens": sum(one.output_tokens for one in used),
                "cost": sum(one.cost for one in used),
            },
            "attempts": [attempt_view(one.attempt) for one in tries],
            "timeline": timeline(tries, queued_at, self._flows.now(), model, reported),
        }
        return Page("turn.html", "Timeline of a turn", data)

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
        sizes = [_size(one) for one in prompt.messages]
        whole = sum(sizes) or 1
        shares = [round(100 * size / whole, 1) for size in sizes]
        skipped = max(known - MOST_KNOWN, 0)
        data = {
            "session": session_view(session),
            "turn": {
                "id": turn.id,
                "seq": turn.seq,
                "model": turn.model,
                "digest": turn.agent_digest,
                "input_tokens": turn.usage.input_tokens,
                "context": context_view(turn.decision),
            },
            "left_out": prompt.left_out,
            "messages": [one | {"share": share} for one, share in zip(messages, shares, strict=True)][
                skipped:
            ],
            "known": known - skipped,
            "skipped": skipped,
            "new_share": round(100 * sum(sizes[known:]) / whole, 1),
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


def _used(tries: Sequence[AttemptDetails]) -> list[Usage]:
    """Of each request to a model, once: what an attempt has adopted was used by an earlier one."""
    steps = {one.attempt.id: one.steps for one in tries}
    used: list[Usage] = []
    for one in tries:
        adopted = adopted_steps(one.steps, steps.get(one.attempt.continues or AttemptId(""), ()))
        before = [step.usage for step in one.steps[:adopted]]
        used.append(
            Usage(
                one.usage.input_tokens - sum(each.input_tokens for each in before),
                one.usage.output_tokens - sum(each.output_tokens for each in before),
                cost=one.usage.cost - sum(each.cost for each in before),
            )
        )
    return used


def _size(message: Message) -> int:
    """In characters: what a model is billed for is proportional to it, more or less."""
    return len(message.content) + sum(len(call.arguments) + len(call.name) for call in message.tool_calls)


def _common(earlier: Sequence[dict[str, Any]], later: Sequence[dict[str, Any]]) -> int:
    """How many messages at the beginning are the same in both prompts."""
    pairs = zip(earlier, later, strict=False)
    return next(
        (number for number, (one, two) in enumerate(pairs) if one != two), min(len(earlier), len(later))
    )
