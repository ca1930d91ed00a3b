"""Wakes claims that wait for a task. Only a hint, here and to other nodes: the table is the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lastgood.flows.signals import Signals
from lastgood.model.ids import SessionId


def _channel(runtime: str) -> SessionId:
    """Hints are sent by session; no session has the id of a runtime."""
    return SessionId(runtime)


def notify_workers(signals: Signals, runtime: str) -> None:
    """There may be a task to claim on this runtime."""
    signals.notify(_channel(runtime))


class TaskWaiter:
    """The subscription of one waiting claim. End it with `close`."""

    def __init__(self, signals: Signals, runtimes: Sequence[str]) -> None:
        self._signals = signals
        self._subscriptions = [(channel, signals.listen(channel)) for channel in map(_channel, runtimes)]

    async def wait(self, seconds: float) -> None:
        """Until a task may be there, or so long."""
        waits = [asyncio.ensure_future(subscription.wait(seconds)) for _, subscription in self._subscriptions]
        try:
            if waits:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(seconds)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        for _, subscription in self._subscriptions:
            subscription.take()

    def close(self) -> None:
        for channel, subscription in self._subscriptions:
            self._signals.leave(channel, subscription)
