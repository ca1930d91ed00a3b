"""Long work on the event loop, in slices.

One request must not block the loop: all streams, timers and leases would wait meanwhile. Threads do
not help, because Python code holds the interpreter there as well. So long work is written as a
generator that yields wherever it may be paused, and `paced` lets others run between slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

#: Long enough that pausing costs nothing, short enough that nobody notices.
SLICE_SECONDS = 0.005

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


async def paced(work: Generator[None, None, _Result]) -> _Result:
    """What `work` returns. Others run after every slice of it, so it must own what it works on."""
    now = asyncio.get_running_loop().time
    ends = now() + SLICE_SECONDS
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: _Result = end.value
            return result
        if now() >= ends:
            await asyncio.sleep(0)
            ends = now() + SLICE_SECONDS


async def paced_map(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """The result of `function` for each item, in order."""
    return await paced(_mapped(function, items))


def _mapped(
    function: Callable[[_Item], _Result], items: Iterable[_Item]
) -> Generator[None, None, list[_Result]]:
    results: list[_Result] = []
    for item in items:
        results.append(function(item))
        yield
    return results
