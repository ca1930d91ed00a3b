"""Waits through an outage of the store.

An outage that is shorter than a lease costs an attempt time and nothing else. So its reads and writes are
retried until they succeed, its lease is lost, or it must stop. A write that is retried happens once: its
WHERE clause names its predecessor. Damage and rejected statements are not outages; they fail at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lastgood.errors import OutcomeUnknown, StoreUnavailable
from lastgood.model.attempts import Begin
from lastgood.model.ids import AttemptId, SessionId

T = TypeVar("T")

#: Between two tries, in seconds; the last one from then on.
_PAUSES = (0.05, 0.1, 0.2, 0.4)


async def through_outage(
    work: Callable[[], Awaitable[T]], seconds: float, halted: asyncio.Future[None] | None = None
) -> T:
    """Repeats `work` while the store is unavailable: for so long after its first failure, or until `halted`.

    Raises what `work` raised last.
    """
    loop = asyncio.get_running_loop()
    ends: float | None = None
    tries = 0
    while True:
        try:
            return await work()
        except StoreUnavailable:
            pause = _PAUSES[min(tries, len(_PAUSES) - 1)]
            tries += 1
            ends = loop.time() + seconds if ends is None else ends
            if loop.time() + pause > ends or (halted is not None and halted.done()):
                raise
        await (asyncio.sleep(pause) if halted is None else asyncio.wait({halted}, timeout=pause))


INTERRUPTED = "Turn interrupted: the database was unavailable for too long; nothing was committed."


def interrupted_by_outage(begin: Begin) -> StoreUnavailable:
    is_durable = begin.ask.durable or begin.takes is not None
    then = (
        "The server retries it when the database is available." if is_durable else "Send the request again."
    )
    return StoreUnavailable(f"{INTERRUPTED} {then}")


def outcome_unknown(session: SessionId, attempt: AttemptId | None) -> OutcomeUnknown:
    where = f"/attempts/{attempt}" if attempt is not None else "/turns"
    return OutcomeUnknown(
        "The database did not confirm the commit, so the outcome of this turn is unknown. Before "
        f"you send it again, read GET /api/sessions/{session}{where}, or repeat the request "
        "with the same Idempotency-Key if it had one.",
        session=session,
        attempt=attempt,
    )
