"""Handlers for turns: run, stream, cancel, continue, steer and queue.

A turn belongs to its session. A client that disconnects only stops watching it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from lastgood.errors import (
    InvalidRequest,
    LastgoodError,
    StoreUnavailable,
    TurnFailed,
)
from lastgood.flows.agent_directory import AgentDirectory
from lastgood.flows.queue import CAPACITY, Queue, as_one
from lastgood.flows.sessions import Sessions
from lastgood.flows.submission import Submission
from lastgood.flows.submit import Submitter
from lastgood.flows.task_queue import QueuedTask
from lastgood.flows.turn_handle import QueuedTurn, TurnHandle
from lastgood.flows.turn_outcome import Outcome
from lastgood.flows.turns import Turns
from lastgood.model.attempts import After, Ask, Attempt, AttemptStatus
from lastgood.model.events import TERMINAL, AttemptFailed
from lastgood.model.ids import AttemptId
from lastgood.model.messages import Role
from lastgood.model.queue import NewQueued, Queued, QueueKind
from lastgood.model.sessions import Session, Turn
from lastgood.surfaces.api.resources import ATTEMPT, QUEUE_ENTRY, QUEUED_TURN, TASK_ENTRY, TURN
from lastgood.surfaces.api.schemas import (
    ApiMessage,
    ContinueBody,
    LaterBody,
    RunBody,
    TurnBody,
    messages_of,
)
from lastgood.surfaces.api.sse import frame
from lastgood.surfaces.api.turn_requests import TurnRequests
from lastgood.surfaces.http import error_responses
from lastgood.surfaces.http.asgi import Reply, Request, Response, Stream, json_reply
from lastgood.surfaces.http.body_parser import flag, parse, parse_paced
from lastgood.surfaces.http.rate_limit import RateLimiter
from lastgood.surfaces.http.server_sent_events import unnumbered
from lastgood.surfaces.http.turn_headers import fingerprint, key_of, queue_entry, session_of, user_of

Frames = AsyncGenerator[bytes, None]


class RunHandlers:
    def __init__(
        self,
        sessions: Sessions,
        submitter: Submitter,
        turns: Turns,
        queue: Queue,
        agents: AgentDirectory,
        asking: TurnRequests,
        limiter: RateLimiter,
    ) -> None:
        self._sessions = sessions
        self._submitter = submitter
        self._turns = turns
        self._queue = queue
        self._agents = agents
        self._asking = asking
        self._limiter = limiter

    # -- turns ---------------------------------------------------------------------------

    async def run(self, request: Request) -> Response:
        """docker-agent's route: the agent in the path, events as the response."""
        self._asking.check_open()
        plain = await request.json()
        given = {"messages": plain} if isinstance(plain, list) else plain
        body = await parse_paced(RunBody, ApiMessage, given)
        agent = self._agents.canonical_key(request.path["agent"], request.path.get("name"))
        ask = self._asking.ask(request, body, plain, agent, durable=False)
        named = _is_named(request)  # before anything begins: it may be refused
        submitted = await self._submit(request, ask, body.where())
        frames = self._frames(request, submitted, named=named)
        return Stream(frames, _headers(submitted), check=request.check_caller)

    async def turn(self, request: Request) -> Response:
        """Returns 202 with the attempt at once; with `wait`, 200 with the committed turn."""
        self._asking.check_open()
        plain = await request.json()
        body = await parse_paced(TurnBody, ApiMessage, plain)
        agent = None if body.agent is None else self._agents.canonical_key(body.agent)
        # A retry with the same key may wait this time.
        same = {name: value for name, value in plain.items() if name != "wait"}
        ask = self._asking.ask(request, body, same, agent, durable=not body.wait)
        return await self._turn_reply(
            request, await self._submit(request, ask, body.where()), waits=bool(body.wait)
        )

    async def continue_from(self, request: Request) -> Response:
        self._asking.check_open()
        plain = await request.json() if await request.body() else {}
        body = parse(ContinueBody, plain)
        submitted = await self._turns.continue_from(
            request.caller.tenant,
            session_of(request),
            AttemptId(request.path["attempt"]),
            user=user_of(request, None),
            owner=request.caller.user,
            reserve=partial(self._limiter.take, request.caller),
        )
        return await self._turn_reply(request, submitted, waits=bool(body.wait))

    async def cancel(self, request: Request) -> Response:
        """Responds when the attempt has ended, with its status: the cancel may have been too late."""
        tenant, session = request.caller.tenant, session_of(request)
        outcome = await self._turns.cancel(tenant, session, request.caller.setter)
        if outcome.attempt is None:
            assert outcome.task is not None, "only a task ends without an attempt"
            return json_reply(QUEUED_TURN.json(await self._turns.ended_task(tenant, outcome.task)))
        found = await self._sessions.attempt(tenant, session, outcome.attempt)
        return json_reply(ATTEMPT.json(found.attempt))

    async def _submit(self, request: Request, ask: Ask, after: After | None) -> TurnHandle:
        reserve = partial(self._limiter.take, request.caller, ask.user)
        return await self._submitter.submit(Submission(ask, after), reserve)

    async def _turn_reply(self, request: Request, submitted: TurnHandle, *, waits: bool) -> Response:
        headers = _headers(submitted)
        if waits:
            try:
                outcome = await request.unless_gone(submitted.outcome())
            except LastgoodError as error:
                return _refusal(request, submitted, error, has_effects=submitted.has_effects)
            if outcome.turn is not None:
                # Another node may have taken it up and committed it, as an attempt of its own.
                by = {"x-attempt-id": outcome.turn.attempt}
                return json_reply(TURN.json(outcome.turn), 200, headers | by)
            if outcome.status is not AttemptStatus.WAITING:
                return _failed(request, submitted, outcome)
            # A person has to answer, which may take a day: the attempt contains the question.
        match await submitted.stored():
            case Attempt() as attempt:
                return json_reply(ATTEMPT.json(attempt), 202, headers | {"x-attempt-id": attempt.id})
            case QueuedTurn() as queued:
                return json_reply(QUEUED_TURN.json(queued), 202, headers)

    # -- events --------------------------------------------------------------------------

    async def events(self, request: Request) -> Response:
        """Streams all events after an id, past and live, until the session is deleted."""
        session = await self._sessions.get(request.caller.tenant, session_of(request))
        after = _since(request)
        start = session.events_dropped if after is None else after
        frames = self._all_frames(session, start, named=_is_named(request))
        return Stream(frames, only_watches=True, check=request.check_caller)

    async def _all_frames(self, session: Session, after: int, *, named: bool) -> Frames:
        events = self._sessions.follow(session, after)
        async with aclosing(events):
            async for event in events:
                yield frame(event, session.id, named=named)
        yield unnumbered(
            {"type": "session_exited", "session_id": session.id, "reason": "deleted"}, named=named
        )

    async def _frames(self, request: Request, submitted: TurnHandle, *, named: bool) -> Frames:
        ended = False
        try:
            async with aclosing(submitted.events()) as events:
                async for event in events:
                    ended = ended or event.kind in TERMINAL
                    if isinstance(event.data, AttemptFailed):
                        request.failure = event.data.code
                    yield frame(event, submitted.session, named=named)
        except StoreUnavailable:
            pass  # the turn may still commit, so its end is read before anything is sent
        if not ended:
            # Its events have expired, or could not be stored or read. The client still needs its outcome.
            for last in await self._ending(submitted):
                yield unnumbered(last, named=named)

    async def _ending(self, submitted: TurnHandle) -> list[dict[str, Any]]:
        try:
            outcome = await submitted.outcome()
        except LastgoodError as error:
            may = error_responses.may_be_sent_again(error, has_effects=submitted.has_effects)
            words = error_responses.code_fields(error.code)
            return [{"type": "error", **words, "error": error.message, "retryable": may}]
        about = {"session_id": submitted.session, "turn": submitted.turn}
        if outcome.attempt is not None:
            about["attempt"] = outcome.attempt
        if outcome.turn is not None:
            about["attempt"] = outcome.turn.attempt
            said = {"type": "agent_choice", "content": _last_words(outcome.turn), **about}
            committed = {"type": "turn_committed", "seq": outcome.turn.seq, **about}
            return [said, committed, {"type": "stream_stopped", "reason": "normal", **about}]
        why = outcome.error or TurnFailed(f"The turn ended with status {outcome.status.value}")
        words = error_responses.code_fields(why.code)
        may = error_responses.may_be_sent_again(why, has_effects=outcome.has_effects)
        return [
            {"type": "error", **words, "error": why.message, **about},
            {"type": "turn_failed", **words, "message": why.message, "retryable": may, **about},
            {"type": "stream_stopped", "reason": "error", **about},
        ]

    # -- the queue -----------------------------------------------------------------------

    async def steer(self, request: Request) -> Response:
        item, known = await self._later(request, QueueKind.STEER)
        return json_reply({"status": "duplicate" if known else "queued", "duplicate": known, **item}, 202)

    async def followup(self, request: Request) -> Response:
        tenant, id = request.caller.tenant, session_of(request)
        session = await self._sessions.find(tenant, id)
        item, known = await self._later(request, QueueKind.FOLLOWUP)
        streaming = session is not None and session.attempt is not None
        status = "duplicate" if known else "queued_streaming" if streaming else "queued_idle"
        return json_reply({"status": status, "duplicate": known, **item}, 202)

    async def _later(self, request: Request, kind: QueueKind) -> tuple[dict[str, Any], bool]:
        self._asking.check_open()
        plain = await request.json()
        given = {"messages": plain} if isinstance(plain, list) else plain
        body = await parse_paced(LaterBody, ApiMessage, given)
        messages = messages_of(body.messages)
        if kind is QueueKind.STEER:
            if body.model is not None or body.agent is not None:
                raise InvalidRequest("A steer joins the running turn; it cannot set `model` or `agent`")
            if any(message.role is not Role.USER for message in messages):
                raise InvalidRequest("A steer accepts only user messages")
            messages = (as_one(messages),)
        new = NewQueued(
            tenant=request.caller.tenant,
            session=session_of(request),
            turn=self._queue.new_turn(),
            kind=kind,
            messages=messages,
            model=body.model,
            agent_key=None if body.agent is None else self._agents.canonical_key(body.agent),
            key=key_of(request),
            fingerprint=fingerprint(request, plain),
            caller=request.caller.name,
            user=user_of(request, body.user),
        )
        # Steers count, too: one that comes too late for its turn becomes a turn of its own.
        with self._limiter.take(request.caller, new.user, later=True) as taken:
            item, known = await self._queue.put(new, request.caller.user)
            if not known:
                taken.give_back()
        return _entry(item), known

    async def queue(self, request: Request) -> Response:
        waiting = await self._queue.read(request.caller.tenant, session_of(request))
        items = [_entry(item) for item in waiting]
        body: dict[str, Any] = {
            kind.value: {
                "depth": sum(item["kind"] == kind.value and "parked" not in item for item in items),
                "capacity": CAPACITY[kind],
            }
            for kind in QueueKind
        }
        return json_reply(body | {"items": items})

    async def drop(self, request: Request) -> Response:
        await self._queue.drop(request.caller.tenant, session_of(request), queue_entry(request))
        return json_reply({"status": "dropped"})

    async def retry(self, request: Request) -> Response:
        with self._limiter.take(request.caller, user_of(request, None), later=True) as taken:
            await self._queue.retry(request.caller.tenant, session_of(request), queue_entry(request))
            taken.give_back()
        return json_reply({"status": "queued"}, 202)


def _failed(request: Request, submitted: TurnHandle, outcome: Outcome) -> Reply:
    error = outcome.error or TurnFailed(f"The turn ended with status {outcome.status.value}")
    return _refusal(request, submitted, error, has_effects=outcome.has_effects)


def _refusal(request: Request, submitted: TurnHandle, error: LastgoodError, *, has_effects: bool) -> Reply:
    """Names the attempt, so that the client can continue it; a new request would run its tools again."""
    request.failure = error.code
    reply = error_responses.plain(error, request.id, has_effects=has_effects)
    return Reply(reply.status, reply.body, {**reply.headers, **_headers(submitted)})


def _headers(submitted: TurnHandle) -> dict[str, str]:
    headers: dict[str, str] = {"x-session-id": submitted.session, "x-turn-id": submitted.turn}
    if submitted.attempt is not None:
        headers["x-attempt-id"] = submitted.attempt
    if submitted.task_id is not None:
        headers["x-task-id"] = submitted.task_id
    return headers | ({"idempotent-replayed": "true"} if submitted.replayed else {})


def _entry(item: Queued | QueuedTask) -> dict[str, Any]:
    return QUEUE_ENTRY.json(item) if isinstance(item, Queued) else TASK_ENTRY.json(item)


def _is_named(request: Request) -> bool:
    return flag(request.query, "named", False)


def _since(request: Request) -> int | None:
    # A browser that reconnects sends the same URL again, with Last-Event-ID.
    given = (request.headers.get("last-event-id", "") or request.query.get("since", "")).strip()
    if not given:
        return None
    if not given.isascii() or not given.isdecimal() or len(given) > 18:
        raise InvalidRequest("`since` and `Last-Event-ID` must be an event id (an integer)")
    return int(given)


def _last_words(turn: Turn) -> str:
    return turn.messages[-1].content if len(turn.messages) > turn.inputs else ""
