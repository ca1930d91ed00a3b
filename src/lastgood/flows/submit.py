"""The one pipeline that submits a turn: locate → recall → select input → plan → begin → start.

Up to `plan` nothing is changed, except that the session of a new conversation is created. From
`begin` on the turn belongs to this process: a caller that is cancelled leaves nothing half done.
`core.admission` names what is in the way; one loop retries, and raises when it gives up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, assert_never

from lastgood.core.admission import Admitted, Attach, Busy, Rejected, Replay, admit
from lastgood.core.history import open_calls
from lastgood.core.input_checks import check_input, check_results
from lastgood.errors import (
    Conflict,
    LastgoodError,
    SessionBusy,
    SessionNotFound,
    StaleHead,
    StoreError,
    StoreUnavailable,
    TooManyRequests,
)
from lastgood.flows.asks import check_names, located, placed
from lastgood.flows.begin import Plan, TurnStarter
from lastgood.flows.busy import busy, check_no_tasks
from lastgood.flows.conversations import Conversations
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.outages import outcome_unknown
from lastgood.flows.refused_requests import RefusedRequests
from lastgood.flows.retries import MOST_TRIES, gave_up
from lastgood.flows.running_attempts import RunningAttempts
from lastgood.flows.task_start import WHEN_IDLE, TaskStarter, TaskWishes
from lastgood.flows.turn_handle import TurnHandle
from lastgood.flows.work.enqueue import Enqueuer
from lastgood.model.attempts import After, Ask, Attempt, Begin, BeginConflict, Expected, OnLeave
from lastgood.model.ids import AttemptId, SessionId
from lastgood.model.messages import Message, Role
from lastgood.model.rules import LOCAL, Setter
from lastgood.model.sessions import Session

#: If a client disconnects and sends a new request at once, the new request may be read before the
#: disconnect is noticed. The old turn counts as attended for up to this long.
UNNOTICED_SECONDS = 0.05

#: The session of an ask that names a conversation instead.
NOT_LOCATED = SessionId("")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A session by its client's own name, and a request body of which only a part is new."""

    name: str
    body: tuple[Message, ...]
    reconciles: bool = False  # the body is compared with the history; else only its end counts
    setter: Setter = LOCAL  # who makes the session, if it is not there


@dataclass(frozen=True, slots=True)
class Submission:
    """One request for a turn. With a conversation, the session and the messages of `ask` are found out."""

    ask: Ask
    after: After | None = None  # after the head: appended; after an earlier turn: an edit
    conversation: Conversation | None = None
    wishes: TaskWishes = WHEN_IDLE  # for a turn that is queued for a runtime

    @property
    def can_be_known(self) -> bool:
        """Whether the client may have sent the same request before."""
        return self.ask.key is not None or self.ask.is_retry


class Reservation(AbstractContextManager[Any], Protocol):
    """What a rate limit has taken. Given back when its block ends, unless a turn has begun."""

    def __enter__(self) -> Self: ...

    def until_ended(self, handle: TurnHandle) -> None: ...


#: TooManyRequests: the rate limit is reached.
Reserve = Callable[[], Reservation]


@dataclass(frozen=True, slots=True)
class Draft:
    """A submission on its way through the steps: what is known of its session and its ask by now."""

    submission: Submission
    ask: Ask
    session: Session


class Submitter:
    def __init__(
        self, deps: Dependencies, live: RunningAttempts, conversations: Conversations, enqueuer: Enqueuer
    ) -> None:
        self._deps = deps
        self._live = live
        self._conversations = conversations
        self._refused = RefusedRequests(deps)
        self.beginning = TurnStarter(deps, live, enqueuer)
        self.tasks = TaskStarter(deps, self.beginning, enqueuer)

    async def submit(self, submission: Submission, reserve: Reserve | None = None) -> TurnHandle:
        """`reserve` is asked before anything is read; what it counts are turns that begin."""
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
        """Of a first try without a key: its retry must not be taken for a retry of an older turn that was
        made by the same body."""
        if submission.conversation is not None and not submission.can_be_known:
            await self._refused.remember(**_body(submission.ask, submission.conversation))

    def _unless_refused(self, submission: Submission, conversation: Conversation) -> Submission:
        """A retry of a request that was refused is a first try."""
        if submission.ask.is_retry and self._refused.was_refused(**_body(submission.ask, conversation)):
            return replace(submission, ask=replace(submission.ask, is_retry=False))
        return submission

    async def _within_limits(self, submission: Submission, reserve: Reserve | None) -> TurnHandle:
        if reserve is None:
            return await self._submit(submission)
        try:
            reserved = reserve()
        except TooManyRequests:
            # It may be the very turn that runs: whoever asks for it again begins nothing.
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
            # Whoever asked is gone before there was anything to leave.
            begin.add_done_callback(self._leave_behind)
            raise

    def _leave_behind(self, begin: asyncio.Task[TurnHandle]) -> None:
        if not begin.cancelled() and begin.exception() is None:
            self._live.spawn(begin.result().leave())

    # -- steps that change nothing -----------------------------------------------------

    async def _prepare(self, submission: Submission) -> tuple[Begin, Plan] | TurnHandle:
        """All up to begin. A handle: the same request was sent before, and there is nothing to begin."""
        draft, conversation = await self._locate(submission), submission.conversation
        # What was done already must not look like a wish for another answer.
        compares = conversation is not None and conversation.reconciles
        if compares and (known := await self._recall(draft.ask)) is not None:
            return known
        try:
            draft = await self._select_input(draft)
            plan = await self._plan(draft)
        except LastgoodError:
            # What became of a request is told even if it could not be run any more.
            known = await self._recall(draft.ask)
            if known is None:
                raise
            return known
        return self.beginning.prepare(draft.ask, plan), plan

    async def _locate(self, submission: Submission) -> Draft:
        ask, conversation = submission.ask, submission.conversation
        if conversation is None:
            check_input(ask.messages, ask.kind, self._deps.limits.input_bytes)
            session = await self._deps.store.get_session(ask.tenant, ask.session)
            if session is None:
                raise SessionNotFound()
            return Draft(submission, ask, session)
        session = await self._conversations.find(
            ask.tenant, conversation.name, ask.agent_key or "", conversation.body, conversation.setter
        )
        await self.tasks.check_owner(ask, session)
        return Draft(submission, located(ask, conversation.body, session), session)

    async def _find_known(self, submission: Submission) -> TurnHandle | None:
        """Locates and recalls, but makes no session."""
        ask, conversation = submission.ask, submission.conversation
        if conversation is not None and submission.can_be_known:
            session = await self._deps.store.find_conversation(ask.tenant, conversation.name)
            if session is None:
                return None
            await self.tasks.check_owner(ask, session)
            ask = located(ask, conversation.body, session)
        return await self._recall(ask)

    async def _recall(self, ask: Ask) -> TurnHandle | None:
        """What became of this request before. None: nothing, or it must be tried again."""
        if ask.key is None and not ask.is_retry:
            return None
        found = await self._deps.store.look_up(ask)
        if found.session is not None and found.session.runtime_id is not None:
            return await self.tasks.recall(ask)
        match admit(ask, found):
            case Replay(attempt):
                return self.beginning.watch(ask, attempt, None, replayed=True)
            case Attach(attempt):
                return await self.beginning.attach(ask, attempt)
            case _:
                return None

    async def _select_input(self, draft: Draft) -> Draft:
        """Which messages are new, and where they go. InvalidRequest: there is nothing new."""
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
        return await self.plan(draft.ask, draft.session)

    async def plan(self, ask: Ask, session: Session) -> Plan:
        plan = await self.beginning.plan(ask, session)
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
            # its lease may have ended meanwhile: recovery then tries a durable turn again. A client that is
            # told "busy" or "stale" would send it a second time.
            is_refusal = isinstance(error, Conflict)
            if not lost or (is_refusal and not (submission is not None and begin.ask.durable)):
                raise
            raise outcome_unknown(begin.ask.session, lost[-1]) from error

    async def _begin(
        self, begin: Begin, plan: Plan, submission: Submission | None, lost: list[AttemptId]
    ) -> TurnHandle:
        """The one loop that tries again."""
        first, looks, waits = begin, begin.ask.is_retry, True
        for left in reversed(range(MOST_TRIES)):
            ask = begin.ask
            # Without a key, only what stands there now can tell whether the first try is
            # over: so look before beginning, and begin only if nothing has moved since.
            found = await (
                self._deps.store.look_up(ask) if looks else self.beginning.start(begin, plan, lost)
            )
            if isinstance(found, TurnHandle):
                return found
            looks = False
            match admit(ask, found):
                case Admitted() as admitted:
                    begin = await self._next_try(admitted, found, begin, first, plan)
                    continue
                case Replay(attempt):
                    return self.beginning.watch(ask, attempt, None, replayed=True)
                case Attach(attempt):
                    return await self.beginning.attach(ask, attempt)
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
        for _ in range(MOST_TRIES):
            try:
                return await self.tasks.start(begin, plan, submission.wishes if submission else WHEN_IDLE)
            except StaleHead:
                # A turn was committed at this moment, so other messages of a conversation are new.
                if submission is None or submission.conversation is None or begin.ask.key is not None:
                    raise
            prepared = await self._prepare(submission)
            if isinstance(prepared, TurnHandle):
                return prepared
            begin, plan = prepared
            if plan.runtime is None:
                return await self.begin(begin, plan, submission)
        raise gave_up("queue the turn")

    async def _next_try(
        self, admitted: Admitted, found: BeginConflict, begin: Begin, first: Begin, plan: Plan
    ) -> Begin:
        ask = begin.ask
        if admitted.displace is not None:
            await self.beginning.displace(admitted.displace)
        # Recovery and continue have decided for themselves what the new try adopts.
        if not first.again:
            turn = admitted.again
            begin = first if turn is None else await self.beginning.again(ask, plan, turn, found)
        if ask.is_retry and found.session is not None:
            head = found.session.head
            begin = replace(begin, expected=Expected(head.turn if head else None))
        return begin

    async def _may_be_left(self, submission: Submission, holder: Attempt) -> bool:
        """Whether what stands in a conversation's way is a turn that is orphaned when its client goes."""
        if submission.conversation is None:
            return False
        held = await self._deps.store.read_request(holder.tenant, holder.turn)
        return held is not None and held.on_leave is OnLeave.ORPHAN


def _body(ask: Ask, conversation: Conversation) -> dict[str, Any]:
    """What a retry without a key is known by."""
    return {
        "tenant": ask.tenant,
        "conversation": conversation.name,
        "fingerprint": ask.fingerprint,
        "caller": ask.caller,
    }
