"""Waits for what sends no signal: looks again every few milliseconds, and fails at a deadline."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

#: Only ends a test that hangs, also on a busy machine.
DEADLINE_SECONDS = 60.0


async def eventually(check: Callable[[], Any], seconds: float = DEADLINE_SECONDS) -> Any:
    """Returns what `check`, which may be a coroutine function, returns once that is true."""
    ends = time.monotonic() + seconds
    while True:
        found = check()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < ends, f"it did not become true within {seconds:.0f} s"
        await asyncio.sleep(0.005)


async def a_few_rounds() -> None:
    """Lets everything run that is ready, and what that makes ready."""
    for _ in range(20):
        await asyncio.sleep(0)
