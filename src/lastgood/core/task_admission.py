"""Decides what a request for a task means, if it could not simply be queued.

The same request again is attached to or replayed; a failed one is queued once more, for the same turn. Other
requests are rejected with the task or attempt that is in the way.
"""

from __future__ import annotations

from dataclasses import dataclass

from lastgood.core.admission import ENDED, RetryOf, has_moved_on, is_retry_of
from lastgood.core.task_lifecycle import is_task_over
from lastgood.errors import (
    IdempotencyMismatch,
    LastgoodError,
    QueueFull,
    SessionBusy,
    SessionNotFound,
    StaleHead,
)
from lastgood.model.attempts import Ask, Attempt, AttemptStatus
from lastgood.model.ids import TurnId
from lastgood.model.tasks import Task, TaskConflict, TaskStatus


@dataclass(frozen=True, slots=True)
class QueueTask:
    """Nothing is in its way now. `again`: the turn that was requested before and failed."""

    again: TurnId | None = None


@dataclass(frozen=True, slots=True)
class KnownTask:
    """The same request was sent before. `is_replay`: it has its outcome."""

    task: Task
    is_replay: bool


@dataclass(frozen=True, slots=True)
class KnownAttempt:
    """The same request was run before as a turn of this server, and not as a task."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class TaskRejected:
    error: LastgoodError


TaskAdmission = QueueTask | KnownTask | KnownAttempt | TaskRejected


def admit_task(ask: Ask, found: TaskConflict, *, only_if_idle: bool) -> TaskAdmission:
    if found.session is None:
        return TaskRejected(SessionNotFound())
    prior = found.prior if ask.key is not None or _is_retry(ask, found) else None
    if prior is not None:
        if prior.fingerprint != ask.fingerprint or prior.session != ask.session:
            return TaskRejected(IdempotencyMismatch())
        if (known := _of_prior(found)) is not None:
            return known
    if found.is_full:
        return TaskRejected(
            QueueFull("The session has too many unfinished tasks; retry when some of them have ended")
        )
    if only_if_idle and (refusal := _refusal(ask, found)) is not None:
        return TaskRejected(refusal)
    if prior is not None and prior.edit != ask.edit:
        # Sent again after the head has moved, it would replace something else than it was accepted for.
        return TaskRejected(StaleHead(head=found.session.head and found.session.head.turn))
    return QueueTask(None if prior is None else prior.turn)


def _of_prior(found: TaskConflict) -> TaskAdmission | None:
    task, attempt = found.prior_task, found.prior_attempt
    if task is not None:
        if not is_task_over(task.status):
            return KnownTask(task, is_replay=False)
        return None if task.status is TaskStatus.FAILED else KnownTask(task, is_replay=True)
    if attempt is None or attempt.status in (AttemptStatus.FAILED, AttemptStatus.INTERRUPTED):
        return None
    return KnownAttempt(attempt)


def _refusal(ask: Ask, found: TaskConflict) -> LastgoodError | None:
    assert found.session is not None
    if found.open_task is not None:
        task = found.open_task
        return SessionBusy(
            f"A task of this session is {task.status.value}; retry when it has ended, or cancel it",
            task=task.id,
            turn=task.turn,
            status=task.status.value,
        )
    if found.holder is not None:
        return SessionBusy(
            "A turn of this session is running; retry when it has ended, or cancel it",
            attempt=found.holder.id,
            turn=found.holder.turn,
            status=found.holder.status.value,
        )
    if has_moved_on(ask, found.session):
        return StaleHead(head=found.session.head and found.session.head.turn)
    return None


def _is_retry(ask: Ask, found: TaskConflict) -> bool:
    """Whether an SDK sends the same request again by itself (I21)."""
    if not ask.is_retry or found.prior is None:
        return False
    task, attempt = found.prior_task, found.prior_attempt
    ended = RetryOf.RUNNING
    if task is not None:
        ended = _ENDED.get(task.status, ended)
    elif attempt is not None:
        ended = ENDED.get(attempt.status, ended)
    return is_retry_of(ask, found.prior, ended, found.prior_age_seconds)


#: All others are unfinished.
_ENDED = {
    TaskStatus.COMPLETED: RetryOf.COMMITTED,
    TaskStatus.FAILED: RetryOf.FAILED,
    TaskStatus.CANCELLED: RetryOf.STOPPED,
}
