"""How much may somebody ask for?"""

import pytest

from lastgood.core.token_bucket import (
    Allowance,
    BucketState,
    Wait,
    begin,
    begin_paid,
    end,
    is_forgettable,
    undo,
)

MINUTE = Allowance(per_minute=6)


def begun(allowance: Allowance, used: BucketState | None, now: float) -> BucketState:
    found = begin(allowance, used, now)
    assert isinstance(found, BucketState)
    return found


def test_a_minutes_worth_may_be_used_at_once_and_comes_back_with_time() -> None:
    used = None
    for _ in range(6):
        used = begun(MINUTE, used, 100.0)
    refused = begin(MINUTE, used, 100.0)
    assert isinstance(refused, Wait)
    assert refused.seconds == pytest.approx(10.0)
    assert isinstance(begin(MINUTE, used, 109.0), Wait)
    assert isinstance(begin(MINUTE, used, 110.0), BucketState)


def test_what_was_not_used_for_long_is_no_more_than_a_minutes_worth() -> None:
    used = begun(MINUTE, None, 0.0)
    for _ in range(6):
        used = begun(MINUTE, used, 1e9)
    assert isinstance(begin(MINUTE, used, 1e9), Wait)


def test_a_clock_that_goes_back_gives_and_takes_nothing() -> None:
    used = begun(MINUTE, None, 100.0)
    assert begun(MINUTE, used, 50.0).left == used.left - 1


def test_only_so_many_run_at_once() -> None:
    allowance = Allowance(at_once=2)
    used = begun(allowance, begun(allowance, None, 0.0), 0.0)
    assert isinstance(begin(allowance, used, 1e9), Wait)
    assert isinstance(begin(allowance, end(used), 0.0), BucketState)


@pytest.mark.parametrize("allowance", [MINUTE, Allowance(6, 2), Allowance(at_once=2)])
def test_what_was_paid_for_before_takes_nothing_but_its_place(allowance: Allowance) -> None:
    for before in (None, begun(allowance, None, 100.0)):
        used = begin_paid(allowance, before, 100.0)
        assert isinstance(used, BucketState)
        assert used.running == (before.running if before else 0) + 1
        assert used.left == (before.left if before else allowance.per_minute)


def test_what_was_paid_for_before_waits_for_its_place_all_the_same() -> None:
    used = begun(Allowance(6, 1), None, 0.0)
    assert isinstance(begin_paid(Allowance(6, 1), used, 1e9), Wait)
    assert isinstance(begin_paid(Allowance(6, 1), end(used), 0.0), BucketState)


def test_what_did_not_begin_is_as_if_it_was_never_requested() -> None:
    for allowance in (MINUTE, Allowance(at_once=1), Allowance(1, 1)):
        used = None
        for _ in range(10):
            used = undo(begun(allowance, used, 100.0))
        assert isinstance(begin(allowance, used, 100.0), BucketState)
    full = undo(begun(MINUTE, None, 0.0))
    for _ in range(6):  # and no more than that
        full = begun(MINUTE, full, 1e9)
    assert isinstance(begin(MINUTE, full, 1e9), Wait)


@pytest.mark.parametrize(
    ("allowance", "used", "now", "forgettable"),
    [
        (MINUTE, BucketState(5.0, 0.0, 0), 10.0, True),
        (MINUTE, BucketState(5.0, 0.0, 0), 9.0, False),
        (MINUTE, BucketState(6.0, 0.0, 1), 1e9, False),
        (Allowance(at_once=1), BucketState(0.0, 0.0, 0), 0.0, True),
    ],
)
def test_full_buckets_are_forgotten(
    allowance: Allowance, used: BucketState, now: float, forgettable: bool
) -> None:
    assert is_forgettable(allowance, used, now) is forgettable
