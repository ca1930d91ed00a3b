"""What people look at around a session, on either database."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lastgood.model.attempts import Attempt
from lastgood.model.audit import AuditKind, AuditRecord
from lastgood.model.ids import SessionId, TenantId, TurnId
from lastgood.model.sessions import Session
from lastgood.store.audit import to_record
from lastgood.store.rows import readable, to_attempt
from lastgood.store.session_rows import to_session
from lastgood.store.task_rows import as_text
from lastgood.store.work_access import WorkTransactions


class SqlActivity(WorkTransactions):
    async def attempts_between(
        self, tenant: TenantId, session: SessionId, *, after: int, before: int, limit: int
    ) -> tuple[Attempt, ...]:
        wanted = {"tenant": tenant, "session": session, "after": after, "before": before, "limit": limit}
        rows = await self._rows("attempts_between", wanted)
        return tuple(reversed(list(readable(rows, to_attempt))))

    async def attempts_of_turn(self, tenant: TenantId, turn: TurnId, *, limit: int) -> tuple[Attempt, ...]:
        rows = await self._rows("attempts_of_turn", {"tenant": tenant, "turn": turn, "limit": limit})
        return tuple(readable(rows, to_attempt))

    async def queued_at(self, tenant: TenantId, turn: TurnId) -> float | None:
        row = await self._row("queued_at", {"tenant": tenant, "turn": turn})
        return None if row is None else row[0]

    async def forks_of(self, tenant: TenantId, session: SessionId, *, limit: int) -> tuple[Session, ...]:
        rows = await self._rows("forks_of", {"tenant": tenant, "session": session, "limit": limit})
        return tuple(to_session(row) for row in rows)

    async def sessions_of_request(
        self, tenant: TenantId, request: str, *, limit: int
    ) -> tuple[SessionId, ...]:
        rows = await self._rows("sessions_of_request", {"tenant": tenant, "request": request, "limit": limit})
        return tuple(SessionId(row[0]) for row in rows)

    async def sessions_of_user(self, tenant: TenantId, user: str, *, limit: int) -> tuple[SessionId, ...]:
        rows = await self._rows("sessions_of_user", {"tenant": tenant, "user": user, "limit": limit})
        return tuple(SessionId(row[0]) for row in rows)

    async def sessions_of_ids(
        self, tenant: TenantId, sessions: Collection[SessionId]
    ) -> Mapping[SessionId, Session]:
        wanted = {"tenant": tenant, "sessions": as_text(list(sessions))}
        found = [to_session(row) for row in await self._rows("sessions_of_ids", wanted)]
        return {one.id: one for one in found}

    async def newest_attempts(
        self, tenant: TenantId, sessions: Collection[SessionId]
    ) -> Mapping[SessionId, Attempt]:
        wanted = {"tenant": tenant, "sessions": as_text(list(sessions))}
        rows = await self._rows("newest_attempts", wanted)
        return {one.session: one for one in readable(rows, to_attempt)}

    async def newest_audit(
        self, tenant: TenantId, subject: str, kind: AuditKind, *, limit: int
    ) -> tuple[AuditRecord, ...]:
        wanted = {"tenant": tenant, "subject": subject, "kind": kind.value, "limit": limit}
        return tuple(to_record(row) for row in await self._rows("newest_audit", wanted))
