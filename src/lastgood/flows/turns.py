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
from lastgood.flows.begin import (
    STEERS_GONE,
    Plan,
    begun_of,
    busy,
)
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.retries import retry_lost_races
from lastgood.flows.run import Run, StopReason
from lastgood.flows.running_attempts import RunningAttempts
from lastgood.flows.submit import Reservation, Submitter
from lastgood.flows.turn_handle import TurnHandle
from lastgood.flows.turn_outcome import Outcome
from lastgood.model.agents import AgentSpec
from lastgood.model.attempts import (
    Ask,
    Attempt,
    AttemptStatus,
    Begin,
    Expected,
    OnLeave,
    TurnRequest,
)
from lastgood.model.ids import AttemptId, SessionId, TenantId, TurnId
from lastgood.model.queue import Queued
from lastgood.model.sessions import Session


class Turns:
    def __init__(self, deps: Dependencies, live: RunningAttempts, submitter: Submitter) -> None:
        self._deps = deps
        self._live = live
        self._submitter = submitter
        self._beginning = submitter.beginning

    async def resolve(self, recorded: str) -> tuple[AgentSpec, dict[str, Any]]:
        return await resolve(self._deps.agents, recorded)

    def handle(
        self, tenant: TenantId, session: SessionId, turn: TurnId, attempt: AttemptId, after_event: int = 0
    ) -> TurnHandle:
        """Of an attempt that somebody else began: in another process, or for another request."""
        return TurnHandle(self._deps, tenant, session, turn, attempt, after_event)

    # -- changing its course -----------------------------------------------------

    async def cancel(self, tenant: TenantId, session: SessionId) -> Outcome:
        """Ends what runs or waits. Answers when it has ended, with how: it may have been too late."""
        found = await self._deps.store.get_session(tenant, session)
        if found is None:
            raise SessionNotFound()
        if found.attempt is None:
            raise NothingPending("No turn is running in this session")
        return await retry_lost_races("cancel the turn", partial(self._cancel, tenant, found.attempt))

    async def _cancel(self, tenant: TenantId, attempt_id: AttemptId) -> Outcome | None:
        """Returns None if the attempt began to wait, was answered or ended between the read and the write."""
        run = self._live.get(attempt_id)
        if run is not None:
            return await self._live.stop(run, StopReason(Move.CANCEL, TurnCancelled()))
        attempt = await self._deps.store.get_attempt(tenant, attempt_id)
        if attempt is None:
            raise NothingPending("No turn is running in this session")
        if is_final(attempt.status) or await self._ask_to_cancel(attempt):
            return await self.handle(tenant, attempt.session, attempt.turn, attempt.id).outcome()
        return None

    async def _ask_to_cancel(self, attempt: Attempt) -> bool:
        if attempt.status is AttemptStatus.WAITING:
            return await self._beginning.end(attempt, Move.CANCEL, TurnCancelled())
        # Its holder is another process: it is told, and stops its tools before it lets go.
        return await self._deps.store.ask_cancel(attempt.hold)

    async def end(
        self,
        attempt: Attempt,
        move: Move,
        error: LastgoodError,
        *,
        only_if_expired: bool = False,
        died: bool = False,
    ) -> bool:
        """Ends an attempt that nobody here holds. False: it had ended already."""
        return await self._beginning.end(attempt, move, error, only_if_expired=only_if_expired, died=died)

    async def answer(
        self, tenant: TenantId, session: SessionId, attempt_id: AttemptId, answers: Mapping[str, str]
    ) -> TurnHandle:
        """Takes a waiting attempt up again, on this node, under a new fence."""
        store = self._deps.store
        attempt = await store.get_attempt(tenant, attempt_id)
        if attempt is None or attempt.session != session:
            raise SessionNotFound()
        request = await store.read_request(tenant, attempt.turn)
        found = await store.get_session(tenant, session)
        if request is None or found is None or attempt.status is not AttemptStatus.WAITING:
            raise NothingPending()
        base = await self._beginning.base_of(ask_of(request), found)
        plan = Plan(*await self.resolve(attempt.agent_key), base)
        begin = replace(self._beginning.prepare(ask_of(request), plan, attempt.turn), attempt=attempt.id)
        return await asyncio.shield(self._live.spawn(self._take_up(attempt, found, begin, plan, answers)))

    async def _take_up(
        self, attempt: Attempt, session: Session, begin: Begin, plan: Plan, answers: Mapping[str, str]
    ) -> TurnHandle:
        """From the hold to the run without a gap in which a caller could get lost."""
        sent = self._deps.clock.monotonic()
        with self._live.expecting(attempt.id):
            hold = await self._deps.store.resume_if_waiting(attempt.hold, begin.holder, begin.lease_seconds)
            if hold is None:
                raise NothingPending("The question was already answered, or has expired")
            begun = begun_of(replace(attempt, fence=hold.fence), session, begin.base_at(session.head))
            run = Run(self._deps, begin, begun, plan.agent, sent, answers)
            return self._beginning.run(run, after_event=session.last_event_seq)

    # -- once more -----------------------------------------------------------------

    async def try_again(
        self, request: TurnRequest, tried: Attempt, decided: TryAgain, takes: int | None = None
    ) -> TurnHandle:
        """A new attempt at a turn that was asked for before, decided on its newest try."""
        ask = ask_of(request)
        heard = await self._heard_by(ask, tried.id) if decided.adopt else ()
        if heard is None:
            decided = STEERS_GONE
        adopts: dict[str, Any] = {}
        if decided.adopt:
            # What was decided on may be another head, or another try, by the time this begins.
            adopts = {"continues": tried.id, "follows": tried.number, "expected": Expected(tried.head)}
        return await self._again(ask, request, decided.reason, takes, heard or (), **adopts)

    async def fail_again(self, attempt: Attempt, error: LastgoodError) -> bool:
        """Adds an attempt that fails at once. False: the session is busy, or the turn is committed."""
        ask = Ask(attempt.tenant, attempt.session, (), on_leave=OnLeave.CONTINUE)
        plan = Plan(None, {"recovery": error.message})
        begin = self._beginning.prepare(ask, plan, attempt.turn)
        return await self._beginning.fail(begin, error)

    async def continue_from(
        self,
        tenant: TenantId,
        session: SessionId,
        attempt_id: AttemptId,
        *,
        user: str = "",
        reserve: Callable[[str], Reservation] | None = None,
    ) -> TurnHandle:
        """Tries a failed attempt's turn again after its finished steps, if the session has not moved.

        `reserve` takes from the rate limit of the user for whom the turn was asked; `user` if none was.
        """
        attempt = await self._deps.store.get_attempt(tenant, attempt_id)
        if attempt is None or attempt.session != session:
            raise AttemptNotFound()
        request = await self._deps.store.read_request(tenant, attempt.turn)
        if reserve is None:
            return await self._continue(attempt, request)
        with reserve(request.user if request is not None and request.user else user) as reserved:
            handle = await self._continue(attempt, request)
            reserved.until_ended(handle)
        return handle

    async def _continue(self, attempt: Attempt, request: TurnRequest | None) -> TurnHandle:
        if not is_final(attempt.status):
            raise busy(attempt)
        if request is None or request.messages is None or attempt.status is AttemptStatus.COMMITTED:
            raise Conflict("The turn of this attempt is already committed; there is nothing to continue")
        found = await self._deps.store.get_session(attempt.tenant, attempt.session)
        if found is None:
            raise SessionNotFound()
        if (found.head.turn if found.head else None) != attempt.head:
            raise Conflict("The session has a newer turn than this attempt; send the message as a new turn")
        ask = replace(ask_of(request), expected_head=attempt.head, is_first=attempt.head is None)
        heard = await self._heard_by(ask, attempt.id)
        if heard is None:
            raise Conflict("A steer used by this attempt was deleted since; send the message as a new turn")
        async with self._taken(attempt) as takes:
            reason = "continued on request"
            return await self._again(ask, request, reason, takes, heard, continues=attempt.id)

    @asynccontextmanager
    async def _taken(self, attempt: Attempt) -> AsyncIterator[int | None]:
        """The place in the queue of a follow-up's turn: whoever commits the turn takes it from there."""
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

    async def _heard_by(self, ask: Ask, attempt: AttemptId) -> tuple[int, ...] | None:
        """The steers in its steps, by their place in the queue; None: some of them are there no more."""
        steps = await self._deps.store.read_steps(ask.tenant, attempt)
        return await self._beginning.heard_in(ask, steps)

    async def run_queued(self, item: Queued) -> TurnHandle:
        """The first try of a follow-up's turn."""
        ask = ask_of_queued(item)
        session = await self._deps.store.get_session(ask.tenant, ask.session)
        if session is None:
            raise SessionNotFound()
        plan = await self._submitter.plan(ask, session)
        begin = replace(self._beginning.prepare(ask, plan), turn=item.turn, takes=item.number)
        return await asyncio.shield(self._live.spawn(self._submitter.begin(begin, plan)))

    async def _again(
        self,
        ask: Ask,
        request: TurnRequest,
        reason: str,
        takes: int | None,
        heard: tuple[int, ...],
        **adopts: Any,
    ) -> TurnHandle:
        session = await self._deps.store.get_session(ask.tenant, ask.session)
        if session is None:
            raise SessionNotFound()
        plan = await self._beginning.plan(ask, session)
        plan = replace(plan, decision=plan.decision | {"recovery": reason})
        begin = replace(
            self._beginning.prepare(ask, plan, request.turn),
            takes=takes,
            reclaims=heard,
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


def ask_of_queued(item: Queued) -> Ask:
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
