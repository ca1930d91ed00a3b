"""Decides whether anything can be written, for readiness probes.

A load balancer probes every second or so, and a write per probe would wear the disk of an idle
server. So writes that happened anyway count, and a test write is made only when there were none for a
while, or when one failed. Knows no database: the store passes its own test write.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from lastgood.errors import StoreError

#: A write that succeeded within this time shows that writes work.
FRESH_SECONDS = 10.0
#: While writes fail, the test write is repeated this often, so that the server recovers by itself.
RETRY_SECONDS = 1.0
#: As much as a usual turn writes: a full disk may still take less.
PROBE_BYTES = 64 * 1024
#: A test write that takes longer counts as failed.
PROBE_SECONDS = 5.0


class Writability:
    def __init__(
        self, probe: Callable[[], Awaitable[object]], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._probe = probe
        self._now = now
        self._succeeded_at = -FRESH_SECONDS
        self._probed_at = -RETRY_SECONDS
        self._in_doubt = False  # a write failed, and no test write has succeeded since
        self._reason: str | None = None
        self._probing = asyncio.Lock()

    def succeeded(self) -> None:
        self._succeeded_at = self._now()

    def failed(self) -> None:
        """Small writes may still succeed on a full disk, so only a test write ends the doubt."""
        self._in_doubt = True

    async def why_not(self) -> str | None:
        """Returns None if the store can be written."""
        # Probes that come together share one test write.
        async with self._probing:
            if not self._is_known():
                self._reason = await self._try()
                self._in_doubt = self._reason is not None
                self._probed_at = self._now()
                if self._reason is None:
                    self.succeeded()
            return self._reason

    def _is_known(self) -> bool:
        if self._in_doubt or self._reason is not None:
            return self._reason is not None and self._now() - self._probed_at < RETRY_SECONDS
        return self._now() - self._succeeded_at < FRESH_SECONDS

    async def _try(self) -> str | None:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._probe()
        except StoreError as error:
            return f"the database cannot be written: {error.message}"
        except TimeoutError:
            return f"the database cannot be written: a test write exceeded {PROBE_SECONDS:g} s"
        return None
