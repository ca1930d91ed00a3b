"""Asking for a turn: check, resolve, begin, run; and what may be done to one that runs.

A run belongs to its session. Whoever asked only watches: begin and run are tasks
of this process, so a caller that is cancelled in the middle of asking leaves
nothing half done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lastgood.core.admission import Admitted, Attach, Busy, Displace, Refused, Replay, admit
from lastgood.core.history import open_calls
from lastgood.core.intake import check_input, check_results, check_text
from lastgood.core.lifecycle import Move, after, is_final
from lastgood.errors import (
    InvalidRequest,
    LastgoodError,
    NothingPending,
    OutcomeUnknown,
    SessionBusy,
    SessionNotFound,
    StoreUnavailable,
    TurnCancelled,
    TurnFailed,
    error_of,
)
from lastgood.flows.live import Live
from lastgood.flows.parts import Parts
from lastgood.flows.resolving import resolve
from lastgood.flows.run import Outcome, Run, Stop, failed_event, words_of
from lastgood.flows.titles import name_session
from lastgood.flows.watch import follow
from lastgood.model.agents import AgentSpec
from lastgood.model.attempts import Ask, Attempt, AttemptStatus, Begin, Begun, Hold, Request, Standing
from lastgood.model.events import TERMINAL, Event, EventKind, StoredEvent
from lastgood.model.ids import AttemptId, SessionId, TenantId, TurnId
from lastgood.model.messages import Role, as_json
from lastgood.model.sessions import Session, TurnKind

log = logging.getLogger(__name__)

MOST_IN_KEY = 255
#: What stood in the way may be gone when we look again; someone else may be faster again, too.
_MOST_TRIES = 5


@dataclass(frozen=True, slots=True)
class Submitted:
    """A turn that runs or has run: what to watch, and from which event on."""

    tenant: TenantId
    session: SessionId
    turn: TurnId
    attempt: AttemptId
    after_event: int
    run: Run | None = None  # None: another process holds it, or it has ended
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class _Plan:
    """Everything settled before begin: a refusal up to here has changed nothing."""

    agent: AgentSpec | None
    decision: dict[str, Any]


class Turns:
    def __init__(self, parts: Parts, live: Live) -> None:
        self._parts = parts
        self._live = live

    async def submit(self, ask: Ask) -> Submitted:
        check_input(ask.messages, ask.kind, self._parts.limits.input_bytes)
        for what, text in (("model", ask.model), ("key", ask.key), ("agent", ask.agent_key)):
            check_text(text or "", f"the {what}")
        if ask.key is not None and not 1 <= len(ask.key) <= MOST_IN_KEY:
            raise InvalidRequest(f"the key must have between 1 and {MOST_IN_KEY} characters")
        session = await self._parts.store.get_session(ask.tenant, ask.session)
        if session is None:
            raise SessionNotFound()
        try:
            if ask.messages and ask.messages[0].role is Role.TOOL:
                history = await self._parts.histories.at(ask.tenant, session.head)
                check_results(ask.messages, open_calls(history.tail))
            plan = await self._plan(ask, session)
        except LastgoodError:
            known = await self.known(ask)
            if known is None:
                raise
            return known
        begin = self._live.spawn(self._begin(ask, plan))
        try:
            return await asyncio.shield(begin)
        except asyncio.CancelledError:
            # Whoever asked is gone before there was anything to leave.
            begin.add_done_callback(self._leave_behind)
            raise

    def _leave_behind(self, begin: asyncio.Task[Submitted]) -> None:
        if not begin.cancelled() and begin.exception() is None:
            self._live.spawn(self.leave(begin.result()))

    async def known(self, ask: Ask) -> Submitted | None:
        """What became of this request before. That is told even if the turn could not be run any more."""
        if ask.key is None and not ask.is_retry:
            return None
        look = replace(self._new_begin(ask, _Plan(None, {}), None, None), expected_turns=-1)
        found = await self._parts.store.begin_if_free(look, ())
        prior = found.prior if isinstance(found, Standing) else None
        if prior is not None and prior.session != ask.session and prior.fingerprint == ask.fingerprint:
            # A conversation goes on in another session while one of its turns is done anew.
            return await self.known(replace(ask, session=prior.session))
        match admit(ask, found) if isinstance(found, Standing) else None:
            case Replay(attempt):
                return self._watched(ask, attempt, None, replayed=True)
            case Attach(attempt):
                return await self._attach(ask, attempt)
            case _:
                return None

    async def _plan(self, ask: Ask, session: Session) -> _Plan:
        if ask.kind is not TurnKind.RUN:
            return _Plan(None, {"agent": "none", "reason": "no model is asked"})
        agent, decision = await self.resolve(ask.agent_key or session.agent_key)
        if ask.agent_key is not None and ask.agent_key != session.agent_key:
            decision["reason"] = f"the request named this agent; the session's own is {session.agent_key!r}"
        if agent.stale:
            log.warning("agent %s is not the newest: %s", agent.key, agent.stale)
        # Before anything is written: a bad reference leaves no trace.
        model = ask.model if ask.model is not None else session.model or agent.model
        self._parts.engine.check_model(model, agent)
        return _Plan(agent, decision)

    async def resolve(self, recorded: str) -> tuple[AgentSpec, dict[str, Any]]:
        return await resolve(self._parts.agents, recorded)

    # -- begin -----------------------------------------------------------------

    async def _begin(
        self, ask: Ask, plan: _Plan, *, again: TurnId | None = None, continues: AttemptId | None = None
    ) -> Submitted:
        begin = self._new_begin(ask, plan, again, continues)
        if ask.is_retry:
            # Without a key, only what stands there now can tell whether the first try is
            # over: so look before beginning, and begin only if nothing has moved since.
            begin = replace(begin, expected_turns=-1)
        for _ in range(_MOST_TRIES):
            sent = asyncio.get_running_loop().time()
            found = await self._begin_once(begin)
            if isinstance(found, Begun):
                run = Run(self._parts, begin, found, plan.agent, sent)
                return self._run(run, after_event=found.session.last_event_seq - 1)
            match admit(ask, found):
                case Admitted(turn, displace):
                    if displace is not None:
                        await self._displace(displace)
                    if turn is not None and not begin.again:
                        begin = self._new_begin(ask, plan, turn, None)
                    if ask.is_retry and found.session is not None:
                        begin = replace(begin, expected_turns=found.session.turns)
                case Replay(attempt):
                    return self._watched(ask, attempt, None, replayed=True)
                case Attach(attempt):
                    return await self._attach(ask, attempt)
                case Busy(attempt):
                    raise _busy(attempt)
                case Refused(error):
                    raise error
        raise SessionBusy("other requests for this session were faster each time; try again")

    def _new_begin(self, ask: Ask, plan: _Plan, again: TurnId | None, continues: AttemptId | None) -> Begin:
        return Begin(
            ask=ask,
            turn=again or self._parts.ids.turn(),
            attempt=self._parts.ids.attempt(),
            holder=self._parts.node,
            lease_seconds=self._parts.limits.lease_seconds,
            agent_key=plan.agent.key if plan.agent else "",
            agent_digest=plan.agent.digest if plan.agent else "",
            agent_model=plan.agent.model if plan.agent else "",
            decision=plan.decision,
            again=again is not None,
            continues=continues,
            expected_turns=0 if ask.is_first else None,
        )

    async def _begin_once(self, begin: Begin) -> Begun | Standing:
        started = Event(
            EventKind.ATTEMPT_STARTED,
            begin.attempt,
            {
                "turn": begin.turn,
                "attempt": begin.attempt,
                "agent": begin.agent_key,
                "input": [as_json(message) for message in begin.ask.messages],
            },
        )
        try:
            return await self._parts.store.begin_if_free(begin, (started,))
        except OutcomeUnknown as unknown:
            try:
                # The same ids once more: if the first try did happen, it is what stands in the way.
                found = await self._parts.store.begin_if_free(begin, (started,))
            except StoreUnavailable:
                raise unknown from None  # this one did nothing; about the first we still know nothing
        if isinstance(found, Standing) and found.holder is not None and found.holder.id == begin.attempt:
            assert found.session is not None
            return _begun(found.holder, found.session)
        return found

    async def _displace(self, displace: Displace) -> None:
        attempt, move = displace.attempt, displace.move
        error = TurnFailed(
            "another request took the place of this one"
            if move is Move.SUPERSEDE
            else "the process that ran this turn died"
        )
        run = self._live.get(attempt.id)
        if run is not None and move is Move.SUPERSEDE:
            await self._live.stop(run, Stop(move, error))
            return
        await self.end(attempt, move, error, only_if_expired=move is Move.INTERRUPT)

    async def end(
        self, attempt: Attempt, move: Move, error: LastgoodError, *, only_if_expired: bool = False
    ) -> bool:
        """Ends an attempt that nobody here holds. False: it had ended already."""
        status = after(attempt.status, move)
        ended = await self._parts.store.finish_if_held(
            attempt.hold,
            status,
            words_of(error),
            (failed_event(attempt.turn, attempt.id, status, error),),
            only_if_expired=only_if_expired,
        )
        self._parts.signals.tell(attempt.session)
        return ended

    def _run(self, run: Run, *, after_event: int) -> Submitted:
        self._live.start(run)
        if run.agent is not None and not run.begun.session.title:
            self._live.spawn(name_session(self._parts, run, run.agent))
        session = run.begun.session
        return Submitted(session.tenant, session.id, run.begun.turn, run.hold.attempt, after_event, run)

    async def _attach(self, ask: Ask, attempt: Attempt) -> Submitted:
        run = self._live.get(attempt.id)
        if run is not None:
            await self._live.attach(run)
        elif attempt.orphaned:
            await self._parts.store.set_orphaned(attempt.hold, False)
        return self._watched(ask, attempt, run)

    def _watched(self, ask: Ask, attempt: Attempt, run: Run | None, *, replayed: bool = False) -> Submitted:
        return Submitted(ask.tenant, ask.session, attempt.turn, attempt.id, 0, run, replayed)

    # -- watching ----------------------------------------------------------------

    async def watch(self, submitted: Submitted) -> AsyncIterator[StoredEvent]:
        """The events of one attempt, to its end."""
        events = follow(
            self._parts,
            submitted.tenant,
            submitted.session,
            after=submitted.after_event,
            until=submitted.attempt,
        )
        async for event in events:
            if event.attempt == submitted.attempt:
                yield event

    async def wait(self, submitted: Submitted) -> Outcome:
        """How it ended. Waiting changes nothing; giving up waiting is `leave`."""
        if submitted.run is not None:
            return await asyncio.shield(submitted.run.done)
        store = self._parts.store
        while True:
            attempt = await store.get_attempt(submitted.tenant, submitted.attempt)
            if attempt is None:
                raise SessionNotFound()
            if attempt.ended_at is not None or attempt.status is AttemptStatus.WAITING:
                break
            async for event in self.watch(submitted):
                # An attempt may wait, be answered and go on: from here, not from its start again.
                submitted = replace(submitted, after_event=event.seq)
                if event.kind in TERMINAL or event.kind is EventKind.ATTEMPT_WAITS:
                    break
        turn = await store.find_turn(submitted.tenant, attempt.turn)
        return Outcome(attempt.id, attempt.status, turn, _error_of(attempt))

    async def leave(self, submitted: Submitted) -> None:
        if submitted.run is not None:
            await self._live.leave(submitted.run)

    # -- changing its course -----------------------------------------------------

    async def cancel(self, tenant: TenantId, session: SessionId) -> Outcome:
        """Ends what runs or waits. Answers when it has ended, with how: it may have been too late."""
        found = await self._parts.store.get_session(tenant, session)
        if found is None:
            raise SessionNotFound()
        if found.attempt is None:
            raise NothingPending("nothing is running in this session")
        for _ in range(_MOST_TRIES):
            run = self._live.get(found.attempt)
            if run is not None:
                return await self._live.stop(run, Stop(Move.CANCEL, TurnCancelled()))
            attempt = await self._parts.store.get_attempt(tenant, found.attempt)
            if attempt is None:
                raise NothingPending("nothing is running in this session")
            # It may begin to wait, be answered or end at this moment; then look again.
            if is_final(attempt.status) or await self._ask_to_cancel(attempt):
                return await self.wait(Submitted(tenant, session, attempt.turn, attempt.id, 0))
        raise SessionBusy("the turn changed hands each time; try again")

    async def _ask_to_cancel(self, attempt: Attempt) -> bool:
        if attempt.status is AttemptStatus.WAITING:
            return await self.end(attempt, Move.CANCEL, TurnCancelled())
        # Its holder is another process: it is told, and stops its tools before it lets go.
        return await self._parts.store.ask_cancel(attempt.hold)

    async def answer(
        self, tenant: TenantId, session: SessionId, attempt_id: AttemptId, answers: Mapping[str, str]
    ) -> Submitted:
        """Takes a waiting attempt up again, on this node, under a new fence."""
        store = self._parts.store
        attempt = await store.get_attempt(tenant, attempt_id)
        if attempt is None or attempt.session != session:
            raise SessionNotFound()
        request = await store.read_request(tenant, attempt.turn)
        found = await store.get_session(tenant, session)
        if request is None or found is None or attempt.status is not AttemptStatus.WAITING:
            raise NothingPending()
        plan = _Plan(*await self.resolve(attempt.agent_key))
        begin = replace(self._new_begin(ask_of(request), plan, attempt.turn, None), attempt=attempt.id)
        return await asyncio.shield(self._live.spawn(self._take_up(attempt, found, begin, plan, answers)))

    async def _take_up(
        self, attempt: Attempt, session: Session, begin: Begin, plan: _Plan, answers: Mapping[str, str]
    ) -> Submitted:
        """From the hold to the run without a gap in which a caller could get lost."""
        sent = asyncio.get_running_loop().time()
        hold = await self._parts.store.resume_if_waiting(attempt.hold, begin.holder, begin.lease_seconds)
        if hold is None:
            raise NothingPending("it was answered already, or its time is over")
        begun = _begun(replace(attempt, fence=hold.fence), session)
        run = Run(self._parts, begin, begun, plan.agent, sent, answers)
        return self._run(run, after_event=session.last_event_seq)

    async def try_again(self, request: Request, continues: AttemptId | None, reason: str) -> Submitted:
        """A new attempt at a turn that was asked for before, adopting the steps of `continues`."""
        ask = ask_of(request)
        session = await self._parts.store.get_session(ask.tenant, ask.session)
        if session is None:
            raise SessionNotFound()
        plan = await self._plan(ask, session)
        plan = _Plan(plan.agent, plan.decision | {"recovery": reason})
        return await asyncio.shield(
            self._live.spawn(self._begin(ask, plan, again=request.turn, continues=continues))
        )


def ask_of(request: Request) -> Ask:
    return Ask(
        tenant=request.tenant,
        session=request.session,
        messages=request.messages or (),
        model=request.model,
        agent_key=request.agent_key,
        options=request.options,
        kind=request.kind,
        key=request.key,
        fingerprint=request.fingerprint,
        caller=request.caller,
        on_leave=request.on_leave,
        accepted=request.accepted,
    )


def _begun(attempt: Attempt, session: Session) -> Begun:
    """The hold of an attempt that is already there. Its base is the head: a held session has not moved."""
    hold = Hold(attempt.tenant, attempt.session, attempt.id, attempt.fence)
    return Begun(hold, attempt.turn, attempt.number, attempt.model, session.head, session)


def _busy(attempt: Attempt) -> SessionBusy:
    waiting = attempt.status is AttemptStatus.WAITING
    what = "waits for an answer" if waiting else "is running"
    return SessionBusy(
        f"a turn of this session {what}; try again when it has ended, or cancel it",
        attempt=attempt.id,
        turn=attempt.turn,
        status=attempt.status.value,
    )


def _error_of(attempt: Attempt) -> LastgoodError | None:
    if attempt.error_code is None:
        return None
    return error_of(attempt.error_code, attempt.error_message or "")
