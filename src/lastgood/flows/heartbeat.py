"""The heartbeat on a thread of its own, with its own event loop and its own connection.

Pure Python on the main loop lets the thread run every few milliseconds. What it cannot survive is code that
keeps the interpreter to itself for longer than a lease: the size of every input is limited for that reason.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from lastgood.flows.leases import Beat, Leases
from lastgood.ports import Store

log = logging.getLogger(__name__)

#: How long the end of the thread is waited for. It is a daemon: it keeps no process from ending.
_END_SECONDS = 5.0


@asynccontextmanager
async def heartbeat(store: Store, leases: Leases, apply: Callable[[Beat], None]) -> AsyncIterator[None]:
    """Renews leases until the block ends. `apply` is called on the loop that enters it."""
    if store.alone:
        yield  # nobody could take anything from this process
        return
    heartbeat = _Heartbeat(store, leases, apply)
    ticking = asyncio.create_task(leases.keep_ticking())
    heartbeat.start()
    try:
        yield
    finally:
        await asyncio.to_thread(heartbeat.end)
        ticking.cancel()
        await asyncio.wait({ticking})


class _Heartbeat:
    def __init__(self, store: Store, leases: Leases, apply: Callable[[Beat], None]) -> None:
        self._store = store
        self._leases = leases
        self._apply = apply
        self._main = asyncio.get_running_loop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lastgood-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._has_begun.wait(_END_SECONDS)
        if self._loop is None or self._task is None:
            return
        with suppress(RuntimeError):  # its loop has ended already
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(_END_SECONDS)

    # -- on the thread -----------------------------------------------------------------

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._beat())

    async def _beat(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._has_begun.set()
        async with self._store.renewals() as renew:
            while True:
                await self._leases.pause()
                try:
                    beat = await self._leases.beat(renew)
                except Exception:  # leases end by themselves; later ones must still be renewed
                    log.exception("a heartbeat failed")
                    continue
                if beat is not None:
                    with suppress(RuntimeError):  # the main loop was closed
                        self._main.call_soon_threadsafe(self._apply, beat)
