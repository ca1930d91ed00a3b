"""Decides whether and when a failed call is retried.

A call that the server may already have processed is retried only if it is idempotent.
Knows no clock and no socket.
"""

from __future__ import annotations

from lastgood.errors import (
    LastgoodError,
    NoDatabase,
    OutcomeUnknown,
    QueueFull,
    ResponseLost,
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
    """Backoff after `tries` tries, and at least what the server's Retry-After says."""
    return max(min(_FIRST_SECONDS * 2.0 ** min(tries - 1, 10), _MOST_SECONDS), asked_for or 0.0)


def may_go_again(error: LastgoodError, *, repeatable: bool, accepted: bool = False) -> bool:
    """`repeatable`: the call is idempotent. `accepted`: the server has accepted its turn before.

    A busy session is reported to the caller: a message meant for after turn 7 may make no sense after turn
    8. An accepted turn runs whatever is running now. If the server forbids retries, by 424 and
    `x-should-retry: false`, only an unknown outcome is requested again, with the same key.
    """
    if error.retryable is False and not isinstance(error, OutcomeUnknown):
        return False
    match error:
        case ResponseLost() | OutcomeUnknown():
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
