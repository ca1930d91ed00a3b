"""An event loop on a virtual clock: nothing waits, time jumps to whatever comes next."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: A simulation of two nodes takes some thousands. What takes more goes round in circles.
MOST_ROUNDS = 50_000


class _JumpingSelector(selectors.DefaultSelector):
    """Does not wait: moves the clock instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._rounds = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        self._rounds += 1
        if self._rounds == MOST_ROUNDS:
            raise RuntimeError("the simulation is stuck: it does not come to an end")
        if not ready:
            if timeout is None:
                raise RuntimeError("the simulation is stuck: nothing will ever happen again")
            self.now += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def hold_up(self, seconds: float) -> None:
        """Time goes by, and nothing runs."""
        self._jumping.now += seconds


def run_virtually(make: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(make(loop))
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()
