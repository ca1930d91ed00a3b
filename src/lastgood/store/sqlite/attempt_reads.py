"""Reads of attempts, their steps and their requests on SQLite. Every list is bounded by its limit."""

from __future__ import annotations

from typing import Any

from lastgood.errors import DatabaseDamaged, HistoryDamaged
from lastgood.model.attempts import (
    NO_LIMIT,
    Attempt,
    Interrupted,
    Step,
    TurnRequest,
    UnreadableAttempt,
)
from lastgood.model.ids import AttemptId, SessionId, TenantId, TurnId
from lastgood.store.rows import (
    readable,
    to_attempt,
    to_request,
    to_steps,
)
from lastgood.store.sqlite.database import SqliteDatabase


class SqliteAttemptReads:
    db: SqliteDatabase

    async def expired_attempts(self, limit: int) -> tuple[Attempt, ...]:
        return tuple(readable(self.db.rows("expired_attempts", {"limit": limit}), to_attempt))

    async def running_attempts(self, limit: int) -> tuple[Attempt, ...]:
        return tuple(readable(self.db.rows("running_attempts", {"limit": limit}), to_attempt))

    async def failures(self, tenant: TenantId, *, age_seconds: float, limit: int) -> tuple[Attempt, ...]:
        page = {"tenant": tenant, "age": age_seconds, "limit": limit}
        return tuple(readable(self.db.rows("failures", page), to_attempt))

    async def waiting_sessions(self, tenant: TenantId, *, limit: int) -> tuple[SessionId, ...]:
        rows = self.db.rows("waiting_sessions", {"tenant": tenant, "limit": limit})
        return tuple(SessionId(str(row[0])) for row in rows)

    async def interrupted_asks(
        self, limit: int, *, deaths_below: int, skip: int = 0
    ) -> tuple[Interrupted | UnreadableAttempt, ...]:
        found: list[Interrupted | UnreadableAttempt] = []
        page = {"limit": limit, "deaths_below": deaths_below, "skip": skip}
        rows = list(self.db.rows("interrupted_asks", page))
        for attempt, head, deaths in readable(rows, lambda row: (to_attempt(row[:-2]), *row[-2:])):
            try:
                request = self._request("read_request", {"tenant": attempt.tenant, "turn": attempt.turn})
                if request is not None:
                    steps = await self.read_steps(attempt.tenant, attempt.id)
                    found.append(Interrupted(attempt, request, steps, head, deaths))
            except (HistoryDamaged, DatabaseDamaged) as error:
                found.append(UnreadableAttempt(attempt, error.message))
        return tuple(found)

    async def get_attempt(self, tenant: TenantId, attempt: AttemptId) -> Attempt | None:
        return self._attempt("get_attempt", {"tenant": tenant, "attempt": attempt})

    async def list_attempts(
        self, tenant: TenantId, session: SessionId, *, after: int = 0, limit: int = NO_LIMIT
    ) -> tuple[Attempt, ...]:
        page = {"tenant": tenant, "session": session, "after": after, "limit": limit}
        return tuple(to_attempt(row) for row in self.db.rows("list_attempts", page))

    async def newest_attempt(self, tenant: TenantId, turn: TurnId) -> Attempt | None:
        return self._attempt("newest_attempt", {"tenant": tenant, "turn": turn})

    async def read_request(self, tenant: TenantId, turn: TurnId) -> TurnRequest | None:
        return self._request("read_request", {"tenant": tenant, "turn": turn})

    async def read_steps(self, tenant: TenantId, attempt: AttemptId) -> tuple[Step, ...]:
        return to_steps(self.db.rows("read_steps", {"tenant": tenant, "attempt": attempt}))

    def _attempt(self, name: str, parameters: dict[str, Any]) -> Attempt | None:
        row = self.db.row(name, parameters)
        return to_attempt(row) if row else None

    def _request(self, name: str, parameters: dict[str, Any]) -> TurnRequest | None:
        row = self.db.row(name, parameters)
        return to_request(row) if row else None
