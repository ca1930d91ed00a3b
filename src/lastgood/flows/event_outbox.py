"""The events of an attempt on their way to the store.

The first event is stored at once if a client follows the session, later ones together on a
tick: never one write per token. Text that follows text is joined. Nothing is shown that was not
stored, and nothing is stored without the hold; when a write fails or the hold is
gone, `stop` is called and the attempt ends. While the store is unavailable, a write is repeated: batches are
numbered, so that one whose answer was lost is not stored twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from lastgood.errors import AttemptLost, LastgoodError, OutcomeUnknown
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.outages import through_outage
from lastgood.model.attempts import Hold, Step
from lastgood.model.audit import AuditEntry
from lastgood.model.events import Event, EventData, StoredEvent, StreamedData, ToolStreamed
from lastgood.ports import Store

_T = TypeVar("_T")

#: A hold can number 2 to the power of this batches: 16 million, days of streaming. The fence takes the other
#: 39 bits of the store's integer; a restore raises it to the time in hundredths of a second, until 2144.
_BATCH_BITS = 24


class EventOutbox:
    def __init__(
        self,
        deps: Dependencies,
        hold: Hold,
        halted: asyncio.Future[None],
        stop: Callable[[LastgoodError], None],
    ) -> None:
        self._deps = deps
        self._hold = hold
        self._halted = halted  # the attempt must stop: do not wait for the end of an outage any more
        self._stop = stop
        self._batch = hold.fence << _BATCH_BITS  # rises with the fence, so no hold repeats another's
        self._waiting: list[Event] = []
        self._more: list[str] = []  # what follows the text of the last one
        self._writing = asyncio.Lock()  # keeps what is stored in the order it was put
        self._flusher: asyncio.Task[None] | None = None
        self.is_untouched = True  # nothing of the attempt was stored since its begin, nor is about to be

    def put(self, event: Event) -> None:
        last = self._waiting[-1] if self._waiting else None
        if last is not None and isinstance(event.data, StreamedData) and _joins(last.data, event.data):
            self._more.append(event.data.content)
        else:
            self._join()
            self._waiting.append(event)
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush())

    def _join(self) -> None:
        """Joins the last event and the text after it into one event. Once, not forevery chunk."""
        if self._more:
            last = self._waiting[-1]
            assert isinstance(last.data, StreamedData)
            content = "".join((last.data.content, *self._more))
            self._waiting[-1] = Event(last.attempt, replace(last.data, content=content))
            self._more = []

    async def journal(self, step: Step, audit: AuditEntry | None = None) -> None:
        """Stores a finished step, all events before it and what is on record about it in one transaction."""
        self.is_untouched = False
        async with self._writing:
            store, events = self._deps.store, self.take()
            await self._write(
                lambda batch: store.journal_if_held(self._hold, (step,), events, batch=batch, audit=audit)
            )
        self._deps.signals.notify(self._hold.session)

    async def _write(self, write: Callable[[int], Awaitable[_T]]) -> _T:
        """Stores one batch, once. The result is false if an earlier try, whose answer was lost, stored it."""
        self._batch += 1
        batch, is_unknown = self._batch, False

        async def once() -> _T:
            nonlocal is_unknown
            try:
                stored = await write(batch)
            except OutcomeUnknown:
                is_unknown = True
                raise
            if not stored and not (is_unknown and await self._deps.store.is_stored(self._hold, batch)):
                raise AttemptLost()
            return stored

        return await through_outage(once, self._deps.limits.outage_seconds, self._halted)

    def take(self) -> Sequence[Event]:
        """Returns the events that are not stored yet, for a transaction that stores more than these."""
        self._join()
        taken, self._waiting = self._waiting, []
        return taken

    async def close(self) -> None:
        """Waits for the write in progress, if any: its events were sent. No write starts after this."""
        self.is_untouched = False
        async with self._writing:
            if self._flusher is not None:
                self._flusher.cancel()

    async def _flush(self) -> None:
        try:
            if not self._deps.signals.has_subscribers(self._hold.session):
                # No client waits for the first event here. If the turn is quick,
                # its commit stores its events, and one write is saved.
                await asyncio.sleep(self._deps.limits.tick_seconds)
            while self._waiting:
                self.is_untouched = False
                async with self._writing:
                    events, now = self.take(), self._deps.clock.now()
                    last = await self._write(_appending(self._deps.store, self._hold, events, now))
                self._deps.signals.notify(self._hold.session, numbered(events, last, now))
                await asyncio.sleep(self._deps.limits.tick_seconds)
        except LastgoodError as error:
            self._stop(error)


def _appending(
    store: Store, hold: Hold, events: Sequence[Event], at: float
) -> Callable[[int], Awaitable[int | None]]:
    return lambda batch: store.append_events_if_held(hold, events, at=at, batch=batch)


def numbered(events: Sequence[Event], last: int | None, at: float) -> Sequence[StoredEvent]:
    """Returns the events exactly as the table has them now, or nothing if the last number is not known: then
    watchers read the table."""
    if not last:
        return ()
    return [
        StoredEvent(seq, event.attempt, event.data, at)
        for seq, event in enumerate(events, last - len(events) + 1)
    ]


def _joins(last: EventData, data: StreamedData) -> bool:
    """Two pieces of one text: the same kind, from the same agent, of the same tool call."""
    if type(last) is not type(data) or last.agent != data.agent:
        return False
    return not isinstance(data, ToolStreamed) or (isinstance(last, ToolStreamed) and last.id == data.id)
