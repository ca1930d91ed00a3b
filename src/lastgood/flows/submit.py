"""The one pipeline that submits a turn: locate → recall → select input → plan → begin → start.

Up to `plan` nothing is changed, except that the session of a new conversation is created. From
`begin` on the turn belongs to this process: a caller that is cancelled leaves nothing half done.
`core.admission` and `core.task_admission` name what is in the way. One loop for turns that run here and
one for turns that become tasks retry up to MOST_TRIES times, and raise when they give up.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, assert_never

from lastgood.core.admission import Admitted, Attach, Busy, Rejected, Replay, admit
from lastgood.core.history import open_calls
from lastgood.core.input_checks import check_input, check_results
from lastgood.errors import (
    Conflict,
    LastgoodError,
    SessionBusy,
    SessionNotFound,
    ShuttingDown,
    StaleHead,
    StoreError,
    StoreUnavailable,
    TooManyRequests,
)
from lastgood.flows.agent_resolution import resolve
from lastgood.flows.ask_placement import check_names, located, placed
from lastgood.flows.begin import Plan, TurnStarter
from lastgood.flows.busy import busy, check_no_tasks
from lastgood.flows.conversations import Conversations
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.outages import outcome_unknown
from lastgood.flows.refused_requests import RefusedRequests
from lastgood.flows.retries import MOST_TRIES, gave_up
from lastgood.flows.running_attempts import RunningAttempts
from lastgood.flows.submission import Conversation, Draft, Reserve, Submission
from lastgood.flows.task_start import WHEN_IDLE, TaskStarter
from lastgood.flows.turn_handle import TurnHandle
from lastgood.flows.work.enqueue import Enqueuer
from lastgood.model.attempts import Ask, Attempt, Begin, BeginConflict, Expected, OnLeave
from lastgood.model.ids import AttemptId
from lastgood.model.messages import Role
from lastgood.model.sessions import Session

#: If a client disconnects and sends a new request at once, the new request may be read before the
#: disconnect is noticed. The old turn counts as attended for up to this long.
UNNOTICED_SECONDS = 0.05


class Submitter:
    def __init__(
        self, deps: Dependencies, live: RunningAttempts, conversations: Conversations, enqueuer: Enqueuer
    ) -> None:
        self._deps = deps
        self._live = live
        self._conversations = conversations
        self._refused = RefusedRequests(deps)
        self.starter = TurnStarter(deps, live, enqueuer)
        self.tasks = TaskStarter(deps, self.starter, enqueuer)

    async def submit(self, submission: Submission, reserve: Reserve | None = None) -> TurnHandle:
        """`reserve` is called before anything is read; it counts turns that begin."""
        check_names(submission.ask)
        conversation = submission.conversation
        if conversation is None:
            return await self._within_limits(submission, reserve)
        try:
            handle = await self._within_limits(self._unless_refused(submission, conversation), reserve)
        except (SessionBusy, TooManyRequests):
            await self.remember_refusal(submission)
            raise
        except StoreError:
            if not submission.can_be_known:
                self._refused.remember_here(**_body(submission.ask, conversation))
            raise
        if self._refused:
            self._refused.forget(**_body(submission.ask, conversation))
        return handle

    async def remember_refusal(self, submission: Submission) -> None:
        """For a first request without a key: its retry must not match an older turn with the same body."""
        if submission.conversation is not None and not submission.can_be_known:
            await self._refused.remember(**_body(submission.ask, submission.conversation))

    def _unless_refused(self, submission: Submission, conversation: Conversation) -> Submission:
        """A retry of a request that was rejected is a first request."""
        if submission.ask.is_retry and self._refused.was_refused(**_body(submission.ask, conversation)):
            return replace(submission, ask=replace(submission.ask, is_retry=False))
        return submission

    async def _within_limits(self, submission: Submission, reserve: Reserve | None) -> TurnHandle:
        if reserve is None:
            return await self._submit(submission)
        try:
            reserved = reserve()
        except TooManyRequests:
            # It may be a repeat of the turn that runs, which begins nothing.
            known = await self._find_known(submission)
            if known is None:
                raise
            return known
        with reserved:
            handle = await self._submit(submission)
            reserved.until_ended(handle)
        return handle

    async def _submit(self, submission: Submission) -> TurnHandle:
        prepared = await self._prepare(submission)
        if isinstance(prepared, TurnHandle):
            return prepared
        begin = self._live.spawn(self.begin(*prepared, submission))
        try:
            return await asyncio.shield(begin)
        except asyncio.CancelledError:
            if begin.cancelled():  # by the shutdown, before it ran at all
                raise ShuttingDown() from None
            # The client disconnected before there was anything to leave.
            begin.add_done_callback(self._leave_behind)
            raise

    def _leave_behind(self, begin: asyncio.Task[TurnHandle]) -> None:
        if not begin.cancelled() and begin.exception() is None:
            self._live.spawn(begin.result().leave())

    # -- steps that change nothing -----------------------------------------------------

    async def _prepare(self, submission: Submission) -> tuple[Begin, Plan] | TurnHandle:
        """All steps up to begin. Returns a handle if the same request was sent before and there is nothing to
        begin."""
        draft, conversation = await self._locate(submission), submission.conversation
        # A repeated request must not look like a request for another answer.
        compares = conversation is not None and conversation.reconciles
        if compares and (known := await self._recall(draft.ask)) is not None:
            return known
        try:
            draft = await self._select_input(draft)
            plan = await self._plan(draft)
        except LastgoodError:
            # The outcome of an earlier request is returned even if it could not run any more.
            known = await self._recall(draft.ask)
            if known is None:
                raise
            return known
        return self.starter.prepare(draft.ask, plan), plan

    async def _locate(self, submission: Submission) -> Draft:
        ask, conversation = submission.ask, submission.conversation
        if conversation is None:
            check_input(ask.messages, ask.kind, self._deps.limits.input_bytes)
            found = await self._deps.store.locate_session(ask.tenant, ask.session, ask.agent_key)
            if found is None:
                raise SessionNotFound()
            await self.tasks.check_reader(ask, found.session)
            return Draft(submission, ask, found.session, found.unbound_agent)
        assert ask.agent_key is not None, "a conversation is with the agent that its request names"
        found = await self._deps.store.locate_conversation(ask.tenant, conversation.name, ask.agent_key)
        unbound = None if found is None else found.unbound_agent
        # Before a session is created: an agent that is not published is not found.
        agent, _ = await resolve(self._deps.agents, ask.agent_key)
        await self.tasks.reach_by_chat(ask.tenant, agent, unbound)
        if found is not None:
            session = found.session
        else:
            session = await self._conversations.open(
                ask.tenant, conversation.name, ask.agent_key, conversation.body, conversation.setter
            )
        await self.tasks.check_reader(ask, session)
        return Draft(submission, located(ask, conversation.body, session), session, unbound)

    async def _find_known(self, submission: Submission) -> TurnHandle | None:
        """Locates and recalls, but creates no session."""
        ask, conversation, store = submission.ask, submission.conversation, self._deps.store
        if not submission.can_be_known:
            return None
        session = await (
            store.get_session(ask.tenant, ask.session)
            if conversation is None
            else store.find_conversation(ask.tenant, conversation.name)
        )
        if session is None:
            return None
        try:
            await self.tasks.check_reader(ask, session)
        except SessionNotFound:
            return None  # the answer is that for an unknown session: the rate limit is exceeded
        return await self._recall(ask if conversation is None else located(ask, conversation.body, session))

    async def _recall(self, ask: Ask) -> TurnHandle | None:
        """Returns the handle of the same earlier request. None: there was none, or it must be tried again."""
        if ask.key is None and not ask.is_retry:
            return None
        found = await self._deps.store.look_up(ask)
        if found.session is not None and found.session.runtime_id is not None:
            return await self.tasks.recall(ask)
        match admit(ask, found):
            case Replay(attempt):
                return self.starter.watch(ask, attempt, None, replayed=True)
            case Attach(attempt):
                return await self.starter.attach(ask, attempt)
            case _:
                return None

    async def _select_input(self, draft: Draft) -> Draft:
        """Decides which messages are new, and where they go. InvalidRequest: there is nothing new."""
        submission, session = draft.submission, draft.session
        conversation = submission.conversation
        if conversation is None:
            if submission.after is None:
                return draft
            return replace(draft, ask=placed(draft.ask, session, submission.after))
        place = await self._conversations.place(
            session, conversation.body, reconciles=conversation.reconciles
        )
        check_input(place.messages, draft.ask.kind, self._deps.limits.input_bytes)
        ask = replace(
            draft.ask,
            messages=place.messages,
            edit=place.edit,
            is_first=session.head is None,
            # What is new was found by comparing with this head.
            expected_head=session.head.turn if session.head and conversation.reconciles else None,
        )
        return replace(draft, ask=ask)

    async def _plan(self, draft: Draft) -> Plan:
        if draft.ask.messages:  # a reset adds nothing, and is always allowed
            await self._deps.quotas.check(draft.ask.tenant, draft.session.created_by)
        return await self.plan(draft.ask, draft.session, draft.unbound_agent)

    async def plan(self, ask: Ask, session: Session, unbound_agent: str | None = None) -> Plan:
        plan = await self.starter.plan(ask, session, unbound_agent)
        if plan.runtime is not None:
            return plan
        await check_no_tasks(self._deps.store, session)
        if ask.messages and ask.messages[0].role is Role.TOOL:
            history = await self._deps.histories.at(ask.tenant, plan.base)
            check_results(ask.messages, open_calls(history.tail))
        return plan

    # -- begin and start ---------------------------------------------------------------

    async def begin(self, begin: Begin, plan: Plan, submission: Submission | None = None) -> TurnHandle:
        """Without a submission, what begins was decided by the caller."""
        if plan.runtime is not None:
            return await self._enqueue(begin, plan, submission)
        lost: list[AttemptId] = []
        try:
            return await self._begin(begin, plan, submission, lost)
        except (StoreUnavailable, Conflict) as error:
            # What failed now did nothing. But the begin whose answer was lost may have begun the turn, and
            # its lease may have ended meanwhile: recovery then tries a durable turn again. A client that gets
            # "busy" or "stale" would send it a second time.
            is_refusal = isinstance(error, Conflict)
            if not lost or (is_refusal and not (submission is not None and begin.ask.durable)):
                raise
            raise outcome_unknown(begin.ask.session, lost[-1]) from error
        except asyncio.CancelledError:
            # Only the shutdown cancels a begin; its client is still connected. A turn that has begun ends
            # uncommitted, unless recovery tries it again.
            if lost and begin.ask.durable:
                raise outcome_unknown(begin.ask.session, lost[-1]) from None
            raise ShuttingDown() from None

    async def _begin(
        self, begin: Begin, plan: Plan, submission: Submission | None, lost: list[AttemptId]
    ) -> TurnHandle:
        """The retry loop of turns that run here."""
        first, looks, waits = begin, begin.ask.is_retry, True
        for left in reversed(range(MOST_TRIES)):
            ask = begin.ask
            # Without a key, only the current state shows whether the first request is over: so read it before
            # beginning, and begin only if nothing has changed since.
            found = await (self._deps.store.look_up(ask) if looks else self.starter.start(begin, plan, lost))
            if isinstance(found, TurnHandle):
                return found
            looks = False
            match admit(ask, found):
                case Admitted() as admitted:
                    begin = await self._next_try(admitted, found, begin, first, plan)
                    continue
                case Replay(attempt):
                    return self.starter.watch(ask, attempt, None, replayed=True)
                case Attach(attempt):
                    return await self.starter.attach(ask, attempt)
                case Busy(attempt):
                    if submission is None or not waits or not await self._may_be_left(submission, attempt):
                        raise busy(attempt)
                    waits = False
                    await asyncio.sleep(UNNOTICED_SECONDS)
                case Rejected(StaleHead() as error) if submission and submission.conversation:
                    # A turn was committed at this moment, so other messages are new. Or the first try of
                    # a key meant a head that is gone, which no repetition brings back.
                    if ask.key is not None and not left:
                        raise error
                case Rejected(error):
                    raise error
                case never:
                    assert_never(never)
            assert submission is not None
            prepared = await self._prepare(submission)
            if isinstance(prepared, TurnHandle):
                return prepared
            (begin, plan), looks = prepared, begin.ask.is_retry
            first = begin
        raise gave_up("start the turn")

    async def _enqueue(self, begin: Begin, plan: Plan, submission: Submission | None) -> TurnHandle:
        """The retry loop of turns that become tasks."""
        wishes, looks = submission.wishes if submission else WHEN_IDLE, begin.ask.is_retry
        for _ in range(MOST_TRIES):
            try:
                found = await self.tasks.try_start(begin, plan, wishes, looks=looks)
            except StaleHead:
                # A turn was committed at this moment, so other messages of a conversation are new.
                if submission is None or submission.conversation is None or begin.ask.key is not None:
                    raise
            else:
                if isinstance(found, TurnHandle):
                    return found
                begin, looks = found, False
                continue
            prepared = await self._prepare(submission)
            if isinstance(prepared, TurnHandle):
                return prepared
            (begin, plan), looks = prepared, prepared[0].ask.is_retry
            if plan.runtime is None:
                return await self.begin(begin, plan, submission)
        raise gave_up("queue the turn")

    async def _next_try(
        self, admitted: Admitted, found: BeginConflict, begin: Begin, first: Begin, plan: Plan
    ) -> Begin:
        ask = begin.ask
        if admitted.displace is not None:
            await self.starter.displace(admitted.displace)
        # Recovery and continue have decided for themselves what the new try adopts.
        if not first.again:
            turn = admitted.again
            begin = first if turn is None else await self.starter.again(ask, plan, turn, found)
        if ask.is_retry and found.session is not None:
            head = found.session.head
            begin = replace(begin, expected=Expected(head.turn if head else None))
        return begin

    async def _may_be_left(self, submission: Submission, holder: Attempt) -> bool:
        """Whether the turn in a conversation's way is orphaned when its client disconnects."""
        if submission.conversation is None:
            return False
        held = await self._deps.store.read_request(holder.tenant, holder.turn)
        return held is not None and held.on_leave is OnLeave.ORPHAN


def _body(ask: Ask, conversation: Conversation) -> dict[str, Any]:
    """The fields that identify a retry without a key."""
    return {
        "tenant": ask.tenant,
        "conversation": conversation.name,
        "fingerprint": ask.fingerprint,
        "caller": ask.caller,
    }
