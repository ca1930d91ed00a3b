"""Ending work that must not be left half done when a turn is cancelled.

A cancelled tool has stopped when its cancellation comes back: its thread has seen the
stop and tidied up, its processes are gone. Only then may another attempt begin.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: A disk that does not answer cannot be waited for; its thread is left to itself.
_PATIENCE_SECONDS = 10.0


class WorkStopped(Exception):
    """The call was cancelled."""


class StopSignal:
    """Set when the turn was cancelled. A thread asks it before every step that others can see."""

    def __init__(self) -> None:
        self._set = threading.Event()

    def set(self) -> None:
        self._set.set()

    def check(self) -> None:
        if self._set.is_set():
            raise WorkStopped


async def in_thread(work: Callable[[StopSignal], T]) -> T:
    """Blocking work, away from the event loop. When cancelled, it comes back after the work has ended."""
    stop = StopSignal()
    running = asyncio.create_task(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        await finish(_wait_for(running))
        raise


async def _wait_for(running: asyncio.Task[Any]) -> None:
    await asyncio.wait({running}, timeout=_PATIENCE_SECONDS)
    if running.done():
        running.exception()  # marks it as retrieved


async def finish(work: Coroutine[Any, Any, None]) -> None:
    """Sees the work through however often it is cancelled meanwhile, and then passes that on."""
    task = asyncio.create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError
