"""Decides whether a run makes progress. Bytes are not progress: a CLI that repeats itself stands still."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from lastgood.worker.job import Activity

_REMEMBERED = 256


class ProgressWatch:
    def __init__(self, now: float, idle_seconds: float) -> None:
        self._idle_seconds = idle_seconds
        self._moved = now
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def saw(self, activity: Activity, now: float) -> None:
        """Counts what was not seen lately."""
        digest = hashlib.sha256(repr(activity).encode(errors="replace")).digest()
        if digest not in self._seen:
            self._moved = now
        self._seen[digest] = None
        self._seen.move_to_end(digest)
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)

    def excuse(self, now: float) -> None:
        """The run had to wait: for a person, or for a heartbeat while it was halted."""
        self._moved = now

    def idle_for(self, now: float) -> float:
        return now - self._moved

    def is_stuck(self, now: float) -> bool:
        return self._idle_seconds > 0 and self.idle_for(now) > self._idle_seconds
