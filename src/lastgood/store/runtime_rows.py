"""Runtimes, bindings and enrollments to rows and back, the same for both databases."""

from __future__ import annotations

from typing import Any

import orjson

from lastgood.model.ids import TenantId
from lastgood.model.runtimes import (
    AgentBinding,
    Enforcement,
    Enrollment,
    NewRuntime,
    OnAgentChange,
    OnDirty,
    OnOffline,
    Registration,
    Runtime,
    RuntimeIdentity,
)
from lastgood.store.rows import Row


def to_runtime(row: Row) -> Runtime:
    (
        id, tenant, worker, provider, profile, account, name, owner, shared_with, format, cli_version,
        steerable, enforces, created_at, removed_at, seen, status,
    ) = row  # fmt: skip
    return Runtime(
        identity=RuntimeIdentity(id, worker, provider, account, format),
        tenant=TenantId(tenant),
        name=name,
        profile=profile,
        owner=owner,
        shared_with=tuple(orjson.loads(shared_with)),
        cli_version=cli_version,
        steerable=bool(steerable),
        enforces=Enforcement(enforces),
        status=status or "",
        seen_seconds_ago=max(0.0, seen),
        created_at=created_at,
        removed_at=removed_at,
    )


def of_worker(registration: Registration) -> dict[str, Any]:
    return {
        "tenant": registration.tenant,
        "worker": registration.worker,
        "name": registration.name,
        "owner": registration.owner,
        "instance": registration.instance,
        "version": registration.version,
    }


def of_runtime(registration: Registration, new: NewRuntime) -> dict[str, Any]:
    return {
        "id": new.identity.id,
        "tenant": registration.tenant,
        "worker": registration.worker,
        "owner": registration.owner,
        "provider": new.identity.provider,
        "profile": new.profile,
        "account": new.identity.account,
        "name": new.name,
        "format": new.identity.format,
        "cli_version": new.cli_version,
        "steerable": new.steerable,
        "enforces": new.enforces.value,
    }


def to_binding(row: Row) -> AgentBinding:
    tenant, agent_key, runtime, offline, max_wait, deadline, max_running, published, bound_by, *policy = row
    on_agent_change, on_dirty = policy
    return AgentBinding(
        TenantId(tenant),
        agent_key,
        runtime,
        OnOffline(offline),
        max_wait,
        deadline,
        max_running,
        bool(published),
        bound_by,
        OnAgentChange(on_agent_change),
        OnDirty(on_dirty),
    )


def of_binding(binding: AgentBinding) -> dict[str, Any]:
    return {
        "tenant": binding.tenant,
        "agent_key": binding.agent_key,
        "runtime": binding.runtime,
        "offline": binding.offline.value,
        "max_wait": binding.max_wait_seconds,
        "deadline": binding.deadline_seconds,
        "max_running": binding.max_running,
        "published": binding.published,
        "bound_by": binding.bound_by,
        "on_agent_change": binding.on_agent_change.value,
        "on_dirty": binding.on_dirty.value,
    }


def to_enrollment(row: Row) -> Enrollment:
    tenant, owner, worker, expires_at = row
    return Enrollment(TenantId(tenant), owner, worker, expires_at)
