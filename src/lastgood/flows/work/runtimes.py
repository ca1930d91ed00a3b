"""Workers and the runtimes they offer; which runtime an agent or a session is bound to."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace

from lastgood.core.input_checks import check_text
from lastgood.core.runtime_access import may_remove, may_see, may_share
from lastgood.core.work_protocol import FIRST_PROTOCOL, WORK_PROTOCOL, why_incompatible
from lastgood.errors import Forbidden, InvalidRequest, RuntimeNotFound, SessionNotFound
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.work.access import WorkAccess
from lastgood.flows.work.limits import WorkLimits
from lastgood.flows.work.signals import tell_workers
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
        runtimes = tuple(self._identified(registration, one) for one in registration.runtimes)
        if len({one.identity.id for one in runtimes}) < len(runtimes):
            raise InvalidRequest(
                "Two runtimes have the same provider, profile and account; give them different profiles",
                param="runtimes",
            )
        for one in runtimes:
            known = await self._store.get_runtime(registration.tenant, one.identity.id)
            if known is not None and known.owner != registration.owner:
                raise Forbidden(f"Worker id {registration.worker!r} belongs to another user; use another one")
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
            tell_workers(self._deps.signals, runtime.id)
        return registered

    def _identified(self, registration: Registration, new: NewRuntime) -> NewRuntime:
        identity = new.identity
        id = runtime_id(
            registration.tenant, registration.worker, identity.provider, new.profile, identity.account
        )
        return replace(new, identity=replace(identity, id=id, worker=registration.worker))

    async def beat(self, heartbeat: Heartbeat) -> HeartbeatResult:
        return await self._store.beat(heartbeat, self._limits.lease_seconds)

    async def newest_epoch(self, tenant: TenantId, worker: str) -> int:
        """Returns 0, which claims nothing, if the worker was never registered."""
        return await self._store.newest_epoch(tenant, worker) or 0

    async def deregister(self, tenant: TenantId, worker: str, epoch: int) -> bool:
        return await self._store.deregister(tenant, worker, epoch)

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
        self, binding: AgentBinding, queued: OnQueued, token: str = LOCAL.token, machine: str = LOCAL.machine
    ) -> int:
        """Returns how many queued tasks were moved. What runs stays where it is."""
        tenant, agent_key, user = binding.tenant, binding.agent_key, binding.bound_by
        await self._access.runtime(tenant, binding.runtime, user)
        bound = await self.binding(tenant, agent_key, user)
        about = {
            "agent": agent_key,
            "from": bound and bound.runtime,
            "to": binding.runtime,
            "queued": queued.value,
            "published": binding.published,
        }
        audit = AuditEntry(tenant, AuditKind.RUNTIME_BOUND, token, user, agent_key, about, machine)
        moved = await self._store.bind_agent(binding, queued, audit)
        tell_workers(self._deps.signals, binding.runtime)
        return moved

    async def unbind(
        self,
        tenant: TenantId,
        agent_key: str,
        user: str,
        token: str = LOCAL.token,
        machine: str = LOCAL.machine,
    ) -> bool:
        bound = await self.binding(tenant, agent_key, user)
        about = {"agent": agent_key, "from": bound and bound.runtime, "to": None}
        audit = AuditEntry(tenant, AuditKind.RUNTIME_BOUND, token, user, agent_key, about, machine)
        return await self._store.unbind_agent(tenant, agent_key, audit)

    async def binding(self, tenant: TenantId, agent_key: str, user: str) -> AgentBinding | None:
        """RuntimeNotFound: it is on another user's runtime; moving it would move their tasks."""
        bound = await self._store.get_binding(tenant, agent_key)
        if bound is not None:
            await self._access.runtime(tenant, bound.runtime, user)
        return bound

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
        moved = await self._store.pin_runtime(tenant, session, runtime, queued, audit)
        if moved is None:
            raise SessionNotFound()
        if runtime is not None:
            tell_workers(self._deps.signals, runtime)
        return moved
