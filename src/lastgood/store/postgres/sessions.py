"""Sessions and turns on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from lastgood.model.events import Event
from lastgood.model.ids import SessionId, TenantId, TurnId
from lastgood.model.sessions import NewSession, Session, SessionPage, TitleBy, Turn
from lastgood.store.postgres.database import Database
from lastgood.store.postgres.events import of_events
from lastgood.store.rows import NEWEST, like, of_new_session, to_session, to_turn


class PostgresSessions:
    db: Database

    async def create_session(self, new: NewSession) -> Session | None:
        rows = await self.db.write("create_session", of_new_session(new))
        return to_session(rows[0]) if rows else None

    async def find_conversation(self, tenant: TenantId, conversation: str) -> Session | None:
        row = await self.db.row("find_conversation", {"tenant": tenant, "conversation": conversation})
        return to_session(row) if row else None

    async def get_session(self, tenant: TenantId, session: SessionId) -> Session | None:
        row = await self.db.row("get_session", {"tenant": tenant, "session": session})
        return to_session(row) if row else None

    async def move_conversation(
        self, tenant: TenantId, conversation: str, source: Session, target: SessionId
    ) -> bool:
        parameters = {
            "tenant": tenant,
            "conversation": conversation,
            "source": source.id,
            "turns": source.turns,
            "target": target,
        }
        async with self.db.transaction() as transaction:
            if await transaction.row("leave_conversation", parameters) is None:
                return False
            return await transaction.row("take_conversation", parameters) is not None

    async def list_sessions(
        self, tenant: TenantId, *, limit: int, cursor: int | None = None, query: str = ""
    ) -> SessionPage:
        rows = await self.db.rows(
            "list_sessions",
            {
                "tenant": tenant,
                "before": NEWEST if cursor is None else cursor,
                "query": like(query),
                "limit": limit + 1,
            },
        )
        page = tuple(to_session(row) for row in rows[:limit])
        return SessionPage(page, page[-1].number if len(rows) > limit else None)

    async def set_title(
        self, tenant: TenantId, session: SessionId, title: str, by: TitleBy, events: Sequence[Event] = ()
    ) -> bool:
        parameters = {"tenant": tenant, "session": session, "title": title, "by": by.value}
        return bool(await self.db.write("set_title", parameters | of_events(events)))

    async def set_field(self, tenant: TenantId, session: SessionId, field: str, value: object) -> bool:
        plain = orjson.dumps(value).decode() if field == "metadata" else value
        parameters = {"tenant": tenant, "session": session, "value": plain}
        return bool(await self.db.write(f"set_{field}", parameters))

    async def fork_session(self, source: Session, at: Turn | None, new: NewSession) -> Session | None:
        parameters = of_new_session(new) | {
            "source": source.id,
            "head": at.id if at else None,
            "seq": at.seq if at else 0,
            "hash": at.hash if at else None,
        }
        async with self.db.transaction() as transaction:
            await transaction.row("lock_for_fork", parameters)
            row = await transaction.row("fork_session", parameters)
        return to_session(row) if row else None

    async def delete_session(self, tenant: TenantId, session: SessionId) -> bool:
        parameters = {"tenant": tenant, "session": session}
        async with self.db.transaction() as transaction:
            await transaction.row("lock_for_delete", parameters)
            row = await transaction.row("delete_session", parameters)
            if row is None:
                return False
            await transaction.row("delete_attempts", parameters)
            await transaction.row("delete_traces", parameters)
            await transaction.row("erase_turns", parameters | {"head": row[0]})
        return True


class PostgresTurns:
    db: Database

    async def read_turns(self, tenant: TenantId, head: TurnId, *, after_seq: int = 0) -> tuple[Turn, ...]:
        parameters = {"tenant": tenant, "head": head, "after": after_seq}
        return tuple(to_turn(row) for row in await self.db.rows("read_turns", parameters))

    async def find_turn(self, tenant: TenantId, turn: TurnId) -> Turn | None:
        row = await self.db.row("find_turn", {"tenant": tenant, "turn": turn})
        return to_turn(row) if row else None
