"""Decides whether the CLIs of a worker may run.

A worker that slept (laptop lid, SIGSTOP) does not know whether its claims are still its own. If it slept past
its lease, its CLIs must halt until a heartbeat has confirmed the claims. A worker that was awake all the time
and cannot reach its server goes on: its reports are late, and count if nobody has taken over.

Knows no process and no signal; takes the time as an argument.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

#: The watch ticks every second. A gap this long means that the process did not run.
SLEPT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Moment:
    """By two clocks: one of them may stand still while the machine sleeps."""

    monotonic: float
    wall: float

    def seconds_since(self, earlier: Moment) -> float:
        return max(self.monotonic - earlier.monotonic, self.wall - earlier.wall, 0.0)


def now() -> Moment:
    return Moment(time.monotonic(), time.time())


class LeaseWatch:
    def __init__(self, started: Moment, lease_seconds: float) -> None:
        self.lease_seconds = lease_seconds
        self._confirmed = started
        self._ticked = started
        self._woke: Moment | None = None

    @property
    def must_halt(self) -> bool:
        return self._woke is not None

    def tick(self, at: Moment) -> bool:
        """Returns True if the CLIs must halt now: the process slept, and its lease has ended meanwhile."""
        slept = at.seconds_since(self._ticked) >= SLEPT_SECONDS
        self._ticked = at
        if slept and at.seconds_since(self._confirmed) >= self.lease_seconds:
            self._woke = at
            return True
        return False

    def confirm(self, sent: Moment) -> None:
        """A heartbeat that was sent then was answered. One that was sent before the sleep proves nothing."""
        if self._woke is not None and sent.monotonic < self._woke.monotonic:
            return
        self._confirmed = sent
        self._woke = None
