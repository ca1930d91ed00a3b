"""The steps from an ask to a run: plan it, take the session, end what is in the way, start the run.

Everything before `begin` changes nothing. From the hold on, the attempt belongs to this
process: begin and run are its tasks, not the caller's, so nothing is left half done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lastgood.core.admission import Displace
from lastgood.core.lifecycle import Move, after
from lastgood.core.parking_policy import parking_of
from lastgood.core.recovery import TryAgain, try_again
from lastgood.errors import (
    Conflict,
    InvalidRequest,
    LastgoodError,
    OutcomeUnknown,
    StaleHead,
    TurnFailed,
    TurnNotFound,
)
from lastgood.flows.agent_resolution import resolve
from lastgood.flows.attempt_end import AttemptStop, failed_events, words_of
from lastgood.flows.attempt_log import log_end
from lastgood.flows.attempt_run import Run
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.outages import through_outage
from lastgood.flows.running_attempts import RunningAttempts
from lastgood.flows.titles import name_session
from lastgood.flows.turn_handle import AttendedTurnHandle, LocalTurnHandle, TurnHandle
from lastgood.flows.verified_history import find_verified, had_effects
from lastgood.flows.work.enqueue import Enqueuer, RuntimePlan, RuntimeWish
from lastgood.model.agents import AgentSpec
from lastgood.model.attempts import (
    Ask,
    Attempt,
    Begin,
    BeginConflict,
    Begun,
    Expected,
    Hold,
    OnLeave,
    Step,
)
from lastgood.model.audit import AuditEntry
from lastgood.model.events import AttemptStarted, Event, UserSaid
from lastgood.model.ids import AttemptId, TurnId
from lastgood.model.messages import Role
from lastgood.model.sessions import Head, Session, TurnKind

log = logging.getLogger(__name__)

#: A steer that the previous attempt received was dropped since, so its steps answer a deleted message.
STEERS_GONE = TryAgain(False, "a steer of the previous attempt was removed, so it restarts from its input")


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything decided before begin: a rejection up to here has changed nothing."""

    agent: AgentSpec | None
    decision: dict[str, Any]
    base: Head | None = None  # the turn that it follows, in the session as it was read
    runtime: RuntimePlan | None = None  # None: it runs here; else it is queued for that runtime
    session: Session | None = None


class TurnStarter:
    def __init__(self, deps: Dependencies, live: RunningAttempts, enqueuer: Enqueuer) -> None:
        self._deps = deps
        self._live = live
        self._enqueuer = enqueuer

    async def plan(self, ask: Ask, session: Session, unbound_agent: str | None = None) -> Plan:
        """`unbound_agent`: an agent that had no binding when the session was read."""
        base = await self.base_of(ask, session)
        if ask.kind is not TurnKind.RUN:
            return Plan(None, {"agent": "none", "reason": "no model is called"}, base)
        agent, decision = await self.resolve(ask, session)
        runtime = await self._enqueuer.choose(_wish(ask, session, agent, unbound_agent))
        if runtime is not None:
            decision |= {"runtime": runtime.runtime.id, "runtime_reason": runtime.reason}
            return Plan(agent, decision, base, runtime, session)
        if session.runtime_id is not None and session.working_dir is not None:
            # Its worker checked the path; this server did not, so it would bypass --working-dir-root.
            raise Conflict(
                f"The working directory {session.working_dir} is on the machine of runtime "
                f"{session.runtime_id}; bind the session to a runtime, or create a new session"
            )
        # Before anything is written: a bad reference leaves no trace.
        model = ask.model if ask.model is not None else session.model or agent.model
        self._deps.engine.check_model(model, agent)
        return Plan(agent, decision, base)

    async def resolve(self, ask: Ask, session: Session) -> tuple[AgentSpec, dict[str, Any]]:
        if not ask.agent_key and not session.agent_key:
            raise InvalidRequest(
                "This session has no agent yet; name one in the request, or rebind the session"
            )
        agent, decision = await resolve(self._deps.agents, ask.agent_key or session.agent_key)
        if ask.agent_key is not None and ask.agent_key != session.agent_key:
            decision["reason"] = f"the request names this agent; the session's own is {session.agent_key!r}"
        if agent.stale:
            log.warning("agent %s runs from its last valid definition: %s", agent.key, agent.stale)
        return agent, decision

    async def choose(self, ask: Ask, session: Session, agent: AgentSpec) -> RuntimePlan | None:
        """None: the turn runs here. RuntimeNotFound also for a runtime that the user may not use."""
        return await self._enqueuer.choose(_wish(ask, session, agent))

    async def base_of(self, ask: Ask, session: Session) -> Head | None:
        """Returns the turn that the ask continues from. StaleHead: the head that an edit replaces is not the
        head now.

        TurnNotFound: the base is not in the chain of that head. Chains never change, so what is true of
        one here is true at begin, which compares the head again.
        """
        edit, head = ask.edit, session.head
        if edit is None:
            return head
        if head is None or head.turn != edit.replaces:
            raise StaleHead(head=head and head.turn)
        if edit.after is None:
            return None
        turn = await find_verified(self._deps.store, ask.tenant, edit.after)
        there = turn and await self._deps.store.turn_at(ask.tenant, head.turn, turn.seq)
        if turn is None or there is None or there.id != turn.id:
            raise TurnNotFound()
        return turn.head

    def prepare(self, ask: Ask, plan: Plan, again: TurnId | None = None) -> Begin:
        return Begin(
            ask=ask,
            turn=again or self._deps.ids.turn(),
            attempt=self._deps.ids.attempt(),
            holder=self._deps.node,
            lease_seconds=self._live.lease_seconds,
            agent_key=plan.agent.key if plan.agent else "",
            agent_digest=plan.agent.digest if plan.agent else "",
            agent_model=plan.agent.model if plan.agent else "",
            decision=plan.decision,
            again=again is not None,
            base=plan.base if ask.edit else None,
        )

    async def start(self, begin: Begin, plan: Plan, lost: list[AttemptId]) -> TurnHandle | BeginConflict:
        """Takes the session and starts the run, or returns what is in the way. `lost` receives the attempt if
        its begin was sent and not answered."""
        sent = self._deps.clock.monotonic()
        events = _begin_events(begin, plan.agent)
        with self._live.expecting(begin.attempt):
            found = await self._begin_once(begin, events, lost)
            if isinstance(found, BeginConflict):
                return found
            run = Run(self._deps, begin, found, plan.agent, sent)
            return self.run(run, after_event=found.session.last_event_seq - len(events))

    async def fail(self, begin: Begin, error: LastgoodError) -> bool:
        """Begins an attempt that fails at once. False: the session is busy, or the turn is committed."""
        with self._live.expecting(begin.attempt):
            if isinstance(await self._begin_once(begin, (), []), BeginConflict):
                return False
            begun = await self._deps.store.get_attempt(begin.ask.tenant, begin.attempt)
            return begun is not None and await self.end(begun, Move.FAIL, error)

    async def again(self, ask: Ask, plan: Plan, turn: TurnId, found: BeginConflict) -> Begin:
        """The same turn, tried again by its client: after the finished steps of its newest try, if they
        were made for what is there now. Begin compares the head and the try again: both may have moved."""
        tried, session = found.prior_attempt, found.session
        assert session is not None
        begin = self.prepare(ask, plan, turn)
        # No attempt: its task ended before a worker claimed it. Steps of a worker cannot be continued here.
        if plan.agent is None or tried is None or tried.task is not None:
            return begin
        steps = await self._deps.store.read_steps(ask.tenant, tried.id)
        head = session.head.turn if session.head else None
        model = ask.model or session.model or plan.agent.model
        decided = try_again(tried, steps, head=head, digest=plan.agent.digest, model=model)
        steers = await self.steers_in(ask, steps)
        if decided.adopt and steers is None:
            decided = STEERS_GONE
        begin = replace(begin, decision=plan.decision | {"recovery": decided.reason})
        if not decided.adopt:
            return begin
        return replace(
            begin,
            continues=tried.id,
            follows=tried.number,
            reclaims=steers or (),
            expected=Expected(tried.head),
        )

    async def steers_in(self, ask: Ask, steps: Sequence[Step]) -> tuple[int, ...] | None:
        """Returns the queue numbers of the steers in these steps, or None if some are no longer queued."""
        steers = tuple(step.queued for step in steps if step.queued)
        if steers:
            queue = await self._deps.store.read_queue(ask.tenant, ask.session)
            if not {item.number for item in queue}.issuperset(steers):
                return None
        return steers

    async def _begin_once(
        self, begin: Begin, events: tuple[Event, ...], lost: list[AttemptId]
    ) -> Begun | BeginConflict:
        try:
            return await self._deps.store.begin_if_free(begin, events)
        except OutcomeUnknown:
            lost.append(begin.attempt)
        except asyncio.CancelledError:
            lost.append(begin.attempt)
            raise
        # The same ids again: if the first begin did happen, it is what is in the way.
        found = await through_outage(
            lambda: self._deps.store.begin_if_free(begin, events), self._deps.limits.outage_seconds
        )
        if isinstance(found, BeginConflict) and found.holder is not None and found.holder.id == begin.attempt:
            assert found.session is not None
            return begun_of(found.holder, found.session, begin.base_at(found.session.head))
        return found

    async def displace(self, displace: Displace) -> None:
        attempt, move = displace.attempt, displace.move
        error = TurnFailed(
            "Superseded by another request"
            if move is Move.SUPERSEDE
            else "The server process that ran this turn died"
        )
        run = self._live.get(attempt.id)
        if run is not None and move is Move.SUPERSEDE:
            await self._live.stop(run, AttemptStop(move, error))
            return
        died = move is Move.INTERRUPT
        await self.end(attempt, move, error, only_if_expired=died, died=died)

    async def end(
        self,
        attempt: Attempt,
        move: Move,
        error: LastgoodError,
        *,
        only_if_expired: bool = False,
        died: bool = False,
        by_person: bool = False,
        audit: AuditEntry | None = None,
    ) -> bool:
        """Ends an attempt that nobody here holds. False: it had ended already."""
        status = after(attempt.status, move)
        effects = await had_effects(self._deps.store, attempt)
        ended = await self._deps.store.finish_if_held(
            attempt.hold,
            status,
            words_of(error),
            failed_events(attempt.turn, attempt.id, status, error, has_effects=effects),
            only_if_expired=only_if_expired,
            died=died,
            parking=parking_of(status, words_of(error)[1], died=died, by_person=by_person),
            audit=audit,
        )
        if ended:
            log_end(attempt.hold, attempt.turn, attempt.number, status, error, has_effects=effects)
        self._deps.signals.notify(attempt.session)
        return ended

    def run(self, run: Run, *, after_event: int) -> TurnHandle:
        self._live.start(run)
        if run.agent is not None and not run.begun.session.title:
            self._live.spawn(name_session(self._deps, run, run.agent), may_be_cut=True)
        session = run.begun.session
        held = (session.tenant, session.id, run.begun.turn, run.hold.attempt)
        return LocalTurnHandle(self._deps, *held, after_event, _live=self._live, _run=run, _began=True)

    async def attach(self, ask: Ask, attempt: Attempt) -> TurnHandle:
        run = self._live.get(attempt.id)
        if run is not None:
            await self._live.attach(run)
        elif attempt.orphaned:
            await self._deps.store.set_orphaned(attempt.hold, False)
        if run is None and ask.on_leave is OnLeave.ORPHAN and attempt.task is None:
            found = (ask.tenant, ask.session, attempt.turn, attempt.id)
            attending = self._live.attend(attempt)
            return AttendedTurnHandle(self._deps, *found, _attending=attending, _hold=attempt.hold)
        return self.watch(ask, attempt, run)

    def watch(self, ask: Ask, attempt: Attempt, run: Run | None, *, replayed: bool = False) -> TurnHandle:
        found = (ask.tenant, ask.session, attempt.turn, attempt.id)
        if run is None:
            return TurnHandle(self._deps, *found, replayed=replayed)
        return LocalTurnHandle(
            self._deps, *found, replayed=replayed, _live=self._live, _run=run, _began=False
        )


def begun_of(attempt: Attempt, session: Session, base: Head | None) -> Begun:
    """The hold of an attempt that is already there. A held session has not moved since it began."""
    hold = Hold(attempt.tenant, attempt.session, attempt.id, attempt.fence)
    return Begun(hold, attempt.turn, attempt.number, attempt.model, base, session)


def _wish(ask: Ask, session: Session, agent: AgentSpec, unbound_agent: str | None = None) -> RuntimeWish:
    return RuntimeWish(
        tenant=ask.tenant,
        user=session.owner if ask.owner is None else ask.owner,
        agent_key=agent.key,
        harness=agent.harness,
        session=session,
        unbound_agent=unbound_agent,
        is_chat=ask.over_chat,
    )


def _begin_events(begin: Begin, agent: AgentSpec | None) -> tuple[Event, ...]:
    started = AttemptStarted(
        begin.turn,
        begin.attempt,
        agent.name if agent else "",
        begin.ask.edit,
        begin.continues,
        begin.decision.get("recovery"),
    )
    return (
        Event(begin.attempt, started),
        *(
            Event(begin.attempt, UserSaid(message))
            for message in begin.ask.messages
            if message.role is Role.USER
        ),
    )
