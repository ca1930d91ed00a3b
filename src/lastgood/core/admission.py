"""Decides whether a turn may start.

Knows one rule: a session runs one turn at a time. Everything else here says who
of two requests is meant: the same request once more (replay or attach), one
whose requester has gone (superseded), one whose holder has died (interrupted).
Knows no clock, no database and no HTTP; callers pass what stood in the way and
act on what comes back.
"""

from __future__ import annotations

from dataclasses import dataclass

from lastgood.core.lifecycle import Move, is_final
from lastgood.errors import IdempotencyMismatch, LastgoodError, SessionNotFound, StaleHead
from lastgood.model.attempts import Ask, Attempt, AttemptStatus, OnLeave, Request, Standing
from lastgood.model.ids import TurnId

#: SDKs wait at most some seconds before they send a request again by themselves.
RETRY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Displace:
    """An attempt that must be ended before ours can begin."""

    attempt: Attempt
    move: Move


@dataclass(frozen=True, slots=True)
class Admitted:
    """Begin: a new turn, or `again` one that was asked for before; after ending `displace`, if given."""

    again: TurnId | None = None
    displace: Displace | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """This request has its outcome; tell it again."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Attach:
    """This request is being worked on; watch that."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Busy:
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Refused:
    error: LastgoodError


Admission = Admitted | Replay | Attach | Busy | Refused


def admit(ask: Ask, standing: Standing) -> Admission:
    if standing.session is None:
        return Refused(SessionNotFound())
    if standing.prior is not None and standing.prior_attempt is not None:
        if standing.prior.fingerprint != ask.fingerprint or standing.prior.session != ask.session:
            return Refused(IdempotencyMismatch())
        if (known := _of_prior(standing.prior_attempt, standing)) is not None:
            return known
    if standing.head_attempt is not None and _lost_its_answer(ask, standing):
        return Replay(standing.head_attempt)
    if _moved_on(ask, standing):
        return Refused(StaleHead(head=standing.session.head and standing.session.head.turn))
    if standing.prior is not None and standing.prior.edit != ask.edit:
        # The same request, sent again after the head has moved: it would go on from, or replace,
        # something else than it was first accepted for.
        return Refused(StaleHead(head=standing.session.head and standing.session.head.turn))
    again = standing.prior.turn if standing.prior else None
    if standing.holder is None:
        return Admitted(again)
    return _of_holder(ask, standing, standing.holder, again)


def _moved_on(ask: Ask, standing: Standing) -> bool:
    """A turn becomes the head once, when it is committed: one that is not the head now will not be later."""
    assert standing.session is not None
    head = standing.session.head
    if ask.is_first and head is not None:
        return True
    expected = ask.edit.replaces if ask.edit else ask.expected_head
    return expected is not None and (head is None or head.turn != expected)


def _of_prior(attempt: Attempt, standing: Standing) -> Admission | None:
    """The same key again: its outcome, its running try, or None: it must be tried again."""
    if attempt.status in (AttemptStatus.COMMITTED, AttemptStatus.CANCELLED):
        return Replay(attempt)
    if is_final(attempt.status):
        return None
    return None if standing.lease_expired else Attach(attempt)


def _of_holder(ask: Ask, standing: Standing, holder: Attempt, again: TurnId | None) -> Admission:
    if standing.lease_expired:
        # The holder is dead or paused. It is ended as interrupted first: its
        # fence then no longer opens anything, should it wake up.
        return Admitted(again, Displace(holder, Move.INTERRUPT))
    if _is_retry_of(ask, standing.holder_request):
        return Attach(holder)
    if holder.orphaned:
        return Admitted(again, Displace(holder, Move.SUPERSEDE))
    return Busy(holder)


def _lost_its_answer(ask: Ask, standing: Standing) -> bool:
    """A retry of what was committed just now: the answer got lost on the way.

    Only the newest turn and only for a short while: without a key, the same words
    may well be said again, and then they are meant.
    """
    return standing.head_age_seconds <= RETRY_SECONDS and _is_retry_of(ask, standing.head_request)


def _is_retry_of(ask: Ask, first: Request | None) -> bool:
    """An SDK's own retry: it has no key, but says that it is one, and all else is equal."""
    return (
        ask.is_retry
        and first is not None
        and first.on_leave is OnLeave.ORPHAN
        and first.caller == ask.caller
        and first.fingerprint == ask.fingerprint
    )
