"""Decides whether a turn may start.

Knows one rule: a session runs one turn at a time. Everything else here tells requests apart: the same request
again (replay or attach), one whose client has disconnected (superseded), one whose holder has died
(interrupted). Knows no clock, no database and no HTTP; callers pass the conflict and act on the decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lastgood.core.lifecycle import Move, is_final
from lastgood.errors import IdempotencyMismatch, LastgoodError, SessionNotFound, StaleHead
from lastgood.model.attempts import Ask, Attempt, AttemptStatus, BeginConflict, OnLeave, TurnRequest
from lastgood.model.ids import TurnId
from lastgood.model.sessions import Session

#: How long after its end a turn can be meant by an SDK's retry. Short messages are soon sent again on
#: purpose.
RETRY_SECONDS = 30.0
#: The same body with the assistant's answers in it is hardly ever a new request.
RETRY_WITH_HISTORY_SECONDS = 15 * 60.0


@dataclass(frozen=True, slots=True)
class Displace:
    """An attempt that must be ended before ours can begin."""

    attempt: Attempt
    move: Move


@dataclass(frozen=True, slots=True)
class Admitted:
    """Begin: a new turn, or `again` an earlier one; after ending `displace`, if given."""

    again: TurnId | None = None
    displace: Displace | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """This request has its outcome; return it again."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Attach:
    """This request is running; follow that attempt."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Busy:
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Rejected:
    error: LastgoodError


Admission = Admitted | Replay | Attach | Busy | Rejected


def admit(ask: Ask, conflict: BeginConflict) -> Admission:
    if conflict.session is None:
        return Rejected(SessionNotFound())
    prior, tried = conflict.prior, conflict.prior_attempt
    if ask.key is None and ask.is_retry and not _is_marked_retry(ask, conflict):
        prior = tried = None
    if prior is not None and tried is not None:
        if prior.fingerprint != ask.fingerprint or prior.session != ask.session:
            return Rejected(IdempotencyMismatch())
        if (known := _of_prior(tried, conflict)) is not None:
            return known
    if has_moved_on(ask, conflict.session):
        return Rejected(StaleHead(head=conflict.session.head and conflict.session.head.turn))
    if prior is not None and prior.edit != ask.edit:
        # The same request, sent again after the head has moved: it would continue from, or replace, other
        # turns than it was first accepted for.
        return Rejected(StaleHead(head=conflict.session.head and conflict.session.head.turn))
    again = prior.turn if prior else None
    if conflict.holder is None:
        return Admitted(again)
    return _of_holder(conflict, conflict.holder, again)


def _is_marked_retry(ask: Ask, conflict: BeginConflict) -> bool:
    first, tried = conflict.prior, conflict.prior_attempt
    if first is None or tried is None:
        return False
    return is_retry_of(ask, first, ENDED.get(tried.status, RetryOf.RUNNING), conflict.prior_age_seconds)


def has_moved_on(ask: Ask, session: Session) -> bool:
    """A turn becomes the head once, when it is committed: one that is not the head now will not be later."""
    head = session.head
    if ask.is_first and head is not None:
        return True
    expected = ask.edit.replaces if ask.edit else ask.expected_head
    return expected is not None and (head is None or head.turn != expected)


def _of_prior(attempt: Attempt, conflict: BeginConflict) -> Admission | None:
    """The same request again: returns its outcome or its running attempt, or None if it must be tried
    again."""
    if attempt.status in (AttemptStatus.COMMITTED, AttemptStatus.CANCELLED):
        return Replay(attempt)
    if is_final(attempt.status):
        return None
    return None if conflict.lease_expired else Attach(attempt)


def _of_holder(conflict: BeginConflict, holder: Attempt, again: TurnId | None) -> Admission:
    if conflict.lease_expired:
        # The holder is dead or paused. It is ended as interrupted first, so that the
        # store rejects its writes if it wakes up.
        return Admitted(again, Displace(holder, Move.INTERRUPT))
    if holder.orphaned:
        return Admitted(again, Displace(holder, Move.SUPERSEDE))
    return Busy(holder)


class RetryOf(StrEnum):
    """Returns the state of the attempt that an SDK's retry may mean."""

    RUNNING = "running"
    COMMITTED = "committed"
    FAILED = "failed"  # or interrupted
    STOPPED = "stopped"  # it was cancelled or displaced


#: All others still run.
ENDED = {
    AttemptStatus.COMMITTED: RetryOf.COMMITTED,
    AttemptStatus.FAILED: RetryOf.FAILED,
    AttemptStatus.INTERRUPTED: RetryOf.FAILED,
    AttemptStatus.CANCELLED: RetryOf.STOPPED,
    AttemptStatus.SUPERSEDED: RetryOf.STOPPED,
}


def is_retry_of(ask: Ask, first: TurnRequest, ended: RetryOf, age_seconds: float) -> bool:
    """An SDK's own retry: it has no key, but is marked as a retry, and everything else is equal. A turn that
    was cancelled or displaced is not tried again: the retry is a new turn.
    """
    seconds = RETRY_WITH_HISTORY_SECONDS if ask.has_history else RETRY_SECONDS
    return (
        first.on_leave is OnLeave.ORPHAN
        and first.caller == ask.caller
        and first.fingerprint == ask.fingerprint
        and age_seconds <= seconds
        and ended is not RetryOf.STOPPED
        and (ended is not RetryOf.FAILED or first.edit == ask.edit)
    )
