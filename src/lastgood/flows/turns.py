"""Operations on a turn that is running or has failed: cancel, answer, retry, continue.

A run belongs to its session: a caller that is cancelled in the middle leaves nothing half done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from lastgood.core.disconnect import RequestOrigin, on_disconnect
from lastgood.core.lifecycle import Move, is_final
from lastgood.core.recovery import TryAgain
from lastgood.errors import (
    AttemptNotFound,
    Conflict,
    LastgoodError,
    NothingPending,
    SessionNotFound,
    TurnCancelled,
)
from lastgood.flows.agent_resolution import resolve
from lastgood.flows.attempt_end import AttemptStop
from lastgood.flows.attempt_run import Run
from lastgood.flows.audit import nobody, unanswered_entry
from lastgood.flows.begin import (
    STEERS_GONE,
    Plan,
    begun_of,
)
from lastgood.flows.busy import busy
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.retries import retry_lost_races
from lastgood.flows.running_attempts import RunningAttempts
from lastgood.flows.submission import Reservation
from lastgood.flows.submit import Submitter
from lastgood.flows.turn_handle import QueuedTurn, TurnHandle
from lastgood.flows.turn_outcome import Outcome
from lastgood.flows.work.tasks import Tasks
from lastgood.model.agents import AgentSpec
from lastgood.model.answers import Answer, answer_about
from lastgood.model.attempts import (
    Ask,
    Attempt,
    AttemptStatus,
    Begin,
    Expected,
    OnLeave,
    TurnRequest,
)
from lastgood.model.audit import AuditEntry
from lastgood.model.ids import AttemptId, SessionId, TaskId, TenantId, TurnId
from lastgood.model.queue import NewQueued, Queued
from lastgood.model.rules import Setter
from lastgood.model.sessions import Session
from lastgood.model.tasks import HELD_TASKS, Task


class Turns:
    def __init__(self, deps: Dependencies, live: RunningAttempts, submitter: Submitter, tasks: Tasks) -> None:
        self._deps = deps
        self._live = live
        self._submitter = submitter
        self._tasks = tasks
        self._starter = submitter.starter

    async def resolve(self, recorded: str) -> tuple[AgentSpec, dict[str, Any]]:
        return await resolve(self._deps.agents, recorded)

    def handle(
        self, tenant: TenantId, session: SessionId, turn: TurnId, attempt: AttemptId, after_event: int = 0
    ) -> TurnHandle:
        """The handle of an attempt that another process or another request began."""
        return TurnHandle(self._deps, tenant, session, turn, attempt, after_event)

    # -- changing its course -----------------------------------------------------

    async def cancel(self, tenant: TenantId, session: SessionId, by: Setter | None = None) -> Outcome:
        """Cancels the running or waiting turn for a person, and parks what is queued behind it. Returns its
        outcome when it has ended: the cancel may have been too late. `by`: None if the server cancels it."""
        found = await self._deps.store.get_session(tenant, session)
        if found is None:
            raise SessionNotFound()
        if found.runtime_id is not None and (task := await self._task_to_cancel(found)) is not None:
            return await self._cancel_task(task)
        if found.attempt is None:
            raise NothingPending("No turn is running in this session")
        by = by or nobody(self._deps.node)
        return await retry_lost_races("cancel the turn", partial(self._cancel, tenant, found.attempt, by))

    async def _task_to_cancel(self, session: Session) -> Task | None:
        """The one that a worker holds, else the next one. None: a turn of this server runs, or none."""
        tasks = await self._deps.store.open_tasks(session.tenant, session.id)
        held = next((task for task in tasks if task.status in HELD_TASKS), None)
        return held or (tasks[0] if tasks and session.attempt is None else None)

    async def _cancel_task(self, task: Task) -> Outcome:
        """Never waits for a worker: it learns by its next report or heartbeat that its claim has ended."""
        await retry_lost_races(
            "cancel the task",
            lambda: self._tasks.end_now(task.tenant, task.id, by_person=True, stops_session=True),
        )
        return await self.of_task(task).outcome()

    def of_task(self, task: Task) -> TurnHandle:
        return self._submitter.tasks.of_task(task)

    async def ended_task(self, tenant: TenantId, id: TaskId) -> QueuedTurn:
        """One that ended before a worker claimed it."""
        task = await self._deps.store.get_task(tenant, id)
        if task is None:
            raise SessionNotFound()
        return QueuedTurn(task, "")

    async def _cancel(self, tenant: TenantId, attempt_id: AttemptId, by: Setter) -> Outcome | None:
        """Returns None if the attempt began to wait, was answered or ended between the read and the write."""
        run = self._live.get(attempt_id)
        if run is not None:
            return await self._live.stop(run, AttemptStop(Move.CANCEL, TurnCancelled(), by_person=True))
        attempt = await self._deps.store.get_attempt(tenant, attempt_id)
        if attempt is None:
            raise NothingPending("No turn is running in this session")
        if is_final(attempt.status) or await self._ask_to_cancel(attempt, by):
            return await self.handle(tenant, attempt.session, attempt.turn, attempt.id).outcome()
        return None

    async def _ask_to_cancel(self, attempt: Attempt, by: Setter) -> bool:
        if attempt.status is AttemptStatus.WAITING:
            withdrawn = unanswered_entry(attempt, "cancelled", by)
            return await self._starter.end(
                attempt, Move.CANCEL, TurnCancelled(), by_person=True, audit=withdrawn
            )
        # Another process holds it: it sees the mark, and stops its tools before it releases the session.
        return await self._deps.store.ask_cancel(attempt.hold)

    async def end(
        self,
        attempt: Attempt,
        move: Move,
        error: LastgoodError,
        *,
        only_if_expired: bool = False,
        died: bool = False,
        audit: AuditEntry | None = None,
    ) -> bool:
        """Ends an attempt that nobody here holds. False: it had ended already."""
        return await self._starter.end(
            attempt, move, error, only_if_expired=only_if_expired, died=died, audit=audit
        )

    async def answer(
        self,
        tenant: TenantId,
        session: SessionId,
        attempt_id: AttemptId,
        answer: Answer,
        *,
        place: str | None = None,
        audit: AuditEntry | None = None,
    ) -> TurnHandle:
        """Takes a waiting attempt up again, on this node, under a new fence. NothingPending: it waits no
        more, or for something else than the call at `place`."""
        store = self._deps.store
        attempt = await store.get_attempt(tenant, attempt_id)
        if attempt is None or attempt.session != session:
            raise SessionNotFound()
        request = await store.read_request(tenant, attempt.turn)
        found = await store.get_session(tenant, session)
        if request is None or found is None or attempt.question is None:
            raise NothingPending()
        asked = attempt.question["place"]
        if place not in (None, asked):
            raise NothingPending("Another question is pending by now; read the pending questions again")
        base = await self._starter.base_of(ask_of(request), found)
        plan = Plan(*await self.resolve(attempt.agent_key), base)
        begin = replace(self._starter.prepare(ask_of(request), plan, attempt.turn), attempt=attempt.id)
        taking_up = self._take_up(
            attempt, found, begin, plan, {asked: answer_about(answer, attempt.question)}, audit
        )
        return await asyncio.shield(self._live.spawn(taking_up))

    async def _take_up(
        self,
        attempt: Attempt,
        session: Session,
        begin: Begin,
        plan: Plan,
        answers: Mapping[str, Answer],
        audit: AuditEntry | None,
    ) -> TurnHandle:
        """From the hold to the run without a gap in which a caller could get lost. The fence has risen with
        every question, so an answer that was decided on an older one finds nothing to take up."""
        sent = self._deps.clock.monotonic()
        with self._live.expecting(attempt.id):
            hold = await self._deps.store.resume_if_waiting(
                attempt.hold, begin.holder, begin.lease_seconds, audit
            )
            if hold is None:
                raise NothingPending("The question was already answered, or has expired")
            begun = begun_of(replace(attempt, fence=hold.fence), session, begin.base_at(session.head))
            run = Run(self._deps, begin, begun, plan.agent, sent, answers)
            return self._starter.run(run, after_event=session.last_event_seq)

    # -- once more -----------------------------------------------------------------

    async def try_again(
        self, request: TurnRequest, tried: Attempt, decided: TryAgain, takes: int | None = None
    ) -> TurnHandle:
        """A new attempt at an earlier turn, decided on its newest attempt."""
        ask = ask_of(request)
        steers = await self._steers_of(ask, tried.id) if decided.adopt else ()
        if steers is None:
            decided = STEERS_GONE
        adopts: dict[str, Any] = {}
        if decided.adopt:
            # What was decided on may be another head, or another try, by the time this begins.
            adopts = {"continues": tried.id, "follows": tried.number, "expected": Expected(tried.head)}
        return await self._again(ask, request, decided.reason, takes, steers or (), **adopts)

    async def fail_again(self, attempt: Attempt, error: LastgoodError) -> bool:
        """Adds an attempt that fails at once. False: the session is busy, or the turn is committed."""
        ask = Ask(attempt.tenant, attempt.session, (), on_leave=OnLeave.CONTINUE)
        plan = Plan(None, {"recovery": error.message})
        begin = self._starter.prepare(ask, plan, attempt.turn)
        return await self._starter.fail(begin, error)

    async def continue_from(
        self,
        tenant: TenantId,
        session: SessionId,
        attempt_id: AttemptId,
        *,
        user: str = "",
        owner: str | None = None,
        reserve: Callable[[str], Reservation] | None = None,
    ) -> TurnHandle:
        """Tries a failed attempt's turn again after its finished steps, if the session has not moved. An
        attempt of a runtime has none to adopt: its turn is queued again, from its input.

        `reserve` takes from the rate limit of the turn's end user; of `user` if there is none.
        `owner`: the user of the token that asks for it now.
        """
        attempt = await self._deps.store.get_attempt(tenant, attempt_id)
        if attempt is None or attempt.session != session:
            known = await self._deps.store.get_session(tenant, session)
            raise AttemptNotFound() if known is not None else SessionNotFound()
        request = await self._deps.store.read_request(tenant, attempt.turn)
        if reserve is None:
            return await self._continue(attempt, request, owner)
        with reserve(request.user if request is not None and request.user else user) as reserved:
            handle = await self._continue(attempt, request, owner)
            reserved.until_ended(handle)
        return handle

    async def _continue(self, attempt: Attempt, request: TurnRequest | None, owner: str | None) -> TurnHandle:
        if not is_final(attempt.status):
            raise busy(attempt)
        if request is None or request.messages is None or attempt.status is AttemptStatus.COMMITTED:
            raise Conflict("The turn of this attempt is already committed; there is nothing to continue")
        found = await self._deps.store.get_session(attempt.tenant, attempt.session)
        if found is None:
            raise SessionNotFound()
        if (found.head.turn if found.head else None) != attempt.head:
            raise Conflict("The session has a newer turn than this attempt; send the message as a new turn")
        ask = replace(ask_of(request), expected_head=attempt.head, is_first=attempt.head is None, owner=owner)
        if attempt.task is not None:
            return await self._again(ask, request, "continued on request", None, ())
        steers = await self._steers_of(ask, attempt.id)
        if steers is None:
            raise Conflict("A steer used by this attempt was deleted since; send the message as a new turn")
        async with self._taken(attempt) as takes:
            reason = "continued on request"
            return await self._again(ask, request, reason, takes, steers, continues=attempt.id)

    @asynccontextmanager
    async def _taken(self, attempt: Attempt) -> AsyncIterator[int | None]:
        """The queue entry of a follow-up's turn, which its commit removes."""
        store, tenant, session = self._deps.store, attempt.tenant, attempt.session
        queue = await store.read_queue(tenant, session)
        item = next((item for item in queue if item.turn == attempt.turn), None)
        if item is not None and item.parked is not None:
            await store.unpark_queued(tenant, session, item.number)
        try:
            yield item.number if item else None
        except BaseException:
            if item is not None and item.parked is not None:
                await store.park_queued(tenant, session, item.number, item.parked)
            raise

    async def _steers_of(self, ask: Ask, attempt: AttemptId) -> tuple[int, ...] | None:
        """Returns the steers in its steps, by queue number; None: some of them are no longer queued."""
        steps = await self._deps.store.read_steps(ask.tenant, attempt)
        return await self._starter.steers_in(ask, steps)

    async def run_queued(self, item: Queued) -> TurnHandle:
        """The first try of a follow-up's turn."""
        ask = ask_of_queued(item)
        session = await self._deps.store.get_session(ask.tenant, ask.session)
        if session is None:
            raise SessionNotFound()
        plan = await self._submitter.plan(ask, session)
        begin = replace(self._starter.prepare(ask, plan), turn=item.turn, takes=item.number)
        return await asyncio.shield(self._live.spawn(self._submitter.begin(begin, plan)))

    async def _again(
        self,
        ask: Ask,
        request: TurnRequest,
        reason: str,
        takes: int | None,
        steers: tuple[int, ...],
        **adopts: Any,
    ) -> TurnHandle:
        session = await self._deps.store.get_session(ask.tenant, ask.session)
        if session is None:
            raise SessionNotFound()
        plan = await self._starter.plan(ask, session)
        plan = replace(plan, decision=plan.decision | {"recovery": reason})
        begin = replace(
            self._starter.prepare(ask, plan, request.turn),
            takes=takes,
            reclaims=steers,
            **adopts,
        )
        return await asyncio.shield(self._live.spawn(self._submitter.begin(begin, plan)))


def ask_of(request: TurnRequest) -> Ask:
    expected = None if request.edit else request.condition
    return Ask(
        tenant=request.tenant,
        session=request.session,
        messages=request.messages or (),
        model=request.model,
        agent_key=request.agent_key,
        edit=request.edit,
        expected_head=expected.head if expected else None,
        is_first=expected is not None and expected.head is None,
        options=request.options,
        kind=request.kind,
        key=request.key,
        fingerprint=request.fingerprint,
        caller=request.caller,
        user=request.user,
        on_leave=request.on_leave,
        durable=request.durable,
    )


def ask_of_queued(item: Queued | NewQueued) -> Ask:
    return Ask(
        tenant=item.tenant,
        session=item.session,
        messages=item.messages,
        model=item.model,
        agent_key=item.agent_key,
        key=item.key,
        fingerprint=item.fingerprint,
        caller=item.caller,
        user=item.user,
        on_leave=on_disconnect(RequestOrigin.QUEUE, item.key),
    )
