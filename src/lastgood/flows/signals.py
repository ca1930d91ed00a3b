"""Word between a run and its watchers, here and in other processes. The event table is the truth.

Who stored events in this process hands them on with their numbers, so that a watcher that keeps up
need not read them back. A watcher holds one such batch at most: if another comes before it
was taken, or if all that is known is that there is something, it reads the table.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

from lastgood.model.events import StoredEvent
from lastgood.model.ids import SessionId


class Subscription:
    """What one watcher has heard and not taken yet."""

    __slots__ = ("_handed", "_has_heard", "_waiter")

    def __init__(self) -> None:
        self._handed: Sequence[StoredEvent] = ()
        self._has_heard = False
        self._waiter: asyncio.Future[None] | None = None

    def hear(self, stored: Sequence[StoredEvent]) -> None:
        self._handed = () if self._has_heard else stored
        self._has_heard = True
        self._wake()

    def take(self) -> Sequence[StoredEvent]:
        """A batch as it was stored. Nothing: look for yourself."""
        handed, self._handed, self._has_heard = self._handed, (), False
        return handed

    async def wait(self, seconds: float) -> bool:
        """Until there is something to take; False: nothing was heard for so long."""
        if not self._has_heard:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(seconds, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        return self._has_heard

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Signals:
    def __init__(self, tell_others: Callable[[SessionId], None]) -> None:
        self._tell_others = tell_others
        self._ears: defaultdict[SessionId, set[Subscription]] = defaultdict(set)

    def tell(self, session: SessionId, stored: Sequence[StoredEvent] = ()) -> None:
        """There are new events of the session: those, if they are given."""
        for ear in self._ears.get(session, ()):
            ear.hear(stored)
        self._tell_others(session)

    def heard(self, session: SessionId) -> None:
        """Another process has told so."""
        for ear in self._ears.get(session, ()):
            ear.hear(())

    def is_heard(self, session: SessionId) -> bool:
        return session in self._ears

    def listen(self, session: SessionId) -> Subscription:
        ear = Subscription()
        self._ears[session].add(ear)
        return ear

    def leave(self, session: SessionId, ear: Subscription) -> None:
        self._ears[session].discard(ear)
        if not self._ears[session]:
            del self._ears[session]
