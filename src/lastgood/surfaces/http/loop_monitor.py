"""Measures how long the event loop is held, and finds out by which request.

A timer on the loop says how late it comes. While it is overdue, a thread looks every few milliseconds at
the task that runs on the loop: tasks carry the id of the request that started them in their name. Nothing
is measured per task step or per chunk.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger(__name__)

#: How often the timer comes. The loop may have been held for this much longer than is measured.
TICK_SECONDS = 0.05
#: The loop counts as stalled if it is held for longer than this.
STALL_SECONDS = 0.25
#: The thread begins to look a little before that.
_LOOK_SECONDS = 0.1
#: The gauge shows the longest lag of the current period and of the one before it.
PERIOD_SECONDS = 30.0

_PREFIX = "request "
_request_id: ContextVar[str] = ContextVar("lastgood_request_id", default="")


def mark_request(id: str) -> None:
    """The current task, and all that it starts from here on, belong to this request."""
    _request_id.set(id)
    task = asyncio.current_task()
    if task is not None:
        task.set_name(_PREFIX + id)


def _named_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **more: Any
) -> asyncio.Task[Any]:
    context = more.get("context")
    id = _request_id.get() if context is None else context.get(_request_id, "")
    return asyncio.Task(work, loop=loop, name=_PREFIX + id if id else None, **more)


@dataclass(slots=True)
class _Seen:
    """What ran on the loop while it was held."""

    requests: set[str] = field(default_factory=set)
    at: list[str] = field(default_factory=list)


class LoopMonitor:
    """`stalls`: how often the loop was held for more than 250 ms."""

    def __init__(self) -> None:
        self.stalls = 0
        self._longest = (0.0, 0.0)  # of the period before, and of this one
        self._period_ends = 0.0
        self._due = 0.0
        self._cpu = 0.0  # of the loop's thread, when the timer was set
        self._timer: asyncio.TimerHandle | None = None
        self._seen = _Seen()
        self._ended = threading.Event()

    @property
    def lag_seconds(self) -> float:
        """The longest lag of the last 30 to 60 seconds."""
        return max(self._longest)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watches the running loop until the block ends."""
        loop = asyncio.get_running_loop()
        before = loop.get_task_factory()
        loop.set_task_factory(_named_task)
        self._period_ends = time.monotonic() + PERIOD_SECONDS
        self._set_timer(loop)
        thread = threading.Thread(
            target=self._look, args=(loop, threading.get_ident()), name="lastgood-loop-watch", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            if self._timer is not None:
                self._timer.cancel()
            loop.set_task_factory(before)

    # -- on the loop ---------------------------------------------------------------------

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = time.monotonic() + TICK_SECONDS
        self._cpu = time.thread_time()
        self._timer = loop.call_later(TICK_SECONDS, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        lag = max(now - self._due, 0.0)
        cpu = time.thread_time() - self._cpu
        if now >= self._period_ends:
            self._longest = (self._longest[1], 0.0)
            self._period_ends = now + PERIOD_SECONDS
        self._longest = (self._longest[0], max(self._longest[1], lag))
        seen, self._seen = self._seen, _Seen()
        self._set_timer(loop)
        if lag > STALL_SECONDS:
            self.stalls += 1
            fields = {
                "seconds": round(lag, 3),
                # Much less than `seconds`: the loop waited for a disk, or the machine ran something else.
                "cpu_seconds": round(cpu, 3),
                "request_ids": sorted(seen.requests),
                "at": seen.at,
            }
            log.warning("event loop stalled", extra={"fields": fields})

    # -- on the thread -------------------------------------------------------------------

    def _look(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        while not self._ended.wait(TICK_SECONDS):
            if time.monotonic() - self._due > _LOOK_SECONDS:
                self._sample(loop, thread)

    def _sample(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        """Keeps no frame when it returns: a frame keeps its variables, such as an open cursor, alive."""
        seen = self._seen
        task = asyncio.current_task(loop)
        name = "" if task is None else task.get_name()
        frame = sys._current_frames().get(thread)
        # The loop may have continued meanwhile; then what is found does not belong to the stall.
        if seen is not self._seen:
            return
        if name.startswith(_PREFIX):
            seen.requests.add(name.removeprefix(_PREFIX))
        if frame is not None and not seen.at:
            stack = traceback.extract_stack(frame)[-8:]
            seen.at = [f"{one.filename}:{one.lineno} {one.name}" for one in stack]
