"""Decides whether a task whose run failed is retried, and what the failure means for its native session.

The worker classifies a failure by its code; error texts are never parsed. A code that is not in the table (of
a newer worker) is final, because a retry could do harm. After a tool call, a run is not repeated by itself:
its effects would happen twice. Exceptions are a rate limit and a worker that stops: the run ended in good
order, and its native session knows what was done.

Nothing is tried forever. A task that loses one worker after the other probably crashes them, and each one
repeats its effects: it ends after a few. What does not count as a failure is retried for days at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lastgood.errors import LastgoodError, TurnCancelled, TurnFailed, Unenforceable, error_of
from lastgood.model.tasks import PointerOutcome

#: The limit of failed runs of one task; the last failure is final.
MOST_FAILURES = 3
#: The limit of claims of one task whose lease ended without a report.
MOST_LOST_CLAIMS = 5
#: How long after its first claim a task is retried for reasons that do not count as its own failures.
MOST_RETRY_SECONDS = 7 * 24 * 3600.0
_FIRST_SECONDS = 5.0
_MOST_SECONDS = 300.0
#: A rate limit without a reset time is tried again after this long.
_RESET_SECONDS = 60.0
_MOST_RESET_SECONDS = 24 * 3600.0
#: How long a task waits whose agent cannot be loaded now.
_UNAVAILABLE_SECONDS = 30.0


class FailureClass(StrEnum):
    RATE_LIMIT = "rate_limit"  # passes by itself
    STOPPED = "stopped"  # by its worker, which stops; like a worker that dies, but reported
    NOT_STARTED = "not_started"  # the run did nothing
    RESUME = "resume"  # the native session could not be resumed
    TRANSIENT = "transient"
    FINAL = "final"


#: By the code that a worker reports.
FAILURES: dict[str, FailureClass] = {
    "rate_limited": FailureClass.RATE_LIMIT,
    "not_started": FailureClass.NOT_STARTED,
    "worker_stopped": FailureClass.STOPPED,
    "resume_failed": FailureClass.RESUME,
    "model_error": FailureClass.TRANSIENT,
    "cli_failed": FailureClass.TRANSIENT,
    "cli_protocol": FailureClass.FINAL,
    "timeout": FailureClass.FINAL,
    "unenforceable": FailureClass.FINAL,
}


@dataclass(frozen=True, slots=True)
class FailTask:
    reason: str


@dataclass(frozen=True, slots=True)
class RetryTask:
    """`counts`: as a failure of the task."""

    seconds: float
    reason: str
    counts: bool = True


TaskRetry = FailTask | RetryTask


def error_of_run(code: str, message: str) -> LastgoodError:
    """Returns the error of a turn whose run failed with this code.

    A worker speaks about its run. A code that speaks about a request (`unauthorized` of a CLI that is not
    logged in, `session_busy`) would tell callers that something is wrong with theirs: it becomes a part of
    the message.
    """
    error = error_of(code, message)
    is_of_run = isinstance(error, TurnFailed | Unenforceable) and not isinstance(error, TurnCancelled)
    return error if is_of_run else TurnFailed(f"{code}: {message}")


def after_failure(
    code: str,
    *,
    failures: int,
    tool_calls: int,
    resume_failed: bool = False,
    retry_after: float | None = None,
    tried_seconds: float = 0.0,
) -> TaskRetry:
    """`failures`: of this task before this one. `tried_seconds`: since its first claim. The task itself goes
    back to the queue, so a retry has its whole directive."""
    kind = class_of(code, resume_failed=resume_failed)
    if kind is FailureClass.RATE_LIMIT:
        wanted = _RESET_SECONDS if retry_after is None else retry_after
        seconds = min(max(wanted, _FIRST_SECONDS), _MOST_RESET_SECONDS)
        return _uncounted(seconds, "rate limited by the model's provider", tried_seconds)
    if kind is FailureClass.STOPPED:
        return _uncounted(_FIRST_SECONDS, "its worker was stopped", tried_seconds)
    if kind is FailureClass.FINAL:
        return FailTask(f"{code} is not retried")
    if tool_calls > 0 and kind is not FailureClass.NOT_STARTED:
        return FailTask("a tool has run, and trying again could run it twice")
    if failures + 1 >= MOST_FAILURES:
        return FailTask(f"it failed {failures + 1} times")
    seconds = max(min(_FIRST_SECONDS * 2.0**failures, _MOST_SECONDS), min(retry_after or 0.0, _MOST_SECONDS))
    return RetryTask(seconds, f"{code}; try {failures + 2} of {MOST_FAILURES}")


def after_unavailable(tried_seconds: float) -> TaskRetry:
    """What its claim needs cannot be loaded now, for instance the source of its agent."""
    return _uncounted(_UNAVAILABLE_SECONDS, "its agent cannot be loaded", tried_seconds)


def after_lost_claims(lost: int) -> FailTask | None:
    """None: it may be claimed again."""
    return FailTask(f"its claims were lost {lost} times") if lost >= MOST_LOST_CLAIMS else None


def _uncounted(seconds: float, reason: str, tried_seconds: float) -> TaskRetry:
    if tried_seconds + seconds > MOST_RETRY_SECONDS:
        return FailTask(f"{reason}; it was retried for {tried_seconds / 86400:.1f} days")
    return RetryTask(seconds, reason, counts=False)


def outcome_of(code: str, *, resume_failed: bool = False) -> PointerOutcome:
    """What the failed run says about its native session (I29)."""
    match class_of(code, resume_failed=resume_failed):
        case FailureClass.RESUME:
            return PointerOutcome.RESUME_FAILED
        case FailureClass.RATE_LIMIT | FailureClass.STOPPED | FailureClass.NOT_STARTED:
            return PointerOutcome.UNCOUNTED
        case _:
            return PointerOutcome.FAILED


def class_of(code: str, *, resume_failed: bool = False) -> FailureClass:
    if resume_failed:
        return FailureClass.RESUME
    return FAILURES.get(code, FailureClass.FINAL)
