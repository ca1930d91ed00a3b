"""One loop forevery write that may lose a race, and one error for giving up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from lastgood.errors import SessionBusy

T = TypeVar("T")

#: What was in the way may be gone at the next try; another request may also be faster again.
MOST_TRIES = 5


async def retry_lost_races(task: str, once: Callable[[], Awaitable[T | None]]) -> T:
    """Repeats `once` until it returns a value; None means that another request was faster.

    SessionBusy after too many tries. `task` completes "Could not …".
    """
    for _ in range(MOST_TRIES):
        found = await once()
        if found is not None:
            return found
    raise gave_up(task)


def gave_up(task: str) -> SessionBusy:
    return SessionBusy(f"Could not {task}: the session stayed busy through {MOST_TRIES} tries; try again")
