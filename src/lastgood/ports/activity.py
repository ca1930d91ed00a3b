"""The seam to what people look at around a session. Every read is bounded by its limit and has an index."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from lastgood.model.attempts import Attempt
from lastgood.model.audit import AuditKind, AuditRecord
from lastgood.model.ids import SessionId, TenantId, TurnId
from lastgood.model.sessions import Session


class ActivityStore(Protocol):
    async def attempts_between(
        self, tenant: TenantId, session: SessionId, *, after: int, before: int, limit: int
    ) -> tuple[Attempt, ...]:
        """The newest ones with a fence between these, oldest first."""
        ...

    async def attempts_of_turn(self, tenant: TenantId, turn: TurnId, *, limit: int) -> tuple[Attempt, ...]:
        """Oldest first."""
        ...

    async def queued_at(self, tenant: TenantId, turn: TurnId) -> float | None:
        """When a follow-up or a task was queued. None: the turn began at once, or nobody knows any more."""
        ...

    async def forks_of(self, tenant: TenantId, session: SessionId, *, limit: int) -> tuple[Session, ...]:
        """Newest first."""
        ...

    async def sessions_of_request(
        self, tenant: TenantId, request: str, *, limit: int
    ) -> tuple[SessionId, ...]:
        """Those in which an HTTP request with this id has begun an attempt."""
        ...

    async def sessions_of_user(self, tenant: TenantId, user: str, *, limit: int) -> tuple[SessionId, ...]:
        """Sessions with a committed turn of this end user."""
        ...

    async def sessions_of_ids(
        self, tenant: TenantId, sessions: Collection[SessionId]
    ) -> Mapping[SessionId, Session]:
        """Those that exist, in one read."""
        ...

    async def newest_attempts(
        self, tenant: TenantId, sessions: Collection[SessionId]
    ) -> Mapping[SessionId, Attempt]:
        """The newest attempt of each of these sessions, in one read."""
        ...

    async def newest_audit(
        self, tenant: TenantId, subject: str, kind: AuditKind, *, limit: int
    ) -> tuple[AuditRecord, ...]:
        """About one subject, newest first."""
        ...
