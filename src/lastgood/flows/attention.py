"""What needs a person's attention: questions, failures by cause, parked and held work, offline runtimes.

Read-only. What a user may not read is neither listed nor counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lastgood.core.runtime_choice import is_offline
from lastgood.flows.approvals import Approvals, PendingQuestion
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.work.tasks import ShownTask, Tasks
from lastgood.flows.work.visibility import WorkAccess
from lastgood.model.attempts import Attempt
from lastgood.model.ids import SessionId, TenantId
from lastgood.model.queue import Queued
from lastgood.model.runtimes import Runtime
from lastgood.model.sessions import Session
from lastgood.model.tasks import TaskFilter, TaskStatus

#: Limit of entries per list.
MOST = 200
#: How old a failure may be.
FAILURES_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Failures:
    """Of one cause, in the last hour. `newest` is an example."""

    code: str
    count: int
    sessions: int
    newest: Attempt


@dataclass(frozen=True, slots=True)
class WaitingSession:
    session: Session
    questions: tuple[PendingQuestion, ...]


class Attention:
    def __init__(self, deps: Dependencies, approvals: Approvals, access: WorkAccess, tasks: Tasks) -> None:
        self._store = deps.store
        self._approvals = approvals
        self._access = access
        self._tasks = tasks

    async def questions(self, tenant: TenantId, user: str, *, limit: int = 50) -> tuple[WaitingSession, ...]:
        """Sessions that wait for a person, newest first."""
        here = await self._store.waiting_sessions(tenant, limit=limit)
        tasks, _ = await self._tasks.list(
            tenant, user, TaskFilter(statuses=(TaskStatus.WAITING,)), limit=limit, cursor=None
        )
        readable = await self._readable(tenant, [*here, *(one.task.session for one in tasks)], user)
        found = []
        for id, session in readable.items():
            if questions := await self._approvals.pending(tenant, id, user):
                found.append(WaitingSession(session, questions))
        return tuple(found)

    async def failures(self, tenant: TenantId, user: str) -> tuple[Failures, ...]:
        """By cause, the most frequent first."""
        by_code: dict[str, list[Attempt]] = {}
        failed = await self._store.failures(tenant, age_seconds=FAILURES_SECONDS, limit=MOST)
        readable = await self._readable(tenant, [one.session for one in failed], user)
        for attempt in failed:
            if attempt.session in readable:
                by_code.setdefault(attempt.error_code or attempt.status.value, []).append(attempt)
        found = [
            Failures(code, len(tries), len({one.session for one in tries}), tries[0])
            for code, tries in by_code.items()
        ]
        return tuple(sorted(found, key=lambda one: -one.count))

    async def parked(self, tenant: TenantId, user: str) -> tuple[Queued, ...]:
        entries = await self._store.parked(tenant, limit=MOST)
        readable = await self._readable(tenant, [one.session for one in entries], user)
        return tuple(one for one in entries if one.session in readable)

    async def held(self, tenant: TenantId, user: str) -> tuple[ShownTask, ...]:
        """Unfinished tasks that no worker runs: held, deferred, or waiting for a runtime."""
        waiting = (TaskStatus.QUEUED, TaskStatus.DEFERRED)
        shown, _ = await self._tasks.list(tenant, user, TaskFilter(statuses=waiting), limit=50, cursor=None)
        return shown

    async def offline(self, tenant: TenantId, user: str) -> tuple[Runtime, ...]:
        return tuple(_offline(await self._access.usable(tenant, user)))

    async def _readable(
        self, tenant: TenantId, ids: Iterable[SessionId], user: str
    ) -> dict[SessionId, Session]:
        """In the order of the ids. Pages read this every few seconds, so there is one read of all sessions,
        and one of each runtime."""
        wanted = dict.fromkeys(ids)
        known = await self._store.sessions_of_ids(tenant, wanted) if wanted else {}
        may_read: dict[str | None, bool] = {}
        found = {}
        for session in (known[id] for id in wanted if id in known):
            if session.runtime_id not in may_read:
                may_read[session.runtime_id] = await self._access.may_read(session, user)
            if may_read[session.runtime_id]:
                found[session.id] = session
        return found


def _offline(runtimes: Iterable[Runtime]) -> Iterable[Runtime]:
    return (one for one in runtimes if one.removed_at is None and is_offline(one))
