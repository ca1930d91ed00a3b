"""Decides when a follow-up is parked: kept in the queue, and not tried again until a person retries it.

Knows only how an attempt ended. How often the turn failed or died before is compared by the store, in the
transaction that ends the attempt: two processes may end attempts of one turn one after the other.
"""

from __future__ import annotations

from lastgood.core.recovery import MOST_DEATHS
from lastgood.model.attempts import AttemptStatus
from lastgood.model.queue import Parking

#: A follow-up that failed this often fails again, and each attempt costs model calls.
MOST_FAILURES = 2


#: A person who cancels a turn wants the session to stop; what is queued behind it was sent before that.
HELD_AFTER_CANCEL = "A turn of this session was cancelled; retry the entry to run it, or delete it"


def parking_of(
    status: AttemptStatus, message: str | None, *, died: bool = False, by_person: bool = False
) -> Parking | None:
    """Returns None if the end of the attempt is no reason to park: a restart, an outage, a newer request.

    `by_person`: a person cancelled the turn; it was not cancelled because its client disconnected.
    """
    if status is AttemptStatus.FAILED:
        return Parking(message or "The turn failed without a message", failures=MOST_FAILURES)
    if status is AttemptStatus.CANCELLED:
        return Parking("The turn was cancelled", failures=0, others=HELD_AFTER_CANCEL if by_person else None)
    if status is AttemptStatus.INTERRUPTED and died:
        return Parking(f"The server process died during {MOST_DEATHS} attempts", deaths=MOST_DEATHS)
    return None
