"""Events on PostgreSQL. Their numbers are taken from the session's row, in the statement that stores them."""

from __future__ import annotations

from collections.abc import Sequence

from lastgood.model.attempts import Hold
from lastgood.model.events import Event, StoredEvent
from lastgood.model.ids import SessionId, TenantId
from lastgood.store.postgres.database import PostgresDatabase
from lastgood.store.postgres.event_arrays import of_events
from lastgood.store.rows import EVENT_PAGE_BYTES, of_hold, to_event


class PostgresEvents:
    db: PostgresDatabase

    async def append_events_if_held(
        self, hold: Hold, events: Sequence[Event], *, at: float | None = None, batch: int | None = None
    ) -> int | None:
        parameters = of_hold(hold) | of_events(events, at=at, batch=batch)
        rows = await self.db.write("append_events_if_held", parameters)
        return int(rows[0][0]) if rows else None

    async def read_events(
        self, tenant: TenantId, session: SessionId, *, after: int, limit: int = 500
    ) -> tuple[StoredEvent, ...]:
        parameters = {"tenant": tenant, "session": session, "after": after, "limit": limit}
        parameters["bytes"] = EVENT_PAGE_BYTES
        return tuple(to_event(row) for row in await self.db.rows("read_events", parameters))

    async def tidy(self, *, events_older_than: float, keys_older_than: float, limit: int = 100) -> int:
        ages = {"events_age": events_older_than, "keys_age": keys_older_than, "limit": limit}
        rows = await self.db.write("tidy", ages)
        return int(rows[0][0])
