"""Hints between a run and its watchers, here and in other processes. The event table is the truth."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

from lastgood.model.ids import SessionId


class Signals:
    def __init__(self, tell_others: Callable[[SessionId], None]) -> None:
        self._tell_others = tell_others
        self._waiting: defaultdict[SessionId, set[asyncio.Event]] = defaultdict(set)

    def tell(self, session: SessionId) -> None:
        self.heard(session)
        self._tell_others(session)

    def heard(self, session: SessionId) -> None:
        for event in self._waiting.get(session, ()):
            event.set()

    def is_heard(self, session: SessionId) -> bool:
        return session in self._waiting

    def listen(self, session: SessionId) -> asyncio.Event:
        event = asyncio.Event()
        self._waiting[session].add(event)
        return event

    def leave(self, session: SessionId, event: asyncio.Event) -> None:
        self._waiting[session].discard(event)
        if not self._waiting[session]:
            del self._waiting[session]
