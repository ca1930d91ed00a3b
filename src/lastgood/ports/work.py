"""What the flows need of the store for work on remote runtimes.

A claim token fences every report of a worker. It is valid until its task is claimed again or has ended: an
expired lease only makes the task claimable. The attempt of a claim holds its session like any other
attempt, without end; so a commit or an end of it is `commit_if_head` or `finish_if_held` with a TaskEnd.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from lastgood.model.attempts import Ask, Hold
from lastgood.model.audit import AuditEntry
from lastgood.model.events import Event
from lastgood.model.ids import AttemptId, SessionId, TaskId, TenantId, TurnId
from lastgood.model.runtimes import (
    AgentBinding,
    Enrollment,
    Heartbeat,
    HeartbeatResult,
    OnQueued,
    Registered,
    Registration,
    Runtime,
    Worker,
)
from lastgood.model.sessions import NewSession, Session, TaskScope
from lastgood.model.tasks import (
    Claimed,
    ClaimRequest,
    ClaimState,
    NewTask,
    Pointer,
    PointerReport,
    Question,
    Snapshot,
    SnapshotSummary,
    Task,
    TaskConflict,
    TaskEnd,
    TaskFilter,
    TaskMessage,
    TaskPage,
)

#: The events of an attempt that ends because the lease of its claim is over. Pure: it may be called twice.
EndedEvents = Callable[[TurnId, AttemptId], Sequence[Event]]
#: The audit entry of a claim that took its task over from the claim of an earlier attempt.
TakeoverEntry = Callable[[Claimed, AttemptId], AuditEntry]


class RuntimeStore(Protocol):
    async def register(self, registration: Registration, audit: AuditEntry | None = None) -> Registered:
        """Makes or updates the worker and its runtimes; a removed runtime is there again, under its old id.
        Another instance than the stored one raises the epoch, and only that is recorded."""
        ...

    async def beat(self, heartbeat: Heartbeat, lease_seconds: float) -> HeartbeatResult:
        """Renews the claims that are current; nothing of a worker that has another owner. `cancel` names
        tasks that were ended from elsewhere and whose worker has not acknowledged that yet; they are `lost`,
        too. A replaced epoch still renews its claims."""
        ...

    async def get_worker(self, tenant: TenantId, worker: str) -> Worker | None:
        """Returns None if the worker was never registered."""
        ...

    async def deregister(self, tenant: TenantId, worker: str, owner: str, epoch: int) -> bool:
        """The worker counts as offline from now on. False: another instance has taken over, or the worker
        has another owner."""
        ...

    async def list_runtimes(self, tenant: TenantId, *, with_removed: bool = False) -> tuple[Runtime, ...]:
        """Oldest first."""
        ...

    async def get_runtime(self, tenant: TenantId, runtime: str) -> Runtime | None:
        """Removed ones, too."""
        ...

    async def share_runtime(self, tenant: TenantId, runtime: str, users: Sequence[str]) -> Runtime | None: ...

    async def remove_runtime(self, tenant: TenantId, runtime: str) -> bool:
        """Its row, pointers and tasks stay; its queued tasks wait for the same machine, or are moved."""
        ...

    async def bind_agent(
        self,
        binding: AgentBinding,
        queued: OnQueued,
        audit: AuditEntry | None = None,
        *,
        is_admin: bool = False,
    ) -> int | None:
        """Returns how many queued tasks were moved: those that `bound_by` may use, unless their session has
        a runtime of its own, or was made by a user who could not read it any more. None: the agent is bound
        to a runtime that `bound_by` may not use; only an admin replaces that, unless it was removed."""
        ...

    async def unbind_agent(
        self,
        tenant: TenantId,
        agent_key: str,
        user: str,
        audit: AuditEntry | None = None,
        *,
        is_admin: bool = False,
    ) -> bool:
        """False: it is not bound, or bound to a runtime that the user may not use."""
        ...

    async def get_binding(self, tenant: TenantId, agent_key: str) -> AgentBinding | None: ...

    async def pin_runtime(
        self,
        tenant: TenantId,
        session: SessionId,
        runtime: str | None,
        queued: OnQueued,
        user: str,
        audit: AuditEntry | None = None,
    ) -> int | None:
        """Binds one session alone; None as runtime: it follows its agent again. Returns how many queued
        tasks were moved: those that the user may use. None: the session does not exist, the user may not
        read it, or the user who made it could not read it there."""
        ...

    async def create_enrollment(self, enrollment: Enrollment, code: bytes) -> None:
        """`code` is hashed."""
        ...

    async def use_enrollment(self, code: bytes) -> Enrollment | None:
        """None: unknown, used or expired, by database time. It can be used once."""
        ...


class TaskStore(Protocol):
    async def session_of_scope(self, new: NewSession) -> Session:
        """The session of (tenant, scope, agent) as it is, or `new`, made now."""
        ...

    async def find_scope(self, tenant: TenantId, scope: TaskScope, agent_key: str) -> Session | None: ...

    async def enqueue_task(
        self, new: NewTask, *, ask: Ask, only_if_idle: bool, most: int
    ) -> Task | TaskConflict:
        """Stores the task and its request in one transaction, and stamps the session with the runtime.

        `only_if_idle`: nothing of the session runs, waits or is queued, and its head is what the ask
        expects. `most`: so many tasks of one session may be unfinished. A conflict is read after the write
        lost, at one moment.
        """
        ...

    async def look_up_task(self, ask: Ask) -> TaskConflict:
        """Returns what would prevent an enqueue of this ask now. Writes nothing."""
        ...

    async def get_task(self, tenant: TenantId, task: TaskId) -> Task | None: ...

    async def task_of_turn(self, tenant: TenantId, turn: TurnId) -> Task | None:
        """The newest one."""
        ...

    async def list_tasks(
        self, tenant: TenantId, filter: TaskFilter, *, limit: int, cursor: int | None = None
    ) -> TaskPage:
        """Newest first."""
        ...

    async def open_tasks(self, tenant: TenantId, session: SessionId) -> tuple[Task, ...]:
        """The unfinished ones, in their order."""
        ...

    async def claim_tasks(
        self, request: ClaimRequest, ended: EndedEvents, takeover: TakeoverEntry | None = None
    ) -> tuple[Claimed, ...]:
        """In one transaction, for each: picks the task, ends the attempt of an expired claim as
        interrupted, stores its `ended` events and the `takeover` entry, holds the session under a new fence,
        and inserts the attempt.

        Claimable: the worker is the owner's, the runtime is its own and not removed, the epoch is the
        newest; the task is queued or due, not held, not past its expiry, or its claim's lease is over; it is
        the first unfinished one of its session; nobody else holds the session; its agent runs fewer than
        `max_running` tasks, counted under a lock. Order: priority raised by age; then agents take turns,
        the one with fewest running tasks first; then age.
        """
        ...

    async def confirm_claim(
        self,
        hold: Hold,
        token: bytes,
        decision: dict[str, Any],
        lease_seconds: float,
        events: Sequence[Event],
        *,
        agent_digest: str = "",
        model: str = "",
        audit: AuditEntry | None = None,
    ) -> bool:
        """Stores the resume decision with the task and its attempt, and starts the lease and the deadline.
        The attempt and its pointer have this agent digest and model; empty ones change nothing. False: the
        claim is not current any more."""
        ...

    async def find_claim(
        self, tenant: TenantId, task: TaskId, token: bytes, owner: str, worker: str | None
    ) -> ClaimState | None:
        """None: no such task of this tenant, or no claim of it was ever made with this token by this
        worker of this owner. `worker` is None for a caller that is bound to no worker: then it is any worker
        of the owner."""
        ...

    async def find_held_task(self, token: bytes) -> Task | None:
        """Of a claim token, hashed, whatever its tenant. None: its claim is not current."""
        ...

    async def start_task(self, state: ClaimState, token: bytes) -> bool:
        """claimed → running. True also if it runs already; False: the claim is not current."""
        ...

    async def report_pointer(self, state: ClaimState, token: bytes, report: PointerReport) -> bool:
        """A pin in mid-run. False: the claim is not current, and nothing was written. Of a task that
        somebody else has ended it is written, unless a newer attempt of the session has a pointer already."""
        ...

    async def append_messages(
        self, state: ClaimState, token: bytes, messages: Sequence[TaskMessage], events: Sequence[Event | None]
    ) -> int | None:
        """Stores those with a higher `seq` than the last one stored, and only their events: `events` has
        one, or None, for each message. Returns the last `seq` stored; None: the claim is not current.

        They are kept with the session and count in its stored bytes. Above a limit for each attempt, one
        message of the type `omitted` stands for all others."""
        ...

    async def read_messages(
        self, tenant: TenantId, attempt: AttemptId, *, after: int = 0, limit: int = 500
    ) -> tuple[TaskMessage, ...]: ...

    async def keep_late_output(self, tenant: TenantId, task: TaskId, token: bytes, output: str) -> bool:
        """Of a claim that is not current any more: readable beside the task, never committed. The first one
        stays."""
        ...

    async def end_queued_task(self, tenant: TenantId, end: TaskEnd, events: Sequence[Event]) -> bool:
        """Ends a task that no worker holds. False: a worker has it by now, or it has ended."""
        ...

    async def acknowledge_cancel(self, tenant: TenantId, task: TaskId, token: bytes) -> bool: ...

    async def release_tasks(self, tenant: TenantId, session: SessionId) -> int:
        """Held tasks are queued again, and expire as if they were queued now. Returns how many."""
        ...

    async def release_task(self, tenant: TenantId, task: TaskId) -> bool: ...

    async def ask_question(
        self, state: ClaimState, token: bytes, question: Question, events: Sequence[Event]
    ) -> Question | None:
        """running → waiting. Its deadline is as long after the database's time as `deadline_at` is after
        `created_at`. The same id again returns the question as it stands. None: the claim is not current.
        IdempotencyMismatch: the id was used with another body."""
        ...

    async def answer_question(
        self,
        tenant: TenantId,
        task: TaskId,
        question: str,
        answer: dict[str, Any],
        by: str,
        audit: AuditEntry | None = None,
    ) -> Question | None:
        """waiting → running if no other question of the task is pending. None: it is not pending any more."""
        ...

    async def list_questions(self, tenant: TenantId, session: SessionId) -> tuple[Question, ...]:
        """Pending ones of the session's running task."""
        ...

    async def get_question(self, tenant: TenantId, task: TaskId, question: str) -> Question | None: ...

    async def overdue_tasks(self, limit: int) -> tuple[Task, ...]:
        """By database time, of all tenants: queued ones past their expiry (not those that wait for a
        person's word after a cancel), and those of a worker past their deadline."""
        ...

    async def expire_questions(
        self, limit: int, audit: Callable[[Question], AuditEntry] | None = None
    ) -> tuple[Question, ...]:
        """Those past their deadline become `expired`, each with its audit entry, and are returned."""
        ...

    async def ended_ephemeral(
        self, *, age_seconds: float, limit: int
    ) -> tuple[tuple[TenantId, SessionId], ...]:
        """Sessions whose ephemeral task ended that long ago or earlier, of all tenants."""
        ...

    async def list_pointers(
        self, tenant: TenantId, session: SessionId, *, limit: int | None = None
    ) -> tuple[Pointer, ...]:
        """Oldest first; the newest ones, if there are more than the limit."""
        ...

    async def retire_native_session(
        self, tenant: TenantId, session: SessionId, runtime: str | None, native_session: str, reason: str
    ) -> int:
        """Returns how many pointers were retired now."""
        ...

    async def put_snapshot(self, state: ClaimState, token: bytes, snapshot: Snapshot) -> bool:
        """Replaces the attempt's own. Its bytes count in the session's stored bytes. False: the claim is
        not current."""
        ...

    async def get_snapshot(self, tenant: TenantId, attempt: AttemptId) -> Snapshot | None: ...

    async def summary_of_snapshot(self, tenant: TenantId, attempt: AttemptId) -> SnapshotSummary | None: ...

    async def newest_snapshot(
        self, tenant: TenantId, sessions: Collection[SessionId], turns: Collection[TurnId]
    ) -> SnapshotSummary | None:
        """The newest one that can be restored, of these turns of one chain; they were committed in these
        sessions. The end of each task drops the bodies of all but the newest few."""
        ...


class WorkStore(RuntimeStore, TaskStore, Protocol):
    """Work on remote runtimes."""
