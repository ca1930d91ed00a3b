"""When a follow-up is parked, and the reason that people read."""

import pytest

from lastgood.core.parking_policy import MOST_FAILURES, parking_of
from lastgood.core.recovery import MOST_DEATHS
from lastgood.model.attempts import AttemptStatus
from lastgood.model.queue import Parking

DEATHS = Parking(f"The server process died during {MOST_DEATHS} attempts", deaths=MOST_DEATHS)


@pytest.mark.parametrize(
    ("status", "died", "expected"),
    [
        (AttemptStatus.FAILED, False, Parking("why", failures=MOST_FAILURES)),
        (AttemptStatus.CANCELLED, False, Parking("The turn was cancelled", failures=0)),
        (AttemptStatus.INTERRUPTED, True, DEATHS),
        (AttemptStatus.INTERRUPTED, False, None),
        (AttemptStatus.SUPERSEDED, False, None),
    ],
)
def test_only_failures_cancels_and_deaths_park(
    status: AttemptStatus, died: bool, expected: Parking | None
) -> None:
    assert parking_of(status, "why", died=died) == expected


def test_a_failure_without_a_message_still_has_a_reason() -> None:
    parking = parking_of(AttemptStatus.FAILED, None)
    assert parking is not None
    assert parking.reason
