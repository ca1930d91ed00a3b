"""Decides whether a turn on a runtime may be queued: the rules of `admission.py`, for tasks.

The same request once more is replayed or attached to, whatever number of claims its task takes. A request
for a turn needs an idle session; a follow-up is queued behind what is there. Nothing is displaced: a task
goes on without its client, and its lease is the business of its runtime.
"""

from __future__ import annotations

from dataclasses import dataclass

from lastgood.core.admission import ENDED, Attach, Rejected, Replay, RetryOf, has_moved_on, is_retry_of
from lastgood.core.lifecycle import is_final
from lastgood.core.task_lifecycle import is_task_over
from lastgood.errors import IdempotencyMismatch, QueueFull, SessionNotFound, StaleHead
from lastgood.model.attempts import Ask, Attempt, AttemptStatus
from lastgood.model.ids import TurnId
from lastgood.model.tasks import Task, TaskConflict, TaskStatus


@dataclass(frozen=True, slots=True)
class MayQueue:
    """A new turn, or `again` one that was asked for before and has failed."""

    again: TurnId | None = None


@dataclass(frozen=True, slots=True)
class ReplayTask:
    task: Task


@dataclass(frozen=True, slots=True)
class AttachTask:
    task: Task


@dataclass(frozen=True, slots=True)
class BusyWith:
    """One of them is there: the first unfinished task, or the attempt that holds the session."""

    task: Task | None
    attempt: Attempt | None


#: Replay and Attach: the request was first made while its agent was local.
TaskAdmission = MayQueue | ReplayTask | AttachTask | Replay | Attach | BusyWith | Rejected


def admit_task(ask: Ask, standing: TaskConflict, *, only_if_idle: bool) -> TaskAdmission:
    session, prior = standing.session, standing.prior
    if session is None:
        return Rejected(SessionNotFound())
    if ask.key is None and not (
        ask.is_retry
        and prior is not None
        and is_retry_of(ask, prior, _ended(standing), standing.prior_age_seconds)
    ):
        prior = None
    if prior is not None:
        if prior.fingerprint != ask.fingerprint or prior.session != ask.session:
            return Rejected(IdempotencyMismatch())
        if (known := _of_prior(standing)) is not None:
            return known
    # As for any turn: it would go on from, or replace, something else than it was accepted for.
    if has_moved_on(ask, session) or (prior is not None and prior.edit != ask.edit):
        return Rejected(StaleHead(head=session.head and session.head.turn))
    if only_if_idle and (standing.open_task is not None or standing.holder is not None):
        return BusyWith(standing.open_task, standing.holder)
    if standing.is_full:
        return Rejected(QueueFull())
    return MayQueue(prior.turn if prior else None)


def _of_prior(standing: TaskConflict) -> ReplayTask | AttachTask | Replay | Attach | None:
    """What became of the same request. None: it failed, so it is tried again."""
    task, attempt = standing.prior_task, standing.prior_attempt
    if task is not None:
        if not is_task_over(task.status):
            return AttachTask(task)
        return None if task.status is TaskStatus.FAILED else ReplayTask(task)
    if attempt is None:
        return None
    if attempt.status in (AttemptStatus.COMMITTED, AttemptStatus.CANCELLED):
        return Replay(attempt)
    return None if is_final(attempt.status) else Attach(attempt)


def _ended(standing: TaskConflict) -> RetryOf:
    task, attempt = standing.prior_task, standing.prior_attempt
    if task is None:
        return RetryOf.RUNNING if attempt is None else ENDED.get(attempt.status, RetryOf.RUNNING)
    return _ENDED_TASK.get(task.status, RetryOf.RUNNING)


_ENDED_TASK = {
    TaskStatus.COMPLETED: RetryOf.COMMITTED,
    TaskStatus.FAILED: RetryOf.FAILED,
    TaskStatus.CANCELLED: RetryOf.STOPPED,
}
