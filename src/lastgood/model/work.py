"""Work on remote runtimes: runtimes, tasks, and pointers to the native sessions of agent CLIs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lastgood.model.ids import AttemptId, TaskId, TurnId


class TaskStatus(StrEnum):
    QUEUED = "queued"
    DEFERRED = "deferred"  # due later: backoff, or a rate limit's reset time
    CLAIMED = "claimed"
    RUNNING = "running"
    WAITING = "waiting"  # for a person's answer
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ScopeKind(StrEnum):
    ISSUE = "issue"
    CHAT = "chat"


@dataclass(frozen=True, slots=True)
class RuntimeIdentity:
    """What must be equal for a native session to be resumed: sessions belong to the machine, the CLI and the
    account that made them."""

    id: str  # stable: derived from worker, provider, profile and account
    worker: str
    provider: str
    account: str = ""
    format: str = ""  # of the CLI's session files; another one cannot be read


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
