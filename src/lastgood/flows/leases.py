"""The leases of the attempts that this process runs, and the heartbeat that renews them.

Only a store that several processes share has leases; a process that has its store to itself holds its
attempts until they end. A renewal that was not answered has renewed nothing.

The heartbeat may run on a thread of its own (`heartbeat.py`), so that a blocked main loop keeps its leases.
Two rules make that safe. Of a lease, the heartbeat writes `sent` and nothing else: after a stall the main
loop's timers fire before anything that was handed over to it, so a timer looks there before it stops a run.
And nothing is renewed while the main loop has not run for long: a wedged process must lose its sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from lastgood.errors import StoreError
from lastgood.flows.dependencies import FlowLimits
from lastgood.model.attempts import Attempt, Hold
from lastgood.model.ids import AttemptId
from lastgood.ports import Clock, Renew

#: After a failed renewal the next one comes sooner, so that a short outage costs no lease.
_SOONER = 10


@dataclass(slots=True)
class Lease:
    hold: Hold
    sent: float  # on the monotonic clock: when the last request that is known to have given it was sent


@dataclass(frozen=True, slots=True)
class Beat:
    """A confirmed heartbeat: the leases to renew, and those that are still held."""

    asked: tuple[Lease, ...]
    held: Mapping[AttemptId, Attempt]


class Leases:
    def __init__(self, limits: FlowLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._leases: dict[AttemptId, Lease] = {}
        self._ticked = clock.monotonic()
        self.is_failing = False  # the last heartbeat was not answered

    # -- on the main loop --------------------------------------------------------

    def take(self, hold: Hold, sent: float) -> Lease:
        lease = Lease(hold, sent)
        self._leases[hold.attempt] = lease
        return lease

    def drop(self, attempt: AttemptId) -> None:
        self._leases.pop(attempt, None)

    def seconds_left(self, lease: Lease) -> float:
        """Until its run must stop by itself. The lease was given after `sent`, so it ends later."""
        return lease.sent + self._limits.lease_stop_seconds - self._clock.monotonic()

    async def keep_ticking(self) -> None:
        """Shows that the main loop runs."""
        while True:
            self._ticked = self._clock.monotonic()
            await asyncio.sleep(min(1.0, self._limits.wedged_seconds / 4))

    # -- on the heartbeat's loop ---------------------------------------------------

    async def beat(self, renew: Renew) -> Beat | None:
        """Returns None if there was nothing to renew, or if no renewal was confirmed."""
        asked = tuple(self._leases.values())  # in one step: the main loop may change it at any time
        sent = self._clock.monotonic()
        if not asked or sent - self._ticked > self._limits.wedged_seconds:
            return None
        try:
            async with asyncio.timeout(self._limits.heartbeat_seconds / 2):
                held = await renew([lease.hold for lease in asked], self._limits.lease_seconds)
        except (StoreError, TimeoutError):
            self.is_failing = True
            return None
        self.is_failing = False
        for lease in asked:
            if lease.hold.attempt in held:
                lease.sent = sent
        return Beat(asked, held)

    async def pause(self) -> None:
        seconds = self._limits.heartbeat_seconds
        await asyncio.sleep(seconds / _SOONER if self.is_failing else seconds)
