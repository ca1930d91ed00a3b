"""Pointers to native sessions, and snapshots of working directories, on either database."""

from __future__ import annotations

from collections.abc import Sequence

from lastgood.model.ids import AttemptId, SessionId, TenantId, TurnId
from lastgood.model.tasks import ClaimState, Pointer, Snapshot
from lastgood.store.rows import writable
from lastgood.store.task_rows import as_text, to_pointer, to_snapshot
from lastgood.store.work_access import Statements, WorkTransactions, first


class SqlPointers(WorkTransactions):
    async def list_pointers(self, tenant: TenantId, session: SessionId) -> tuple[Pointer, ...]:
        rows = await self._rows("list_pointers", {"tenant": tenant, "session": session})
        return tuple(map(to_pointer, rows))

    async def retire_native_session(
        self, tenant: TenantId, session: SessionId, runtime: str | None, native_session: str, reason: str
    ) -> int:
        parameters = {
            "tenant": tenant,
            "session": session,
            "runtime": runtime,
            "native_session": writable(native_session),
            "reason": writable(reason),
        }
        return len(await self._write("retire_native_session", parameters))

    async def put_snapshot(self, state: ClaimState, token: bytes, snapshot: Snapshot) -> bool:
        hold = state.hold
        if hold is None:
            return False
        parameters = {
            "tenant": hold.tenant,
            "session": hold.session,
            "attempt": hold.attempt,
            "task": state.task.id,
            "turn": state.task.turn,
            "token": token,
            "kind": snapshot.kind,
            "summary": as_text(snapshot.summary),
            "body": snapshot.body,
        }

        async def work(statements: Statements) -> bool:
            await statements.rows("lock_session", parameters)
            if not await statements.rows("is_current", parameters):
                return False
            before = await first(statements, "size_of_snapshot", parameters)
            await statements.rows("put_snapshot", parameters)
            grows = len(snapshot.body) - (before[0] if before else 0)
            await statements.rows("add_stored_bytes", parameters | {"bytes": grows})
            return True

        return await self._transact(work)

    async def get_snapshot(self, tenant: TenantId, attempt: AttemptId) -> Snapshot | None:
        row = await self._row("get_snapshot", {"tenant": tenant, "attempt": attempt})
        return to_snapshot(row) if row else None

    async def newest_snapshot(
        self, tenant: TenantId, session: SessionId, turns: Sequence[TurnId]
    ) -> AttemptId | None:
        wanted = frozenset(turns)
        for attempt, turn in await self._rows("committed_snapshots", {"tenant": tenant, "session": session}):
            if turn in wanted:
                return AttemptId(attempt)
        return None
