"""Watching a session: the exact events after a number, as they are stored.

Watchers come, go and are slow without changing anything: each reads the table
at its own pace and holds one page of it at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from lastgood.flows.parts import Parts
from lastgood.model.events import TERMINAL, StoredEvent
from lastgood.model.ids import AttemptId, SessionId, TenantId


async def follow(
    parts: Parts, tenant: TenantId, session: SessionId, *, after: int = 0, until: AttemptId | None = None
) -> AsyncIterator[StoredEvent]:
    """Events numbered above `after`; ends with the last one of attempt `until`, or with the session."""
    told = parts.signals.listen(session)
    try:
        while True:
            told.clear()
            page = await parts.store.read_events(tenant, session, after=after)
            for event in page:
                after = event.seq
                yield event
                if until is not None and event.attempt == until and event.kind in TERMINAL:
                    return
            if page:
                continue
            if not await _heard(told, parts.limits.poll_seconds) and await _is_over(
                parts, tenant, session, until
            ):
                return
    finally:
        parts.signals.leave(session, told)


async def _heard(told: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await told.wait()
    except TimeoutError:
        return False
    return True


async def _is_over(parts: Parts, tenant: TenantId, session: SessionId, until: AttemptId | None) -> bool:
    """Nothing more will come: the session is deleted, or the attempt's events have been tidied away."""
    if until is None:
        return await parts.store.get_session(tenant, session) is None
    attempt = await parts.store.get_attempt(tenant, until)
    return attempt is None
