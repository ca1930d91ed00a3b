"""Decides whether a call that failed is made once more, and when.

One question counts: may it have been done already? Then only a call that can be repeated is.
Knows no clock and no socket.
"""

from __future__ import annotations

from lastgood.errors import (
    AnswerLost,
    LastgoodError,
    NoDatabase,
    OutcomeUnknown,
    QueueFull,
    ServerUnreachable,
    SessionBusy,
    ShuttingDown,
    StoreError,
    StoreFull,
    StoreUnavailable,
    TooManyRequests,
)

_FIRST_SECONDS = 0.1
_MOST_SECONDS = 2.0


def pause_seconds(tries: int, asked_for: float | None = None) -> float:
    """After so many tries; never less than the server asked for."""
    return max(min(_FIRST_SECONDS * 2.0 ** min(tries - 1, 10), _MOST_SECONDS), asked_for or 0.0)


def may_go_again(error: LastgoodError, *, repeatable: bool, accepted: bool = False) -> bool:
    """`repeatable`: done twice is done once. `accepted`: it is about a turn that was promised before.

    A busy session is the caller's business: what was meant for after turn 7 may make no sense after
    turn 8. A promised turn is meant to come whatever runs now. What the server forbids to retry, by 424
    and `x-should-retry: false`, is not retried; only a lost outcome is looked for, under the same key.
    """
    if error.retryable is False and not isinstance(error, OutcomeUnknown):
        return False
    match error:
        case AnswerLost() | OutcomeUnknown():
            return repeatable
        case ServerUnreachable() | ShuttingDown():
            return True
        case StoreFull() | NoDatabase() | QueueFull():
            return False
        case StoreUnavailable() | TooManyRequests():
            return True
        case StoreError():
            return repeatable
        case SessionBusy():
            return accepted
        case _:
            return False
