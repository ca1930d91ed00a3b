"""Sessions and turns on SQLite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from itertools import chain
from typing import Any

import apsw
import orjson

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
from lastgood.store.rows import Row, readable, to_branch, to_turn
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
from lastgood.store.sqlite.database import SqliteDatabase
from lastgood.store.sqlite.events import insert_events
from lastgood.store.statements import for_rows
from lastgood.time_slices import paced_map

#: Nobody else can write while a session is imported. The writer's thread asks for the interpreter at every
#: statement, and a busy loop gives it back late; so there are few of them.
_ROWS_AT_ONCE = 200


def _insertion(statement: str, rows: Sequence[Mapping[str, Any]]) -> tuple[str, list[Any]]:
    insertion = for_rows(statement, len(rows))
    return insertion.text, [value for row in rows for value in insertion.values(row)]


class SqliteSessions:
    db: SqliteDatabase

    async def create_session(self, new: NewSession) -> Session | None:
        def work(connection: apsw.Connection) -> Session | None:
            rows = connection.execute(self.db.sql["create_session"], of_new_session(new)).fetchall()
            return to_session(rows[0]) if rows else None

        return await self.db.write(work)

    async def find_conversation(self, tenant: TenantId, conversation: str) -> Session | None:
        row = self.db.row("find_conversation", {"tenant": tenant, "conversation": conversation})
        return to_session(row) if row else None

    async def locate_conversation(
        self, tenant: TenantId, conversation: str, agent_key: str | None
    ) -> LocatedSession | None:
        parameters = {"tenant": tenant, "conversation": conversation, "agent_key": agent_key}
        row = self.db.row("locate_conversation", parameters)
        return to_located(row, agent_key) if row else None

    async def locate_session(
        self, tenant: TenantId, session: SessionId, agent_key: str | None
    ) -> LocatedSession | None:
        parameters = {"tenant": tenant, "session": session, "agent_key": agent_key}
        row = self.db.row("locate_session", parameters)
        return to_located(row, agent_key) if row else None

    async def get_session(self, tenant: TenantId, session: SessionId) -> Session | None:
        row = self.db.row("get_session", {"tenant": tenant, "session": session})
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
        return to_page(list(self.db.rows("list_sessions", parameters)), limit)

    async def walk_sessions(self, *, after: int, limit: int) -> tuple[Session, ...]:
        rows = self.db.rows("walk_sessions", {"after": after, "limit": limit})
        return tuple(readable(rows, to_session))

    async def existing_sessions(self, ids: Collection[SessionId]) -> frozenset[SessionId]:
        rows = self.db.rows("existing_sessions", {"sessions": orjson.dumps(list(ids)).decode()})
        return frozenset(SessionId(row[0]) for row in rows)

    async def set_title(
        self, tenant: TenantId, session: SessionId, title: str, by: TitleBy, events: Sequence[Event] = ()
    ) -> bool:
        def work(connection: apsw.Connection) -> bool:
            parameters = {"tenant": tenant, "session": session, "title": title, "by": by.value}
            row = connection.execute(
                self.db.sql["set_title"], parameters | {"events": len(events)}
            ).fetchone()
            if row is None:
                return False
            insert_events(connection, self.db.sql, session, row[0], events)
            return True

        return await self.db.write(work, durable=by is TitleBy.PERSON)

    async def set_field(
        self,
        tenant: TenantId,
        session: SessionId,
        field: str,
        value: object,
        audit: AuditEntry | None = None,
    ) -> bool:
        parameters = {"tenant": tenant, "session": session, "value": of_field(field, value)}

        def work(connection: apsw.Connection) -> bool:
            connection.execute(self.db.sql[f"set_{field}"], parameters)
            return connection.changes() == 1 and self._recorded(connection, audit)

        return await self.db.write(work)

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

        def work(connection: apsw.Connection) -> bool:
            connection.execute(self.db.sql["set_rules_if_unchanged"], parameters)
            return connection.changes() == 1 and self._recorded(connection, audit)

        return await self.db.write(work)

    def _recorded(self, connection: apsw.Connection, audit: AuditEntry | None) -> bool:
        if audit is not None:
            connection.execute(self.db.sql["insert_audit"], of_audit(audit)).fetchall()
        return True

    async def fork_session(self, source: Session, at: Turn | None, new: NewSession) -> Session | None:
        parameters = of_new_session(new) | {
            "source": source.id,
            "head": at.id if at else None,
            "seq": at.seq if at else 0,
            "hash": at.hash if at else None,
        }

        def work(connection: apsw.Connection) -> Session | None:
            row = connection.execute(self.db.sql["fork_session"], parameters).fetchone()
            return to_session(row) if row else None

        return await self.db.write(work)

    async def count_forks(self, tenant: TenantId, session: SessionId) -> int:
        row = self.db.row("count_forks", {"tenant": tenant, "session": session})
        return int(row[0]) if row else 0

    async def usage_of_tenant(self, tenant: TenantId) -> dict[str, tuple[int, int]]:
        rows = self.db.rows("usage_of_tenant", {"tenant": tenant})
        return {token: (int(sessions), int(size)) for token, sessions, size in rows}

    async def import_session(self, new: NewSession, turns: Sequence[Turn]) -> Session:
        session = of_import(new, turns)
        rows = await paced_map(lambda turn: of_imported(new, turn), turns)
        batches = await paced_map(
            lambda start: _insertion(self.db.sql["insert_turn"], rows[start : start + _ROWS_AT_ONCE]),
            range(0, len(rows), _ROWS_AT_ONCE),
        )

        def work(connection: apsw.Connection) -> Session:
            made = connection.execute(self.db.sql["import_session"], session).fetchall()[0]
            for statement, values in batches:
                connection.execute(statement, values)
            return to_session(made)

        return await self.db.write(work, long=True)

    async def delete_session(
        self, tenant: TenantId, session: SessionId, *, unused_since: float | None = None
    ) -> bool:
        def work(connection: apsw.Connection) -> bool:
            parameters = {"tenant": tenant, "session": session, "unused_since": unused_since}
            row = connection.execute(self.db.sql["delete_session"], parameters).fetchone()
            if row is None:
                return False
            for part in (
                "delete_steps",
                "delete_requests",
                "delete_claims",
                "delete_task_messages",
                "delete_questions",
                "delete_pointers",
                "delete_snapshots",
                "delete_tasks",
                "delete_attempts",
                "delete_events",
                "delete_queued",
            ):
                connection.execute(self.db.sql[part], parameters)
            connection.execute(self.db.sql["erase_turns"], {"session": session, "head": row[0]})
            connection.execute(self.db.sql["delete_branches"], {"session": session})
            return True

        return await self.db.write(work, long=True)


class SqliteTurns:
    db: SqliteDatabase

    async def read_turns(self, tenant: TenantId, head: TurnId, *, after_seq: int = 0) -> tuple[Turn, ...]:
        parts: list[list[Row]] = []
        place = self.db.row("place_of_turn", {"tenant": tenant, "turn": head})
        while place is not None and isinstance(place[2], int) and place[2] > after_seq:
            segment, session, upto = place
            which = {"tenant": tenant, "segment": segment, "session": session}
            rows = self.db.rows("read_segment", which | {"upto": upto, "after": after_seq})
            found: list[Row] = list(rows)
            if not found:
                break
            parts.append(found)
            first = to_turn(found[0])
            place = self.db.row("place_of_turn", {"tenant": tenant, "turn": first.parent})
            if place is not None and place[2] >= first.seq:
                break  # numbers fall towards the beginning; a damaged row must not send us round in circles
        # All rows are of one moment. Decoding them takes far longer than reading them, and can be paused.
        return tuple(await paced_map(to_turn, chain.from_iterable(reversed(parts))))

    async def turn_at(self, tenant: TenantId, head: TurnId, seq: int) -> Turn | None:
        place = self.db.row("place_of_turn", {"tenant": tenant, "turn": head})
        while place is not None and place[2] >= seq:
            segment = {"tenant": tenant, "segment": place[0]}
            first = self.db.row("first_of_segment", segment)
            if first is None:
                return None
            if first[0] <= seq:
                row = self.db.row("turn_in_segment", segment | {"seq": seq})
                return to_turn(row) if row else None
            place = self.db.row("place_of_turn", {"tenant": tenant, "turn": first[1]})
            if place is not None and place[2] >= first[0]:
                break
        return None

    async def list_branches(
        self, tenant: TenantId, session: SessionId, *, after: int = 0, limit: int
    ) -> tuple[Branch, ...]:
        page = {"tenant": tenant, "session": session, "after": after, "limit": limit}
        return tuple(map(to_branch, self.db.rows("list_branches", page)))

    async def count_branches(self, tenant: TenantId, session: SessionId) -> int:
        row = self.db.row("count_branches", {"tenant": tenant, "session": session})
        return int(row[0]) if row else 0

    def stream_turns(
        self, tenant: TenantId, head: TurnId, *, after_seq: int = 0
    ) -> AsyncGenerator[EncodedTurn, None]:
        async def rows(name: str, parameters: Mapping[str, Any]) -> list[Row]:
            await asyncio.sleep(0)  # reads happen on the loop's thread, so others have their turn first
            return list(self.db.rows(name, parameters))

        return stream_chain(rows, tenant, head, after_seq)

    async def find_turn(self, tenant: TenantId, turn: TurnId) -> Turn | None:
        row = self.db.row("find_turn", {"tenant": tenant, "turn": turn})
        return to_turn(row) if row else None
