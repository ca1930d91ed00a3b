"""Decides whether a tenant or a token may store more.

Knows no store and no clock: callers pass what is used and what would be added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never


@dataclass(frozen=True, slots=True)
class Quota:
    """Zero: any number."""

    sessions: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    sessions: int = 0
    bytes: int = 0

    def __add__(self, other: QuotaUsage) -> QuotaUsage:
        return QuotaUsage(self.sessions + other.sessions, self.bytes + other.bytes)


NO_QUOTA = Quota()
NOTHING = QuotaUsage()


@dataclass(frozen=True, slots=True)
class TooManySessions:
    used: int
    quota: int


@dataclass(frozen=True, slots=True)
class TooManyBytes:
    used: int
    added: int
    quota: int


Breach = TooManySessions | TooManyBytes


def breach_of(quota: Quota, used: QuotaUsage, adds: QuotaUsage) -> Breach | None:
    """Returns None if `adds` fits. Without a known size, anything fits while a byte is left: a turn's size is
    known when it has run, and what has run is committed."""
    if adds.sessions and quota.sessions and used.sessions + adds.sessions > quota.sessions:
        return TooManySessions(used.sessions, quota.sessions)
    if quota.bytes and (used.bytes + adds.bytes > quota.bytes or used.bytes >= quota.bytes):
        return TooManyBytes(used.bytes, adds.bytes, quota.bytes)
    return None


def describe(breach: Breach, who: str, setting: str) -> str:
    """`who` has the quota, and `setting` raises it."""
    match breach:
        case TooManySessions(used, quota):
            what = f"{who} has {used} sessions; the limit is {quota}"
            flag = f"--{setting}-sessions"
        case TooManyBytes(used, added, quota):
            more = f" and would add {added}" if added else ""
            what = f"{who} stores {used} bytes{more}; the limit is {quota}"
            flag = f"--{setting}-bytes"
        case _:
            assert_never(breach)
    return f"{what}; delete sessions, or ask the operator to raise {flag}"
