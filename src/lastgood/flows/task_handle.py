"""The handle of a turn on a runtime: the same interface as for any other turn.

Its task waits in the queue, is claimed by a worker, and may be claimed again: each claim is an attempt. A
caller follows the task: the end of an attempt that is retried is not the end of the turn. Every process can
read all of this from the store.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from lastgood.core.task_reason import why
from lastgood.errors import LastgoodError, SessionNotFound, StoreUnavailable, TurnCancelled, error_of
from lastgood.flows.event_feed import follow
from lastgood.flows.outages import outcome_unknown, through_outage
from lastgood.flows.turn_handle import QueuedTurn, TurnHandle
from lastgood.flows.turn_outcome import Outcome
from lastgood.flows.verified_history import find_verified
from lastgood.flows.work.questions import decision_on
from lastgood.model.answers import AnswerAction
from lastgood.model.attempts import NO_LIMIT, Attempt, AttemptStatus
from lastgood.model.audit import AuditEntry, AuditKind
from lastgood.model.events import TERMINAL, AttemptFailed, EventKind, StoredEvent
from lastgood.model.ids import AttemptId, TaskId
from lastgood.model.tasks import Task, TaskStatus

T = TypeVar("T")

#: Terminal events of an attempt; not passed on if the task is retried.
_LAST_WORDS = TERMINAL | {EventKind.ATTEMPT_ERRED, EventKind.ATTEMPT_ENDED}
#: The attempt status that a client of the turn sees, by task status.
_ENDED = {
    TaskStatus.COMPLETED: AttemptStatus.COMMITTED,
    TaskStatus.FAILED: AttemptStatus.FAILED,
    TaskStatus.CANCELLED: AttemptStatus.CANCELLED,
}

_WHY_DENIED = "This tool call needs human approval, which is not available on this API"
_DENIED = {"allowed": False, "reason": _WHY_DENIED}


@dataclass(frozen=True, slots=True)
class TaskTurnHandle(TurnHandle):
    """`attempt` is the newest claim's when this was made; None: nobody had claimed the task yet."""

    task: TaskId = field(kw_only=True)
    _began: bool = field(kw_only=True, default=False)  # by this request; False: it attached
    _denies: bool = field(kw_only=True, default=False)  # questions cannot be answered over this API
    #: Set for a turn that could not be read later. Every other one keeps running without its client.
    _abandon: Callable[[], Awaitable[None]] | None = field(kw_only=True, default=None)

    @property
    def task_id(self) -> TaskId | None:
        return self.task

    async def events(self, *, from_begin: bool = True) -> AsyncGenerator[StoredEvent, None]:
        """Of all claims of the task, until the task ends."""
        ours: dict[AttemptId, bool] = {}
        is_last: dict[AttemptId, bool] = {}
        feed = follow(self._deps, self.tenant, self.session, after=self._after_event, is_over=self._is_over)
        async with aclosing(feed) as events:
            async for event in events:
                if event.attempt is None:
                    if isinstance(event.data, AttemptFailed) and event.data.turn == self.turn:
                        yield event  # it ended in the queue, so no attempt says so
                        return
                    continue
                if not await self._is_ours(event.attempt, ours):
                    continue
                if event.kind in _LAST_WORDS and not await self._is_last(event.attempt, is_last):
                    continue
                if event.kind is EventKind.ATTEMPT_WAITS and self._denies:
                    await self._deny()
                    continue
                yield event
                if event.kind is EventKind.ATTEMPT_ENDED:
                    return

    async def _is_ours(self, attempt: AttemptId, known: dict[AttemptId, bool]) -> bool:
        if attempt not in known:
            found = await self._read(partial(self._deps.store.get_attempt, self.tenant, attempt))
            known[attempt] = found is not None and found.turn == self.turn
        return known[attempt]

    async def _is_last(self, attempt: AttemptId, known: dict[AttemptId, bool]) -> bool:
        """Whether the task ended with this attempt. Decided once: its last events are stored together."""
        if attempt not in known:
            task = await self._find_task()
            known[attempt] = task is None or (task.ended_at is not None and task.attempt == attempt)
        return known[attempt]

    async def outcome(self) -> Outcome:
        try:
            return await self._outcome_of(await self._until_ended())
        except StoreUnavailable as error:
            raise outcome_unknown(self.session, self.attempt) from error

    async def _until_ended(self) -> Task:
        subscription = self._deps.signals.listen(self.session)
        try:
            while True:
                task = await self._find_task()
                if task is None:
                    raise SessionNotFound("The session was deleted while its turn was waiting or running")
                if task.ended_at is not None:
                    return task
                if task.status is TaskStatus.WAITING and self._denies:
                    await self._deny()
                await subscription.wait(self._deps.limits.poll_seconds)
                subscription.take()
        finally:
            self._deps.signals.leave(self.session, subscription)

    async def _deny(self) -> None:
        """A call that needs approval is denied, with the reason for the agent."""
        for question in await self._read(partial(self._deps.store.list_questions, self.tenant, self.session)):
            about = decision_on(question, AnswerAction.REJECT, _WHY_DENIED)
            node = self._deps.node
            audit = AuditEntry(self.tenant, AuditKind.APPROVAL, "", "", self.session, about, node)
            await self._deps.store.answer_question(self.tenant, self.task, question.id, _DENIED, "", audit)

    async def _outcome_of(self, task: Task) -> Outcome:
        status = _ENDED[task.status]
        if task.status is TaskStatus.COMPLETED:
            store = self._deps.store
            turn = await self._read(lambda: find_verified(store, self.tenant, task.turn))
            return Outcome(task.attempt, status, turn, task=task.id)
        effects = await self._had_effects()
        return Outcome(task.attempt, status, None, _error_of(task), effects, task.id)

    async def _had_effects(self) -> bool:
        """Whether any of its claims has run a tool: sent again as a new turn, it would run it again."""
        store = self._deps.store
        tries = await self._read(partial(store.attempts_of_turn, self.tenant, self.turn, limit=NO_LIMIT))
        return any(attempt.ran_tools for attempt in tries)

    async def leave(self) -> None:
        if self._abandon is not None:
            await self._abandon()

    async def stored(self) -> Attempt | QueuedTurn:
        task = await self._find_task()
        if task is None:
            raise SessionNotFound()
        if task.attempt is not None:
            attempt = await self._read(partial(self._deps.store.get_attempt, self.tenant, task.attempt))
            if attempt is not None:
                return attempt
        runtime = await self._read(partial(self._deps.store.get_runtime, self.tenant, task.runtime))
        ahead = await self._read(partial(self._deps.store.open_tasks, self.tenant, self.session))
        first = ahead[0].id if ahead and ahead[0].id != task.id else None
        return QueuedTurn(task, why(task, runtime, first, self._deps.clock.now()))

    def call_when_ended(self, ended: Callable[[], None]) -> bool:
        """Counts as a begun turn, although nothing runs here."""
        if self._began:
            ended()
        return self._began

    async def _is_over(self) -> bool:
        task = await self._find_task()
        return task is None or task.ended_at is not None

    async def _find_task(self) -> Task | None:
        return await self._read(partial(self._deps.store.get_task, self.tenant, self.task))

    async def _read(self, read: Callable[[], Awaitable[T]]) -> T:
        return await through_outage(read, self._deps.limits.outage_seconds)


def _error_of(task: Task) -> LastgoodError:
    if task.error_code is None:
        return TurnCancelled()
    return error_of(task.error_code, task.error_message or "")
