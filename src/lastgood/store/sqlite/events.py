"""Events on SQLite. Their numbers are taken from the session's row, in the transaction that stores them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import apsw

from lastgood.model.attempts import Hold
from lastgood.model.events import Event, StoredEvent
from lastgood.model.ids import SessionId, TenantId
from lastgood.store.rows import EVENT_PAGE_BYTES, event_body, to_event
from lastgood.store.sqlite.database import Row, SqliteDatabase


def insert_events(
    connection: apsw.Connection,
    sql: Mapping[str, str],
    session: SessionId,
    last: int,
    events: Sequence[Event],
    at: float | None = None,
) -> None:
    """Numbers end at `last`: the session's counter was moved past them just before."""
    first = last - len(events) + 1
    connection.executemany(
        sql["insert_event"],
        [
            {
                "session": session,
                "seq": seq,
                "kind": event.kind.value,
                "attempt": event.attempt,
                "at": at,
                "body": event_body(event),
            }
            for seq, event in enumerate(events, first)
        ],
    )


def touch_if_held(
    connection: apsw.Connection,
    sql: Mapping[str, str],
    hold: Hold,
    events: Sequence[Event],
    at: float | None = None,
    batch: int | None = None,
) -> int | None:
    """Stores events under a hold; None: it is gone, or the batch was stored before; nothing was written."""
    row = connection.execute(
        sql["touch_if_held"],
        {
            "tenant": hold.tenant,
            "session": hold.session,
            "attempt": hold.attempt,
            "fence": hold.fence,
            "events": len(events),
            "batch": batch,
        },
    ).fetchone()
    if row is None:
        return None
    insert_events(connection, sql, hold.session, row[0], events, at)
    return int(row[0])


class SqliteEvents:
    db: SqliteDatabase

    async def append_events_if_held(
        self, hold: Hold, events: Sequence[Event], *, at: float | None = None, batch: int | None = None
    ) -> int | None:
        def work(connection: apsw.Connection) -> int | None:
            return touch_if_held(connection, self.db.sql, hold, events, at, batch)

        return await self.db.write(work, durable=False)

    async def read_events(
        self, tenant: TenantId, session: SessionId, *, after: int, limit: int = 500
    ) -> tuple[StoredEvent, ...]:
        parameters = {"tenant": tenant, "session": session, "after": after, "limit": limit}
        room = EVENT_PAGE_BYTES

        def fills_page(row: Row) -> bool:
            nonlocal room
            room -= len(row[3])
            return room <= 0

        return tuple(map(to_event, self.db.rows("read_events", parameters, is_last=fills_page)))

    async def tidy(self, *, events_older_than: float, keys_older_than: float, limit: int = 100) -> int:
        def work(connection: apsw.Connection) -> int:
            sql = self.db.sql
            before = connection.total_changes()
            old = connection.execute(
                sql["tidy_attempts"], {"age": events_older_than, "limit": limit}
            ).fetchall()
            for attempt, session, last_event, task in old:
                connection.execute(sql["tidy_events"], {"session": session, "last": last_event})
                connection.execute(sql["mark_dropped"], {"session": session, "last": last_event})
                if task is not None:
                    connection.execute(sql["tidy_claims"], {"task": task, "age": events_older_than})
                connection.execute(sql["mark_tidied"], {"attempt": attempt})
            connection.execute(sql["tidy_requests"], {"age": keys_older_than, "limit": limit})
            connection.execute(sql["tidy_queued"], {"age": keys_older_than, "limit": limit})
            return connection.total_changes() - before

        return await self.db.write(work, durable=False)
