"""The event feed of a session: exactly the events after a number, as they are stored.

The number, speed and loss of watchers change nothing: each reads the table at its own pace and holds one page
of it at most. One that keeps up with a run of this process gets the stored events directly, if their numbers
follow its own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial

from lastgood.flows.dependencies import Dependencies
from lastgood.flows.outages import through_outage
from lastgood.model.events import EventKind, EventsDropped, StoredEvent
from lastgood.model.ids import AttemptId, SessionId, TenantId


async def follow(
    deps: Dependencies,
    tenant: TenantId,
    session: SessionId,
    *,
    after: int = 0,
    until: AttemptId | None = None,
    is_over: Callable[[], Awaitable[bool]] | None = None,
    is_last: bool = False,
) -> AsyncGenerator[StoredEvent, None]:
    """Yields exactly the events above `after`, or one `resync` if some of them have expired.

    Ends with the last event of attempt `until`, with the session, or when `is_over` says that nothing more
    will come. `is_last`: nothing was stored after `after` when the first event is requested, so there is
    nothing to read yet.
    """
    subscription = deps.signals.listen(session)
    sure = is_last  # that nothing up to `after` was missed
    over = False
    try:
        if is_last:
            await subscription.wait(deps.limits.poll_seconds)
        while True:
            handed = subscription.take()
            if handed and handed[0].seq <= after + 1:
                page: Sequence[StoredEvent] = [event for event in handed if event.seq > after]
            else:
                handed = ()
                page = await _read(deps, tenant, session, after)
            if not handed and (page[0].seq != after + 1 if page else not sure):
                missed = await _missed(deps, tenant, session, after)
                sure = True
                if missed is not None:
                    yield missed
                    after = missed.seq
                    continue
            for event in page:
                after = event.seq
                yield event
                if until is not None and event.attempt == until and event.kind is EventKind.ATTEMPT_ENDED:
                    return
            if page and not handed:
                sure = True  # what comes next has not been stored yet, or is in the next page
                continue
            if over and not handed:
                return
            sure = await subscription.wait(deps.limits.poll_seconds)
            # Events stored between that read and this check are read once more before the feed ends.
            over = not sure and await (is_over() if is_over else _is_over(deps, tenant, session, until))
    finally:
        deps.signals.leave(session, subscription)


async def _read(
    deps: Dependencies, tenant: TenantId, session: SessionId, after: int
) -> tuple[StoredEvent, ...]:
    """Retries through an outage: the run continues meanwhile, so its watchers must, too."""
    read = partial(deps.store.read_events, tenant, session, after=after)
    return await through_outage(read, deps.limits.outage_seconds)


async def _missed(deps: Dependencies, tenant: TenantId, session: SessionId, after: int) -> StoredEvent | None:
    """Numbers may be skipped; only what was stored and dropped is missed. So is a number never given."""
    found = await through_outage(lambda: deps.store.get_session(tenant, session), deps.limits.outage_seconds)
    if found is None or found.events_dropped <= after <= found.last_event_seq:
        return None
    known = found.events_dropped if after < found.events_dropped else found.last_event_seq
    return StoredEvent(known, None, EventsDropped(known), deps.clock.now())


async def _is_over(deps: Dependencies, tenant: TenantId, session: SessionId, until: AttemptId | None) -> bool:
    """Nothing more will come: the session is deleted, or the attempt has ended."""
    seconds = deps.limits.outage_seconds
    if until is None:
        return await through_outage(lambda: deps.store.get_session(tenant, session), seconds) is None
    attempt = await through_outage(lambda: deps.store.get_attempt(tenant, until), seconds)
    return attempt is None or attempt.ended_at is not None
