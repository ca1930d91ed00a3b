"""The queue on PostgreSQL. attempts.py changes its rows where they change with an attempt."""

from __future__ import annotations

from lastgood.model.attempts import Hold
from lastgood.model.ids import SessionId, TenantId
from lastgood.model.queue import NewQueued, NotQueued, Queued
from lastgood.store.postgres.database import PostgresDatabase
from lastgood.store.queue_rows import KNOWN, of_place, of_queued, to_queued
from lastgood.store.rows import of_hold, writable


class PostgresQueue:
    db: PostgresDatabase

    async def enqueue(self, new: NewQueued, *, most: int) -> Queued | NotQueued:
        parameters = of_queued(new)
        while True:
            async with self.db.transaction() as transaction:
                await transaction.row("lock_session", parameters)
                row = await transaction.row("may_enqueue", parameters | {"most": most})
                if row is None:
                    return NotQueued.GONE
                why, attempt = row
                if why not in (None, KNOWN):
                    return NotQueued(why)
                found = None
                if why is None:
                    found = await transaction.row("insert_queued", parameters | {"attempt": attempt})
                if found is None:
                    found = await transaction.row("queued_by_key", parameters)
            # None: whatever had the key was deleted meanwhile, so the key is free.
            if found is not None:
                return to_queued(found)

    async def read_queue(self, tenant: TenantId, session: SessionId) -> tuple[Queued, ...]:
        rows = await self.db.rows("read_queue", {"tenant": tenant, "session": session})
        return tuple(map(to_queued, rows))

    async def parked(self, tenant: TenantId, *, limit: int) -> tuple[Queued, ...]:
        rows = await self.db.rows("parked", {"tenant": tenant, "limit": limit})
        return tuple(map(to_queued, rows))

    async def steers_of(self, hold: Hold) -> tuple[Queued, ...]:
        return tuple(map(to_queued, await self.db.rows("steers_of", of_hold(hold))))

    async def waiting_queues(self, limit: int) -> tuple[tuple[TenantId, SessionId], ...]:
        rows = await self.db.rows("waiting_queues", {"limit": limit})
        return tuple((TenantId(tenant), SessionId(session)) for tenant, session in rows)

    async def drop_queued(self, tenant: TenantId, session: SessionId, number: int) -> bool:
        return bool(await self.db.write("drop_queued", of_place(tenant, session, number)))

    async def park_queued(self, tenant: TenantId, session: SessionId, number: int, why: str) -> bool:
        reason = {"why": writable(why)}
        return bool(await self.db.write("park_queued", of_place(tenant, session, number) | reason))

    async def unpark_queued(self, tenant: TenantId, session: SessionId, number: int) -> bool:
        return bool(await self.db.write("unpark_queued", of_place(tenant, session, number)))
