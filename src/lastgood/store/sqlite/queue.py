"""The queue on SQLite. attempts.py changes its rows where they change with an attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import apsw

from lastgood.model.attempts import Begin, Hold
from lastgood.model.ids import SessionId, TenantId
from lastgood.model.queue import NewQueued, NotQueued, Queued
from lastgood.store.queue_rows import KNOWN, of_place, of_queued, to_queued
from lastgood.store.sqlite.database import SqliteDatabase


def claim_queued(
    connection: apsw.Connection, sql: Mapping[str, str], begin: Begin, parameters: Mapping[str, Any]
) -> bool:
    """Gives a begin what it takes from the queue. False: not all of it is there to be taken."""
    if begin.takes is not None:
        connection.execute(sql["take_followup"], parameters)
        if connection.changes() != 1:
            return False
    for number in begin.reclaims:
        connection.execute(sql["reclaim_steer"], {**parameters, "number": number})
        if connection.changes() != 1:
            return False
    return True


class SqliteQueue:
    db: SqliteDatabase

    async def enqueue(self, new: NewQueued, *, most: int) -> Queued | NotQueued:
        parameters = of_queued(new)

        def work(connection: apsw.Connection) -> Queued | NotQueued:
            sql = self.db.sql
            row = connection.execute(sql["may_enqueue"], parameters | {"most": most}).fetchone()
            if row is None:
                return NotQueued.GONE
            why, attempt = row
            if why == KNOWN:
                return to_queued(connection.execute(sql["queued_by_key"], parameters).fetchall()[0])
            if why is not None:
                return NotQueued(why)
            added = connection.execute(sql["insert_queued"], parameters | {"attempt": attempt}).fetchall()
            if attempt is not None:
                connection.execute(sql["hand_over"], parameters)
            return to_queued(added[0])

        return await self.db.write(work)

    async def read_queue(self, tenant: TenantId, session: SessionId) -> tuple[Queued, ...]:
        rows = self.db.rows("read_queue", {"tenant": tenant, "session": session})
        return tuple(map(to_queued, rows))

    async def parked(self, tenant: TenantId, *, limit: int) -> tuple[Queued, ...]:
        rows = self.db.rows("parked", {"tenant": tenant, "limit": limit})
        return tuple(map(to_queued, rows))

    async def steers_of(self, hold: Hold) -> tuple[Queued, ...]:
        parameters = {"tenant": hold.tenant, "session": hold.session, "attempt": hold.attempt}
        return tuple(map(to_queued, self.db.rows("steers_of", parameters)))

    async def waiting_queues(self, limit: int) -> tuple[tuple[TenantId, SessionId], ...]:
        rows = self.db.rows("waiting_queues", {"limit": limit})
        return tuple((TenantId(tenant), SessionId(session)) for tenant, session in rows)

    async def drop_queued(self, tenant: TenantId, session: SessionId, number: int) -> bool:
        return await self._change_queued("drop_queued", of_place(tenant, session, number))

    async def park_queued(self, tenant: TenantId, session: SessionId, number: int, why: str) -> bool:
        return await self._change_queued("park_queued", of_place(tenant, session, number) | {"why": why})

    async def unpark_queued(self, tenant: TenantId, session: SessionId, number: int) -> bool:
        return await self._change_queued("unpark_queued", of_place(tenant, session, number))

    async def _change_queued(self, name: str, parameters: Mapping[str, Any]) -> bool:
        def work(connection: apsw.Connection) -> bool:
            return bool(connection.execute(self.db.sql[name], parameters).fetchall())

        return await self.db.write(work)
