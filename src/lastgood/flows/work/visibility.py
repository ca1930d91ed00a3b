"""Access to runtimes, tasks and sessions. What a user may not use is reported as not found."""

from __future__ import annotations

from lastgood.core.runtime_access import may_use
from lastgood.errors import RuntimeNotFound, SessionNotFound, TaskNotFound
from lastgood.model.ids import SessionId, TaskId, TenantId
from lastgood.model.runtimes import Runtime
from lastgood.model.sessions import Session
from lastgood.model.tasks import Task
from lastgood.ports import Store


class WorkAccess:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def runtime(self, tenant: TenantId, id: str, user: str) -> Runtime:
        """One that the user may use; it may be removed. RuntimeNotFound otherwise."""
        found = await self._store.get_runtime(tenant, id)
        if found is None or not may_use(found, user):
            raise RuntimeNotFound()
        return found

    async def usable(self, tenant: TenantId, user: str, *, with_removed: bool = False) -> tuple[Runtime, ...]:
        listed = await self._store.list_runtimes(tenant, with_removed=with_removed)
        return tuple(one for one in listed if may_use(one, user))

    async def task(self, tenant: TenantId, id: TaskId, user: str) -> Task:
        found = await self._store.get_task(tenant, id)
        if found is None or not await self._may_use(tenant, found.runtime, user):
            raise TaskNotFound()
        return found

    async def session(self, tenant: TenantId, id: SessionId, user: str) -> Session:
        found = await self._store.get_session(tenant, id)
        if found is None or not await self.may_read(found, user):
            raise SessionNotFound()
        return found

    async def hides(self, tenant: TenantId, id: SessionId, user: str) -> bool:
        """Whether the session exists, but the user may not read it."""
        found = await self._store.get_session(tenant, id)
        return found is not None and not await self.may_read(found, user)

    async def may_read(self, session: Session, user: str) -> bool:
        """Sessions that never ran on a runtime belong to the tenant."""
        return session.runtime_id is None or await self._may_use(session.tenant, session.runtime_id, user)

    async def _may_use(self, tenant: TenantId, runtime: str, user: str) -> bool:
        found = await self._store.get_runtime(tenant, runtime)
        return found is not None and may_use(found, user)
