"""Workers, their runtimes, and what is bound to them, on either database.

Locks are taken in one order: a worker or a binding, then sessions by their ids, then tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from lastgood.errors import Conflict
from lastgood.model.audit import AuditEntry
from lastgood.model.ids import SessionId, TaskId, TenantId
from lastgood.model.runtimes import (
    AgentBinding,
    Enrollment,
    Heartbeat,
    HeartbeatResult,
    OnQueued,
    Registered,
    Registration,
    Runtime,
    Worker,
)
from lastgood.store.audit import add_audit
from lastgood.store.runtime_rows import (
    of_binding,
    of_runtime,
    of_worker,
    to_binding,
    to_enrollment,
    to_runtime,
)
from lastgood.store.work_access import Statements, WorkTransactions, first


class SqlRuntimes(WorkTransactions):
    async def register(self, registration: Registration, audit: AuditEntry | None = None) -> Registered:
        worker = of_worker(registration)

        async def work(statements: Statements) -> Registered:
            # Made first, then locked: of two processes that start at once the later one takes over.
            await statements.rows("insert_worker", worker)
            row = await first(statements, "lock_worker", worker)
            assert row is not None, "it was inserted just before, and workers are not deleted"
            owner, instance = row
            if owner != registration.owner:
                raise Conflict(
                    f"Worker {registration.worker!r} belongs to another user; choose another worker id"
                )
            (epoch,) = (await statements.rows("update_worker", worker))[0]
            found = [
                (await statements.rows("put_runtime", of_runtime(registration, new)))[0]
                for new in registration.runtimes
            ]
            took_over = instance not in ("", registration.instance)
            await add_audit(statements, audit if took_over else None)
            return Registered(epoch, took_over, tuple(map(to_runtime, found)))

        return await self._transact(work)

    async def beat(self, heartbeat: Heartbeat, lease_seconds: float) -> HeartbeatResult:
        sender: dict[str, Any] = {
            "tenant": heartbeat.tenant,
            "worker": heartbeat.worker,
            "epoch": heartbeat.epoch,
            "owner": heartbeat.owner,
            "status": heartbeat.status,
        }

        async def work(statements: Statements) -> HeartbeatResult:
            known = await first(statements, "get_worker", sender)
            is_own = known is not None and known[0] == heartbeat.owner
            is_newest = bool(await statements.rows("see_worker", sender))
            unknown = []
            for runtime in heartbeat.runtimes:
                name = "see_runtime" if is_newest else "own_runtime"
                if not await statements.rows(name, sender | {"runtime": runtime}):
                    unknown.append(runtime)
            renewed: list[TaskId] = []
            lost: list[TaskId] = []
            cancel: list[TaskId] = []
            for live in sorted(heartbeat.live, key=lambda live: live.task):
                claim = sender | {
                    "task": live.task,
                    "token": live.token,
                    "lease": lease_seconds,
                    "why": live.why,
                }
                if await statements.rows("renew_claim", claim):
                    renewed.append(live.task)
                    continue
                lost.append(live.task)
                if await statements.rows("was_ended_by_others", claim):
                    cancel.append(live.task)
            return HeartbeatResult(
                tuple(renewed), tuple(lost), tuple(cancel), tuple(unknown), is_own and not is_newest
            )

        return await self._transact(work, durable=False)

    async def get_worker(self, tenant: TenantId, worker: str) -> Worker | None:
        row = await self._row("get_worker", {"tenant": tenant, "worker": worker})
        return Worker(*row) if row else None

    async def deregister(self, tenant: TenantId, worker: str, owner: str, epoch: int) -> bool:
        which = {"tenant": tenant, "worker": worker, "owner": owner, "epoch": epoch}

        async def work(statements: Statements) -> bool:
            if not await statements.rows("sign_off", which):
                return False
            await statements.rows("runtimes_sign_off", which)
            return True

        return await self._transact(work)

    async def list_runtimes(self, tenant: TenantId, *, with_removed: bool = False) -> tuple[Runtime, ...]:
        parameters = {"tenant": tenant, "with_removed": with_removed}
        return tuple(map(to_runtime, await self._rows("list_runtimes", parameters)))

    async def get_runtime(self, tenant: TenantId, runtime: str) -> Runtime | None:
        row = await self._row("get_runtime", {"tenant": tenant, "runtime": runtime})
        return to_runtime(row) if row else None

    async def share_runtime(self, tenant: TenantId, runtime: str, users: Sequence[str]) -> Runtime | None:
        shared = orjson.dumps(list(users)).decode()
        rows = await self._write("share_runtime", {"tenant": tenant, "runtime": runtime, "users": shared})
        return to_runtime(rows[0]) if rows else None

    async def remove_runtime(self, tenant: TenantId, runtime: str) -> bool:
        return bool(await self._write("remove_runtime", {"tenant": tenant, "runtime": runtime}))

    async def bind_agent(
        self,
        binding: AgentBinding,
        queued: OnQueued,
        audit: AuditEntry | None = None,
        *,
        is_admin: bool = False,
    ) -> int | None:
        parameters = of_binding(binding) | {"user": binding.bound_by, "is_admin": is_admin}

        async def work(statements: Statements) -> int | None:
            if not await statements.rows("put_binding", parameters):
                return None
            await add_audit(statements, audit)
            if queued is OnQueued.KEEP:
                return 0
            await statements.rows("lock_sessions_of_agent", parameters)
            return await _moved(statements, "move_tasks_of_agent", parameters)

        return await self._transact(work)

    async def unbind_agent(
        self,
        tenant: TenantId,
        agent_key: str,
        user: str,
        audit: AuditEntry | None = None,
        *,
        is_admin: bool = False,
    ) -> bool:
        parameters = {"tenant": tenant, "agent_key": agent_key, "user": user, "is_admin": is_admin}

        async def work(statements: Statements) -> bool:
            if not await statements.rows("delete_binding", parameters):
                return False
            await add_audit(statements, audit)
            return True

        return await self._transact(work)

    async def get_binding(self, tenant: TenantId, agent_key: str) -> AgentBinding | None:
        row = await self._row("get_binding", {"tenant": tenant, "agent_key": agent_key})
        return to_binding(row) if row else None

    async def pin_runtime(
        self,
        tenant: TenantId,
        session: SessionId,
        runtime: str | None,
        queued: OnQueued,
        user: str,
        audit: AuditEntry | None = None,
    ) -> int | None:
        parameters = {"tenant": tenant, "session": session, "runtime": runtime, "user": user}

        async def work(statements: Statements) -> int | None:
            if not await statements.rows("pin_runtime", parameters):
                return None
            await add_audit(statements, audit)
            if queued is OnQueued.KEEP:
                return 0
            target = runtime
            if target is None:
                row = await first(statements, "runtime_of_session_agent", parameters)
                target = row[0] if row else None
            if target is None:
                return 0
            moved = parameters | {"runtime": target}
            return await _moved(statements, "move_tasks_of_session", moved)

        return await self._transact(work)

    async def create_enrollment(self, enrollment: Enrollment, code: bytes) -> None:
        parameters = {
            "code": code,
            "tenant": enrollment.tenant,
            "owner": enrollment.owner,
            "worker": enrollment.worker,
            "expires_at": enrollment.expires_at,
        }
        await self._write("create_enrollment", parameters)

    async def use_enrollment(self, code: bytes) -> Enrollment | None:
        rows = await self._write("use_enrollment", {"code": code})
        return to_enrollment(rows[0]) if rows else None


async def _moved(statements: Statements, name: str, parameters: dict[str, Any]) -> int:
    """How many. Their sessions are on the new runtime from now on, too."""
    moved = await statements.rows(name, parameters)
    for session in sorted({row[0] for row in moved}):
        await statements.rows("stamp_runtime", parameters | {"session": session})
    return len(moved)
