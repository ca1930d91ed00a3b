"""Sessions and turns on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Any

from lastgood.model.audit import AuditEntry
from lastgood.model.events import Event
from lastgood.model.ids import SessionId, TenantId, TurnId
from lastgood.model.rules import RuleLayer
from lastgood.model.sessions import (
    Branch,
    EncodedTurn,
    LocatedSession,
    NewSession,
    Session,
    SessionPage,
    SessionStatus,
    TitleBy,
    Turn,
)
from lastgood.store.audit import of_audit
from lastgood.store.chain_reader import stream_chain
from lastgood.store.postgres.database import PostgresDatabase
from lastgood.store.postgres.event_arrays import of_events
from lastgood.store.rows import readable, to_branch, to_turn
from lastgood.store.session_rows import (
    of_field,
    of_import,
    of_imported,
    of_list,
    of_new_session,
    of_rules,
    to_located,
    to_page,
    to_session,
)
from lastgood.time_slices import paced_map


class PostgresSessions:
    db: PostgresDatabase

    async def create_session(self, new: NewSession) -> Session | None:
        rows = await self.db.write("create_session", of_new_session(new))
        return to_session(rows[0]) if rows else None

    async def find_conversation(self, tenant: TenantId, conversation: str) -> Session | None:
        row = await self.db.row("find_conversation", {"tenant": tenant, "conversation": conversation})
        return to_session(row) if row else None

    async def locate_conversation(
        self, tenant: TenantId, conversation: str, agent_key: str | None
    ) -> LocatedSession | None:
        parameters = {"tenant": tenant, "conversation": conversation, "agent_key": agent_key}
        row = await self.db.row("locate_conversation", parameters)
        return to_located(row, agent_key) if row else None

    async def locate_session(
        self, tenant: TenantId, session: SessionId, agent_key: str | None
    ) -> LocatedSession | None:
        parameters = {"tenant": tenant, "session": session, "agent_key": agent_key}
        row = await self.db.row("locate_session", parameters)
        return to_located(row, agent_key) if row else None

    async def get_session(self, tenant: TenantId, session: SessionId) -> Session | None:
        row = await self.db.row("get_session", {"tenant": tenant, "session": session})
        return to_session(row) if row else None

    async def list_sessions(
        self,
        tenant: TenantId,
        *,
        limit: int,
        cursor: int | None = None,
        query: str = "",
        agent: str | None = None,
        status: SessionStatus | None = None,
    ) -> SessionPage:
        parameters = of_list(tenant, limit, cursor, query, agent, status)
        return to_page(await self.db.rows("list_sessions", parameters), limit)

    async def walk_sessions(self, *, after: int, limit: int) -> tuple[Session, ...]:
        rows = await self.db.rows("walk_sessions", {"after": after, "limit": limit})
        return tuple(readable(rows, to_session))

    async def existing_sessions(self, ids: Collection[SessionId]) -> frozenset[SessionId]:
        rows = await self.db.rows("existing_sessions", {"sessions": list(ids)})
        return frozenset(SessionId(row[0]) for row in rows)

    async def set_title(
        self, tenant: TenantId, session: SessionId, title: str, by: TitleBy, events: Sequence[Event] = ()
    ) -> bool:
        parameters = {"tenant": tenant, "session": session, "title": title, "by": by.value}
        return bool(await self.db.write("set_title", parameters | of_events(events)))

    async def set_field(
        self,
        tenant: TenantId,
        session: SessionId,
        field: str,
        value: object,
        audit: AuditEntry | None = None,
    ) -> bool:
        parameters = {"tenant": tenant, "session": session, "value": of_field(field, value)}
        return await self._change(f"set_{field}", parameters, audit)

    async def _change(self, name: str, parameters: dict[str, Any], audit: AuditEntry | None) -> bool:
        if audit is None:
            return bool(await self.db.write(name, parameters))
        async with self.db.transaction() as transaction:
            changed = await transaction.row(name, parameters) is not None
            if changed:
                await transaction.row("insert_audit", of_audit(audit))
            return changed

    async def set_rules_if_unchanged(
        self,
        tenant: TenantId,
        session: SessionId,
        expected: tuple[RuleLayer, ...],
        rules: tuple[RuleLayer, ...],
        audit: AuditEntry | None = None,
    ) -> bool:
        parameters = {
            "tenant": tenant,
            "session": session,
            "expected": of_rules(expected),
            "rules": of_rules(rules),
        }
        return await self._change("set_rules_if_unchanged", parameters, audit)

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

    async def count_forks(self, tenant: TenantId, session: SessionId) -> int:
        row = await self.db.row("count_forks", {"tenant": tenant, "session": session})
        return int(row[0]) if row else 0

    async def usage_of_tenant(self, tenant: TenantId) -> dict[str, tuple[int, int]]:
        rows = await self.db.rows("usage_of_tenant", {"tenant": tenant})
        return {token: (int(sessions), int(size)) for token, sessions, size in rows}

    async def import_session(self, new: NewSession, turns: Sequence[Turn]) -> Session:
        async with self.db.transaction() as transaction:
            row = await transaction.row("import_session", of_import(new, turns))
            assert row is not None, "an insert that returns what it has inserted"
            for turn in turns:
                await transaction.row("insert_turn", of_imported(new, turn))
        return to_session(row)

    async def delete_session(
        self, tenant: TenantId, session: SessionId, *, unused_since: float | None = None
    ) -> bool:
        parameters = {"tenant": tenant, "session": session, "unused_since": unused_since}
        async with self.db.transaction() as transaction:
            await transaction.row("lock_for_delete", parameters)
            row = await transaction.row("delete_session", parameters)
            if row is None:
                return False
            await transaction.row("delete_attempts", parameters)
            await transaction.row("delete_tasks", parameters)
            await transaction.row("delete_traces", parameters)
            await transaction.row("erase_turns", parameters | {"head": row[0]})
            await transaction.row("delete_branches", parameters)
        return True


class PostgresTurns:
    db: PostgresDatabase

    async def read_turns(self, tenant: TenantId, head: TurnId, *, after_seq: int = 0) -> tuple[Turn, ...]:
        parameters = {"tenant": tenant, "head": head, "after": after_seq}
        return tuple(await paced_map(to_turn, await self.db.rows("read_turns", parameters)))

    def stream_turns(
        self, tenant: TenantId, head: TurnId, *, after_seq: int = 0
    ) -> AsyncGenerator[EncodedTurn, None]:
        return stream_chain(self.db.rows, tenant, head, after_seq)

    async def turn_at(self, tenant: TenantId, head: TurnId, seq: int) -> Turn | None:
        row = await self.db.row("turn_at", {"tenant": tenant, "head": head, "after": seq - 1})
        return to_turn(row) if row else None

    async def list_branches(
        self, tenant: TenantId, session: SessionId, *, after: int = 0, limit: int
    ) -> tuple[Branch, ...]:
        page = {"tenant": tenant, "session": session, "after": after, "limit": limit}
        return tuple(map(to_branch, await self.db.rows("list_branches", page)))

    async def count_branches(self, tenant: TenantId, session: SessionId) -> int:
        row = await self.db.row("count_branches", {"tenant": tenant, "session": session})
        return int(row[0]) if row else 0

    async def find_turn(self, tenant: TenantId, turn: TurnId) -> Turn | None:
        row = await self.db.row("find_turn", {"tenant": tenant, "turn": turn})
        return to_turn(row) if row else None
