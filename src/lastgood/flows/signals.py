"""Notifications between a run and its watchers, here and in other processes.

The event table is the truth. A run in this process passes stored events on with their numbers, so that a
watcher that keeps up need not read them back. A watcher holds one such batch at most: if another arrives
before it was taken, or if a notification has no events, it reads the table.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

from lastgood.model.events import StoredEvent
from lastgood.model.ids import SessionId


class Subscription:
    """One client's pending notification, and the events that came with it."""

    __slots__ = ("_handed", "_is_notified", "_waiter")

    def __init__(self) -> None:
        self._handed: Sequence[StoredEvent] = ()
        self._is_notified = False
        self._waiter: asyncio.Future[None] | None = None

    def notify(self, stored: Sequence[StoredEvent]) -> None:
        self._handed = () if self._is_notified else stored
        self._is_notified = True
        self._wake()

    def take(self) -> Sequence[StoredEvent]:
        """Returns a batch as it was stored. If it is empty, read the table."""
        handed, self._handed, self._is_notified = self._handed, (), False
        return handed

    async def wait(self, seconds: float) -> bool:
        """Waits for a notification. Returns False if none came in time."""
        if not self._is_notified:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(seconds, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        return self._is_notified

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Signals:
    def __init__(self, tell_others: Callable[[SessionId], None]) -> None:
        self._tell_others = tell_others
        self._subscriptions: defaultdict[SessionId, set[Subscription]] = defaultdict(set)

    def notify(self, session: SessionId, stored: Sequence[StoredEvent] = ()) -> None:
        """Notifies subscribers of new events; `stored` are these events, if they are known."""
        for subscription in self._subscriptions.get(session, ()):
            subscription.notify(stored)
        self._tell_others(session)

    def on_hint(self, session: SessionId) -> None:
        """Notifies subscribers of events that another process stored."""
        for subscription in self._subscriptions.get(session, ()):
            subscription.notify(())

    def has_subscribers(self, session: SessionId) -> bool:
        return session in self._subscriptions

    def listen(self, session: SessionId) -> Subscription:
        subscription = Subscription()
        self._subscriptions[session].add(subscription)
        return subscription

    def leave(self, session: SessionId, subscription: Subscription) -> None:
        self._subscriptions[session].discard(subscription)
        if not self._subscriptions[session]:
            del self._subscriptions[session]
