"""Whether a tenant or a token may store more: the table."""

import pytest

from lastgood.core.quotas import (
    NO_QUOTA,
    NOTHING,
    Breach,
    Quota,
    QuotaUsage,
    TooManyBytes,
    TooManySessions,
    breach_of,
    describe,
)

ONE = QuotaUsage(sessions=1)


@pytest.mark.parametrize(
    ("quota", "used", "adds", "breach"),
    [
        (NO_QUOTA, QuotaUsage(10**6, 10**12), QuotaUsage(1, 10**9), None),
        (Quota(sessions=2), QuotaUsage(1), ONE, None),
        (Quota(sessions=2), QuotaUsage(2), ONE, TooManySessions(2, 2)),
        (Quota(sessions=2), QuotaUsage(3), ONE, TooManySessions(3, 2)),
        (Quota(sessions=2), QuotaUsage(3), NOTHING, None),  # turns go on in the sessions that are there
        (Quota(bytes=100), QuotaUsage(1, 99), NOTHING, None),
        (Quota(bytes=100), QuotaUsage(1, 100), NOTHING, TooManyBytes(100, 0, 100)),
        (Quota(bytes=100), QuotaUsage(1, 100), ONE, TooManyBytes(100, 0, 100)),
        (Quota(bytes=100), QuotaUsage(0, 40), QuotaUsage(1, 60), None),
        (Quota(bytes=100), QuotaUsage(0, 40), QuotaUsage(1, 61), TooManyBytes(40, 61, 100)),
        (Quota(1, 100), QuotaUsage(1, 100), ONE, TooManySessions(1, 1)),
    ],
)
def test_mismatches_are_breaches(
    quota: Quota, used: QuotaUsage, adds: QuotaUsage, breach: Breach | None
) -> None:
    assert breach_of(quota, used, adds) == breach


def test_a_breach_says_what_is_used_and_what_to_do() -> None:
    assert describe(TooManySessions(3, 2), "tenant acme", "tenant") == (
        "tenant acme has 3 sessions; the limit is 2; "
        "delete sessions, or ask the operator to raise --tenant-sessions"
    )
    assert describe(TooManyBytes(40, 61, 100), "token tok_a", "token") == (
        "token tok_a stores 40 bytes and would add 61; the limit is 100; "
        "delete sessions, or ask the operator to raise --token-bytes"
    )


def test_what_is_used_adds_up() -> None:
    assert sum([QuotaUsage(1, 10), QuotaUsage(2, 30)], NOTHING) == QuotaUsage(3, 40)
