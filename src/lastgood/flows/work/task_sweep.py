"""Ends tasks that have waited or run for too long.

Every node sweeps; each write names its condition. Ignores expired leases: such a task can be claimed again,
and nothing else happens.
"""

from __future__ import annotations

import asyncio
import logging

from lastgood.core.runtime_choice import OFFLINE_SECONDS
from lastgood.errors import RuntimeOffline, SessionNotFound, StoreError, TaskDeadline
from lastgood.flows.attempt_end import failed_events, unclaimed_events, words_of
from lastgood.flows.attempt_log import log_claim_end
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.sessions import Sessions
from lastgood.flows.work.questions import decision_on
from lastgood.flows.work.work_limits import WorkLimits
from lastgood.model.attempts import AttemptStatus
from lastgood.model.audit import AuditEntry, AuditKind
from lastgood.model.tasks import HELD_TASKS, Question, QuestionStatus, Task, TaskEnd, TaskStatus

log = logging.getLogger(__name__)

_PAGE = 100


class TaskSweep:
    def __init__(self, deps: Dependencies, sessions: Sessions, limits: WorkLimits) -> None:
        self._deps = deps
        self._store = deps.store
        self._sessions = sessions
        self._limits = limits

    async def sweep(self) -> int:
        """Returns how many tasks it ended."""
        ended = 0
        for task in await self._store.overdue_tasks(_PAGE):
            ended += await (self._expire_claim(task) if task.status in HELD_TASKS else self._expire(task))
        for question in await self._store.expire_questions(_PAGE, self._expired):
            self._deps.signals.notify(question.session)
        await self._store.notice_offline(OFFLINE_SECONDS, _PAGE)
        await self._delete_ephemeral()
        return ended

    def _expired(self, question: Question) -> AuditEntry:
        about = decision_on(question, QuestionStatus.EXPIRED.value)
        return AuditEntry(
            question.tenant, AuditKind.APPROVAL, "", "", question.session, about, self._deps.node
        )

    async def _expire(self, task: Task) -> bool:
        error = RuntimeOffline("No worker claimed this task in time; start the worker of its runtime")
        end = TaskEnd(task.id, TaskStatus.FAILED, error=words_of(error))
        events = unclaimed_events(task.turn, AttemptStatus.FAILED, error)
        ended = await self._store.end_queued_task(task.tenant, end, events)
        if ended:
            fields = {"code": error.code, "tenant": task.tenant, "session": task.session, "turn": task.turn}
            log.warning("no worker claimed a task in time", extra={"fields": {**fields, "task": task.id}})
        self._deps.signals.notify(task.session)
        return ended

    async def _expire_claim(self, task: Task) -> bool:
        attempt = task.attempt and await self._store.get_attempt(task.tenant, task.attempt)
        if not attempt:
            return False
        error, status = TaskDeadline(), AttemptStatus.FAILED
        end = TaskEnd(task.id, TaskStatus.FAILED, error=words_of(error), counts_failure=True)
        events = failed_events(attempt.turn, attempt.id, status, error, has_effects=True)
        ended = await self._store.finish_if_held(attempt.hold, status, words_of(error), events, task=end)
        if ended:
            log_claim_end(attempt, status, error, has_effects=True, task_status=end.status.value)
        self._deps.signals.notify(task.session)
        return ended

    async def _delete_ephemeral(self) -> None:
        """Sessions of stateless requests whose server died before it could delete them."""
        age = self._limits.ephemeral_seconds
        for tenant, session in await self._store.ended_ephemeral(age_seconds=age, limit=_PAGE):
            try:
                await self._sessions.delete(tenant, session)
            except SessionNotFound:
                continue

    async def keep_sweeping(self) -> None:
        while True:
            try:
                await self.sweep()
            except StoreError as error:
                log.warning("the sweep of tasks failed and is retried: %s", error)
            except Exception:  # one row that cannot be read must not end all sweeps
                log.exception("the sweep of tasks failed and is retried")
            await asyncio.sleep(self._limits.sweep_seconds)
