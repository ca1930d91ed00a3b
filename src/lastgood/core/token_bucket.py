"""Decides whether another turn may begin now: a token bucket, and a limit of concurrent turns.

Knows no clock and no names; callers pass the time and keep the state.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Allowance:
    """Zero: unlimited. A burst may use a whole minute's rate at once."""

    per_minute: int = 0
    at_once: int = 0


@dataclass(frozen=True, slots=True)
class BucketState:
    """The state of one token or user: tokens left at a time, and running turns."""

    left: float
    at: float
    running: int = 0


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float
    reason: str


def begin(allowance: Allowance, used: BucketState | None, now: float) -> BucketState | Wait:
    """Takes one: returns the new state, or how long to wait."""
    running = used.running if used else 0
    if allowance.at_once and running >= allowance.at_once:
        return Wait(1.0, f"{running} turns are running, which is the limit")
    if not allowance.per_minute:
        return BucketState(0.0, now, running + 1)
    full = float(allowance.per_minute)
    a_second = full / 60
    left = full if used is None else min(full, used.left + max(now - used.at, 0.0) * a_second)
    if left < 1:
        return Wait((1 - left) / a_second, f"the limit of {allowance.per_minute} turns per minute is reached")
    return BucketState(left - 1, now, running + 1)


def begin_paid(allowance: Allowance, used: BucketState | None, now: float) -> BucketState | Wait:
    """Counts a turn that took its token when it was queued, and begins only now."""
    found = begin(Allowance(at_once=allowance.at_once), used, now)
    if isinstance(found, Wait):
        return found
    left, at = (float(allowance.per_minute), now) if used is None else (used.left, used.at)
    return BucketState(left, at, found.running)


def end(used: BucketState) -> BucketState:
    return BucketState(used.left, used.at, used.running - 1)


def undo(used: BucketState) -> BucketState:
    """Undoes a take: the turn never began."""
    return BucketState(used.left + 1, used.at, used.running - 1)


def is_forgettable(allowance: Allowance, used: BucketState, now: float) -> bool:
    """Whether nothing runs and the bucket is full again, so that it can be forgotten."""
    if used.running > 0:
        return False
    return not allowance.per_minute or used.left + (now - used.at) * allowance.per_minute / 60 >= (
        allowance.per_minute
    )
