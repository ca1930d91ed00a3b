"""What needs a person's attention: questions, failures by cause, stuck work, offline runtimes, dead letters.

Read-only. What a user may not read is neither listed nor counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lastgood.core.egress import shown
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
from lastgood.model.webhooks import Delivery, Webhook

#: Limit of entries per list.
MOST = 200
#: How old a failure may be.
FAILURES_SECONDS = 3600.0
#: A task that a worker claims sooner than this needs nobody.
STUCK_SECONDS = 60.0
#: How old a dead letter may be. It was tried for a day before it became one.
DEAD_LETTERS_SECONDS = 3 * 86_400.0
#: Sessions whose questions are listed.
MOST_WAITING = 50
#: For how long a count is kept: every page shows it.
_COUNT_SECONDS = 1.0
_MOST_COUNTS = 1000


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


@dataclass(frozen=True, slots=True)
class FailingWebhook:
    """A webhook that has dead letters, or that its receiver has disabled. `newest` is None without any."""

    id: str
    url: str  # without the parts that often contain a key
    is_disabled: bool
    dead: int
    newest: Delivery | None


@dataclass(frozen=True, slots=True)
class QuestionCount:
    """`is_more`: there are other sessions that wait, which are not counted."""

    number: int
    is_more: bool

    @property
    def text(self) -> str:
        return f"{self.number}{'+' if self.is_more else ''}"


NO_QUESTIONS = QuestionCount(0, False)


@dataclass(slots=True)
class _Counts:
    """Of questions, by tenant and user, with the time until which each is used."""

    known: dict[tuple[TenantId, str], tuple[float, QuestionCount]] = field(default_factory=dict)

    def get(self, whose: tuple[TenantId, str], now: float) -> QuestionCount | None:
        until, count = self.known.get(whose, (0.0, NO_QUESTIONS))
        return count if now < until else None

    def put(self, whose: tuple[TenantId, str], count: QuestionCount, now: float) -> None:
        if len(self.known) >= _MOST_COUNTS:
            self.known.clear()
        self.known[whose] = now + _COUNT_SECONDS, count


class Attention:
    def __init__(self, deps: Dependencies, approvals: Approvals, access: WorkAccess, tasks: Tasks) -> None:
        self._store = deps.store
        self._clock = deps.clock
        self._counts = _Counts()
        self._approvals = approvals
        self._access = access
        self._tasks = tasks

    async def questions(
        self, tenant: TenantId, user: str, *, limit: int = MOST_WAITING
    ) -> tuple[WaitingSession, ...]:
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

    async def count_questions(self, tenant: TenantId, user: str) -> QuestionCount:
        """Returns how many questions `questions` lists, as of a moment ago."""
        now, whose = self._clock.monotonic(), (tenant, user)
        count = self._counts.get(whose, now)
        if count is None:
            waiting = await self.questions(tenant, user)
            number = sum(len(one.questions) for one in waiting)
            count = QuestionCount(number, len(waiting) >= MOST_WAITING)
            self._counts.put(whose, count, now)
        return count

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
        """Unfinished tasks that no worker runs: held, deferred, or queued for longer than a claim takes."""
        waiting = (TaskStatus.QUEUED, TaskStatus.DEFERRED)
        listed, _ = await self._tasks.list(tenant, user, TaskFilter(statuses=waiting), limit=50, cursor=None)
        stuck = self._clock.now() - STUCK_SECONDS
        return tuple(
            one
            for one in listed
            if one.task.held or one.task.status is TaskStatus.DEFERRED or one.task.created_at < stuck
        )

    async def offline(self, tenant: TenantId, user: str) -> tuple[Runtime, ...]:
        return tuple(_offline(await self._access.usable(tenant, user)))

    async def webhooks(self, tenant: TenantId) -> tuple[FailingWebhook, ...]:
        """Those that do not deliver. For admins: a URL says where messages go."""
        dead: dict[str, list[Delivery]] = {}
        for one in await self._store.dead_deliveries(tenant, age_seconds=DEAD_LETTERS_SECONDS, limit=MOST):
            dead.setdefault(one.webhook, []).append(one)
        known = await self._store.list_webhooks(tenant)
        return tuple(
            _failing(one, dead.get(one.id, [])) for one in known if one.disabled_at or one.id in dead
        )

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


def _failing(webhook: Webhook, dead: list[Delivery]) -> FailingWebhook:
    is_disabled, newest = webhook.disabled_at is not None, dead[0] if dead else None
    return FailingWebhook(webhook.id, shown(webhook.url), is_disabled, len(dead), newest)


def _offline(runtimes: Iterable[Runtime]) -> Iterable[Runtime]:
    return (one for one in runtimes if one.removed_at is None and is_offline(one))
