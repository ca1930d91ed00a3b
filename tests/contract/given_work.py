"""Builds workers, tasks and claims by way of the store's own calls, in one line each."""

from dataclasses import replace
from typing import Any

from lastgood.model.ids import TenantId
from lastgood.model.runtimes import NewRuntime, Registered, Registration, RuntimeIdentity
from lastgood.ports import Store
from tests.contract.given import TENANT, new_id

WORKER = "laptop"
RUNTIME = "rt_a"


def new_runtime(id: str = RUNTIME, worker: str = WORKER, **fields: Any) -> NewRuntime:
    identity = RuntimeIdentity(id, worker, fields.pop("provider", "claude-code"), f"account of {id}", "v1")
    return replace(NewRuntime(identity, f"name of {id}"), **fields)


def registration(*runtimes: NewRuntime, worker: str = WORKER, **fields: Any) -> Registration:
    plain = Registration(
        tenant=TENANT,
        worker=worker,
        name=f"name of {worker}",
        owner="ann",
        instance=f"instance of {worker}",
        version="1",
        runtimes=runtimes or (new_runtime(worker=worker),),
    )
    return replace(plain, **fields)


async def register(
    store: Store, *ids: str, worker: str = WORKER, tenant: TenantId = TENANT, **fields: Any
) -> Registered:
    """A worker with these runtimes."""
    runtimes = [new_runtime(id, worker) for id in ids or (RUNTIME,)]
    return await store.register(registration(*runtimes, worker=worker, tenant=tenant, **fields))


def secret() -> bytes:
    """A claim token or a code, hashed."""
    return new_id().encode()
