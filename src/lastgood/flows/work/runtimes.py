"""Workers and the runtimes they offer; which runtime an agent or a session is bound to."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace

from lastgood.core.input_checks import check_text
from lastgood.core.runtime_access import may_remove, may_see, may_share
from lastgood.core.work_protocol import FIRST_PROTOCOL, WORK_PROTOCOL, why_incompatible
from lastgood.errors import Forbidden, InvalidRequest, RuntimeNotFound
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.work.enrollment import worker_is_taken
from lastgood.flows.work.task_waiter import notify_workers
from lastgood.flows.work.visibility import WorkAccess
from lastgood.flows.work.work_limits import WorkLimits
from lastgood.model.audit import AuditEntry, AuditKind
from lastgood.model.ids import SessionId, TenantId
from lastgood.model.rules import LOCAL
from lastgood.model.runtimes import (
    AgentBinding,
    Heartbeat,
    HeartbeatResult,
    NewRuntime,
    OnQueued,
    Registered,
    Registration,
    Runtime,
    Worker,
)

log = logging.getLogger(__name__)

MOST_SHARED = 200


def runtime_id(tenant: TenantId, worker: str, provider: str, profile: str, account: str) -> str:
    """The same machine, CLI and account have the same id, however often they are registered."""
    digest = hashlib.sha256()
    for part in (tenant, worker, provider, profile, account):
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8))
        digest.update(encoded)
    return f"rt_{digest.hexdigest()[:32]}"


class Runtimes:
    def __init__(self, deps: Dependencies, access: WorkAccess, limits: WorkLimits) -> None:
        self._deps = deps
        self._store = deps.store
        self._access = access
        self._limits = limits

    # -- workers -------------------------------------------------------------------------

    protocol = WORK_PROTOCOL

    def check_protocol(self, spoken: int | None) -> None:
        """InvalidRequest: the worker is of a release that cannot work with this one."""
        worker = FIRST_PROTOCOL if spoken is None else spoken
        if problem := why_incompatible(worker=worker, server=self.protocol):
            raise InvalidRequest(problem, param="protocol")

    async def register(self, registration: Registration, token: str = LOCAL.token) -> Registered:
        """Forbidden: the worker id belongs to another user, whose native sessions must not be found by it."""
        await self._check_worker(registration.tenant, registration.worker, registration.owner)
        runtimes = tuple(self._identified(registration, one) for one in registration.runtimes)
        if len({one.identity.id for one in runtimes}) < len(runtimes):
            raise InvalidRequest(
                "Two runtimes have the same provider, profile and account; give them different profiles",
                param="runtimes",
            )
        about = {"instance": registration.instance, "version": registration.version}
        audit = AuditEntry(
            registration.tenant,
            AuditKind.WORKER_REPLACED,
            token,
            registration.owner,
            registration.worker,
            about,
            registration.worker,
        )
        registered = await self._store.register(replace(registration, runtimes=runtimes), audit)
        if registered.took_over:
            log.warning(
                "worker %s: another instance took over (epoch %s)", registration.worker, registered.epoch
            )
        for runtime in registered.runtimes:
            notify_workers(self._deps.signals, runtime.id)
        return registered

    def _identified(self, registration: Registration, new: NewRuntime) -> NewRuntime:
        identity = new.identity
        id = runtime_id(
            registration.tenant, registration.worker, identity.provider, new.profile, identity.account
        )
        return replace(new, identity=replace(identity, id=id, worker=registration.worker))

    async def beat(self, heartbeat: Heartbeat) -> HeartbeatResult:
        return await self._store.beat(heartbeat, self._limits.lease_seconds)

    async def newest_epoch(self, tenant: TenantId, worker: str, user: str) -> int:
        """Returns 0, which claims nothing, if the worker was never registered. Forbidden: it belongs to
        another user."""
        known = await self._check_worker(tenant, worker, user)
        return 0 if known is None else known.epoch

    async def _check_worker(self, tenant: TenantId, worker: str, user: str) -> Worker | None:
        """For words: the writes name the owner in their conditions."""
        known = await self._store.get_worker(tenant, worker)
        if known is not None and known.owner != user:
            raise worker_is_taken(worker)
        return known

    async def deregister(self, tenant: TenantId, worker: str, user: str, epoch: int) -> bool:
        return await self._store.deregister(tenant, worker, user, epoch)

    # -- whose they are ------------------------------------------------------------------

    async def list(self, tenant: TenantId, user: str, *, is_admin: bool) -> tuple[Runtime, ...]:
        found = await self._store.list_runtimes(tenant)
        return tuple(one for one in found if may_see(one, user, is_admin=is_admin))

    async def get(self, tenant: TenantId, id: str, user: str, *, is_admin: bool) -> Runtime:
        found = await self._store.get_runtime(tenant, id)
        if found is None or not may_see(found, user, is_admin=is_admin):
            raise RuntimeNotFound()
        return found

    async def share(self, tenant: TenantId, id: str, users: Sequence[str], user: str) -> Runtime:
        runtime = await self._access.runtime(tenant, id, user)
        if not may_share(runtime, user):
            raise Forbidden("Only the owner of a runtime may share it")
        if len(users) > MOST_SHARED:
            raise InvalidRequest(
                f"`shared_with` has {len(users)} users; the limit is {MOST_SHARED}. Use `*` for all users",
                param="shared_with",
            )
        for name in users:
            check_text(name, "shared_with")
            if not name.strip():
                raise InvalidRequest("`shared_with` has a blank user; remove it", param="shared_with")
        shared = await self._store.share_runtime(tenant, id, list(dict.fromkeys(users)))
        if shared is None:
            raise RuntimeNotFound()
        return shared

    async def remove(self, tenant: TenantId, id: str, user: str, *, is_admin: bool) -> None:
        """What its sessions know stays: the same machine finds it again when it registers."""
        runtime = await self.get(tenant, id, user, is_admin=is_admin)
        if not may_remove(runtime, user, is_admin=is_admin):
            raise Forbidden("Only the owner of a runtime or an admin may remove it")
        if not await self._store.remove_runtime(tenant, id):
            raise RuntimeNotFound()

    # -- bindings ------------------------------------------------------------------------

    async def bind(
        self,
        binding: AgentBinding,
        queued: OnQueued,
        token: str = LOCAL.token,
        machine: str = LOCAL.machine,
        *,
        is_admin: bool = False,
    ) -> int:
        """Returns how many queued tasks were moved. What runs stays where it is.

        Forbidden: another user's binding is in the way; moving it would move their tasks.
        """
        tenant, agent_key, user = binding.tenant, binding.agent_key, binding.bound_by
        await self._access.runtime(tenant, binding.runtime, user)
        bound = await self._store.get_binding(tenant, agent_key)
        about = {
            "agent": agent_key,
            "from": bound and bound.runtime,
            "to": binding.runtime,
            "queued": queued.value,
            "published": binding.published,
        }
        audit = AuditEntry(tenant, AuditKind.RUNTIME_BOUND, token, user, agent_key, about, machine)
        moved = await self._store.bind_agent(binding, queued, audit, is_admin=is_admin)
        if moved is None:
            raise _bound_by_others(agent_key)
        notify_workers(self._deps.signals, binding.runtime)
        return moved

    async def unbind(
        self,
        tenant: TenantId,
        agent_key: str,
        user: str,
        token: str = LOCAL.token,
        machine: str = LOCAL.machine,
        *,
        is_admin: bool = False,
    ) -> bool:
        """False: the agent is bound to no runtime."""
        bound = await self._store.get_binding(tenant, agent_key)
        if bound is None:
            return False
        about = {"agent": agent_key, "from": bound.runtime, "to": None}
        audit = AuditEntry(tenant, AuditKind.RUNTIME_BOUND, token, user, agent_key, about, machine)
        if await self._store.unbind_agent(tenant, agent_key, user, audit, is_admin=is_admin):
            return True
        if await self._store.get_binding(tenant, agent_key) is None:
            return False
        raise _bound_by_others(agent_key)

    async def binding(
        self, tenant: TenantId, agent_key: str, user: str, *, is_admin: bool = False
    ) -> AgentBinding | None:
        """None also for a binding to a runtime that the user may not see: it does not apply to them."""
        bound = await self._store.get_binding(tenant, agent_key)
        runtime = bound and await self._store.get_runtime(tenant, bound.runtime)
        return bound if runtime and may_see(runtime, user, is_admin=is_admin) else None

    async def pin(
        self,
        tenant: TenantId,
        session: SessionId,
        runtime: str | None,
        queued: OnQueued,
        user: str,
        token: str = LOCAL.token,
        machine: str = LOCAL.machine,
    ) -> int:
        """Binds one session alone; None: it follows its agent again."""
        found = await self._access.session(tenant, session, user)
        if runtime is not None:
            await self._access.runtime(tenant, runtime, user)
        about = {"session": session, "from": found.runtime_id, "to": runtime, "queued": queued.value}
        audit = AuditEntry(tenant, AuditKind.RUNTIME_BOUND, token, user, session, about, machine)
        moved = await self._store.pin_runtime(tenant, session, runtime, queued, user, audit)
        if moved is None:
            await self._access.session(tenant, session, user)
            raise Forbidden(
                "The user who created this session may not use that runtime; share the runtime with them "
                "first"
            )
        if runtime is not None:
            notify_workers(self._deps.signals, runtime)
        return moved


def _bound_by_others(agent_key: str) -> Forbidden:
    return Forbidden(
        f"Agent {agent_key} is bound to a runtime that you may not use; its owner or an admin can change that"
    )
