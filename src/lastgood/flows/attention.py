"""What needs a person's attention: questions, failures by cause, parked and held work, offline runtimes.

Read-only. What a user may not read is neither listed nor counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lastgood.core.runtime_choice import is_offline
from lastgood.flows.approvals import Approvals, PendingQuestion
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.work.access import WorkAccess
from lastgood.flows.work.tasks import ShownTask, Tasks
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
        ids = dict.fromkeys([*here, *(one.task.session for one in tasks)])
        found = []
        for id in ids:
            session = await self._readable(tenant, id, user)
            questions = await self._approvals.pending(tenant, id, user) if session is not None else ()
            if session is not None and questions:
                found.append(WaitingSession(session, questions))
        return tuple(found)

    async def failures(self, tenant: TenantId, user: str) -> tuple[Failures, ...]:
        """By cause, the most frequent first."""
        by_code: dict[str, list[Attempt]] = {}
        for attempt in await self._store.failures(tenant, age_seconds=FAILURES_SECONDS, limit=MOST):
            if await self._readable(tenant, attempt.session, user) is not None:
                by_code.setdefault(attempt.error_code or attempt.status.value, []).append(attempt)
        found = [
            Failures(code, len(tries), len({one.session for one in tries}), tries[0])
            for code, tries in by_code.items()
        ]
        return tuple(sorted(found, key=lambda one: -one.count))

    async def parked(self, tenant: TenantId, user: str) -> tuple[Queued, ...]:
        entries = await self._store.parked(tenant, limit=MOST)
        readable = {one.session for one in entries if await self._readable(tenant, one.session, user)}
        return tuple(one for one in entries if one.session in readable)

    async def held(self, tenant: TenantId, user: str) -> tuple[ShownTask, ...]:
        """Unfinished tasks that no worker runs: held, deferred, or waiting for a runtime."""
        waiting = (TaskStatus.QUEUED, TaskStatus.DEFERRED)
        shown, _ = await self._tasks.list(tenant, user, TaskFilter(statuses=waiting), limit=50, cursor=None)
        return shown

    async def offline(self, tenant: TenantId, user: str) -> tuple[Runtime, ...]:
        return tuple(_offline(await self._access.usable(tenant, user)))

    async def _readable(self, tenant: TenantId, id: SessionId, user: str) -> Session | None:
        session = await self._store.get_session(tenant, id)
        if session is None or not await self._access.may_read(session, user):
            return None
        return session


def _offline(runtimes: Iterable[Runtime]) -> Iterable[Runtime]:
    return (one for one in runtimes if one.removed_at is None and is_offline(one))
