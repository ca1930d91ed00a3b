"""Tasks, their claims, and pointers to the native sessions of agent CLIs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lastgood.model.attempts import Attempt, Hold, TurnRequest
from lastgood.model.ids import AttemptId, SessionId, TaskId, TenantId, TurnId
from lastgood.model.runtimes import RuntimeIdentity
from lastgood.model.sessions import Session, TaskScope


class TaskStatus(StrEnum):
    QUEUED = "queued"
    DEFERRED = "deferred"  # due later: backoff, or a rate limit's reset time
    CLAIMED = "claimed"
    RUNNING = "running"
    WAITING = "waiting"  # for a person's answer
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


#: A worker holds these; the session is busy.
HELD_TASKS = frozenset({TaskStatus.CLAIMED, TaskStatus.RUNNING, TaskStatus.WAITING})
#: These are final.
ENDED_TASKS = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED})


@dataclass(frozen=True, slots=True)
class Directive:
    """How a task is to be run. Every retry inherits all of it: it belongs to the task, not to a claim."""

    fresh: bool = False  # neither native session nor working directory
    rerun_of: TaskId | None = None  # its native session and working directory, exactly
    note: str = ""  # for the agent, before the prompt


@dataclass(frozen=True, slots=True)
class NewTask:
    """`request` is stored with it, unless `again`: then the turn was requested before, and is tried again."""

    id: TaskId
    tenant: TenantId
    session: SessionId
    turn: TurnId
    agent_key: str
    scope: TaskScope
    runtime: str
    request: TurnRequest
    priority: int = 0
    directive: Directive = Directive()
    created_by: str = ""  # the token
    user: str = ""
    max_wait_seconds: float | None = None
    deadline_seconds: float = 4 * 3600.0
    again: bool = False
    ephemeral: bool = False  # its session is deleted when it ends


@dataclass(frozen=True, slots=True)
class Task:
    number: int  # orders the tasks of one session
    id: TaskId
    tenant: TenantId
    session: SessionId
    turn: TurnId
    agent_key: str
    scope: TaskScope
    runtime: str  # stamped when it was queued; resuming compares with this one
    status: TaskStatus
    priority: int
    directive: Directive
    created_by: str
    user: str
    why: str  # set with `held` and `deferred`; other reasons are derived when it is read
    held: bool  # after a person's cancel, until a person continues or drops it
    ephemeral: bool
    due_at: float | None
    expires_at: float | None
    deadline_seconds: float
    worker: str | None  # of the newest claim
    attempt: AttemptId | None  # of the newest claim
    claims: int
    failures: int
    lease_until: float | None
    deadline_at: float | None
    cancel_acknowledged: bool
    decision: dict[str, Any]  # of the newest claim: core/resume.py
    late_output: str | None  # reported after the end, for people; never committed
    error_code: str | None
    error_message: str | None
    created_at: float
    ended_at: float | None
    lost_claims: int = 0  # whose lease ended without a report
    tried_seconds: float = 0.0  # since it was first claimed, or claimed again after it was held
    cli_version: str = ""  # of the CLI that ran the newest claim


@dataclass(frozen=True, slots=True)
class TaskFilter:
    session: SessionId | None = None
    agent_key: str | None = None
    runtimes: tuple[str, ...] | None = None  # None: all; of those that the caller may use
    statuses: tuple[TaskStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskPage:
    tasks: tuple[Task, ...]
    next_cursor: int | None


@dataclass(frozen=True, slots=True)
class TaskConflict:
    """Why a task was not queued: what is in the session, and the state of the same earlier request."""

    session: Session | None  # None: it does not exist
    open_task: Task | None = None  # the first unfinished one of the session
    holder: Attempt | None = None  # who holds the session; it may be no task's
    prior: TurnRequest | None = None  # stored under the same key, or with the same body
    prior_task: Task | None = None  # the newest one of that request
    prior_attempt: Attempt | None = None
    prior_age_seconds: float = 0.0
    is_full: bool = False  # too many tasks of this session wait


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """`tokens` and `attempts`: one for each task that may be claimed, made by the caller. A claim holds for
    `prepare_seconds` until its decision is stored."""

    tenant: TenantId
    worker: str
    epoch: int
    runtimes: tuple[str, ...]
    tokens: tuple[bytes, ...]  # hashed
    attempts: tuple[AttemptId, ...]
    prepare_seconds: float
    ageing_seconds: float  # a task that has waited this long counts one priority more
    owner: str = ""  # the user whose token it is: only the worker's owner claims for it


@dataclass(frozen=True, slots=True)
class Claimed:
    """One task that was claimed. The session is held by `hold`; its head is the base of the attempt, unless
    the request is an edit."""

    task: Task
    hold: Hold
    attempt: Attempt
    request: TurnRequest
    session: Session


@dataclass(frozen=True, slots=True)
class ClaimState:
    """A task as its claim token finds it. Not `is_current`: the task was claimed again or has ended."""

    task: Task
    is_current: bool
    hold: Hold | None = None  # set if it is current
    attempt: Attempt | None = None  # of this token's claim
    report: dict[str, Any] | None = None  # the answer to this token's final report, if it was made


class PointerOutcome(StrEnum):
    """How the attempt ended that wrote a pointer."""

    COMMITTED = "committed"
    FAILED = "failed"
    RESUME_FAILED = "resume_failed"  # the CLI could not resume the native session, or lost it while running
    UNCOUNTED = (
        "uncounted"  # cancelled, rate limited, lease lost, never started: says nothing about the session
    )


@dataclass(frozen=True, slots=True)
class Pointer:
    """One attempt's report of its native session. One row from one attempt: its parts cannot be mispaired."""

    number: int  # rises with every pointer: the newest has the highest
    attempt: AttemptId
    task: TaskId
    native_session: str | None
    runtime: RuntimeIdentity | None  # None: imported from a system that did not record it
    work_dir: str | None
    worker: str  # whose machine `work_dir` is on
    base: TurnId | None  # the turn that the attempt continued from
    through: TurnId | None  # the last committed turn that the native session has seen; None: none
    outcome: PointerOutcome
    agent_digest: str
    is_dirty: bool = False  # the native session holds a prompt whose turn was not committed
    retired: str | None = None  # why it must not be resumed again


@dataclass(frozen=True, slots=True)
class PointerReport:
    """What an attempt reports of its native session. The row of the attempt is made or updated; an absent
    value never wipes a stored one."""

    native_session: str | None
    work_dir: str | None
    through: TurnId | None
    outcome: PointerOutcome
    is_dirty: bool
    retires: tuple[tuple[str, str], ...] = ()  # (native session, reason): of this session and runtime


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """What a claim's end writes about its task, in the transaction that commits or ends the attempt.

    `status` QUEUED or DEFERRED: the task is tried again. `token`: the claim must be the task's current one;
    None: the end comes from elsewhere (a cancel, a deadline)."""

    task: TaskId
    status: TaskStatus
    token: bytes | None = None
    pointer: PointerReport | None = None
    report: dict[str, Any] | None = None  # returned again if the same report is repeated
    why: str = ""
    due_seconds: float | None = None  # with DEFERRED
    error: tuple[str, str] | None = None
    counts_failure: bool = False
    holds_others: bool = False  # a person's cancel: the session's queued tasks are held
    holding_reason: str = ""
    cli_version: str = ""  # as the worker reported it
    ran_tools: bool = False  # the run has called a tool


class QuestionStatus(StrEnum):
    PENDING = "pending"
    ANSWERED = "answered"
    WITHDRAWN = "withdrawn"  # its process is gone
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Question:
    """What a running task asks a person. The worker chooses the id: repeated, it is the same question."""

    id: str
    tenant: TenantId
    task: TaskId
    attempt: AttemptId
    session: SessionId
    body: dict[str, Any]
    status: QuestionStatus
    answer: dict[str, Any] | None
    answered_by: str
    deadline_at: float
    created_at: float


#: The type of the message in place of those that are above the limit of an attempt.
OMITTED = "omitted"


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """One thing that a run did, as its worker reported it: for people, never part of a prompt."""

    seq: int
    body: dict[str, Any]
    created_at: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a task left in its working directory, bounded. It belongs to the attempt's turn once that
    commits."""

    attempt: AttemptId
    tenant: TenantId
    session: SessionId
    turn: TurnId
    kind: str  # the format of the body
    summary: dict[str, Any]  # what changed, and what was left out
    body: bytes
    created_at: float = 0.0


@dataclass(frozen=True, slots=True)
class SnapshotSummary:
    """A snapshot without its body. `size` is of the body; 0: it is not kept any more."""

    attempt: AttemptId
    session: SessionId
    turn: TurnId
    kind: str
    summary: dict[str, Any]
    size: int
    created_at: float
