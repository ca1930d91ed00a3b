"""What one user does with workers, bindings and sessions takes nothing from the others (I34)."""

import asyncio
from dataclasses import replace

import pytest

from lastgood.model.runtimes import AgentBinding, Heartbeat, HeartbeatResult, LiveClaim, OnQueued
from lastgood.ports import Store
from tests.contract import builders, work_builders
from tests.contract.builders import TENANT
from tests.contract.conftest import Backend, dump
from tests.contract.work_builders import OWNER, RUNTIME, WORKER

pytestmark = pytest.mark.anyio


async def test_I34_only_its_owner_beats_for_a_worker(backend: Backend) -> None:
    store = backend.store
    await work_builders.register(store)
    task = await work_builders.task(store, await builders.session(store))
    claim = await work_builders.claim(store)
    before = await dump(backend)
    live = (LiveClaim(task.id, claim.token),)
    beat = Heartbeat(TENANT, WORKER, 1, (RUNTIME,), live, owner=OWNER)
    foreign = replace(beat, owner="bea", status="mine")
    assert await store.beat(foreign, 90) == HeartbeatResult(lost=(task.id,), unknown_runtimes=(RUNTIME,))
    assert not await store.deregister(TENANT, WORKER, "bea", 1)
    assert await dump(backend) == before
    assert (await store.beat(beat, 90)).renewed == (task.id,)


async def test_I34_only_its_owner_claims_and_reports_for_a_worker(store: Store) -> None:
    await work_builders.register(store)
    task = await work_builders.task(store, await builders.session(store))
    assert await work_builders.claim_some(store, owner="bea") == []
    claim = await work_builders.claim(store)
    for worker in (WORKER, None):
        assert await store.find_claim(TENANT, task.id, claim.token, "bea", worker) is None
        assert await store.find_claim(TENANT, task.id, claim.token, OWNER, worker) is not None


async def test_I34_a_binding_is_replaced_by_who_may_use_it_an_admin_or_anybody_once_it_is_removed(
    backend: Backend,
) -> None:
    store = backend.store
    await work_builders.register(store, "anns")
    await work_builders.register(store, "bobs", worker="theirs", owner="bob")
    anns = AgentBinding(TENANT, "agent", "anns", bound_by="ann")
    bobs = AgentBinding(TENANT, "agent", "bobs", bound_by="bob")
    await store.bind_agent(anns, OnQueued.KEEP)
    before = await dump(backend)
    assert await store.bind_agent(bobs, OnQueued.MOVE) is None
    assert not await store.unbind_agent(TENANT, "agent", "bob")
    assert await dump(backend) == before
    assert await store.bind_agent(bobs, OnQueued.KEEP, is_admin=True) == 0
    assert await store.get_binding(TENANT, "agent") == bobs
    assert await store.unbind_agent(TENANT, "agent", "root", is_admin=True)
    await store.bind_agent(anns, OnQueued.KEEP)
    assert await store.share_runtime(TENANT, "anns", ["bob"])
    assert await store.bind_agent(bobs, OnQueued.KEEP) == 0
    assert await store.remove_runtime(TENANT, "bobs")
    assert await store.bind_agent(anns, OnQueued.KEEP) == 0, "a removed runtime keeps nobody's agent"


async def test_of_two_users_who_bind_an_agent_at_once_one_loses(store: Store) -> None:
    await work_builders.register(store, "anns")
    await work_builders.register(store, "bobs", worker="theirs", owner="bob")
    anns = AgentBinding(TENANT, "agent", "anns", bound_by="ann")
    bobs = AgentBinding(TENANT, "agent", "bobs", bound_by="bob")
    moved = await asyncio.gather(*(store.bind_agent(one, OnQueued.MOVE) for one in (anns, bobs)))
    assert sorted(moved, key=str) == [0, None]
    assert await store.get_binding(TENANT, "agent") == (anns if moved[0] == 0 else bobs)


async def test_I34_a_move_takes_only_tasks_that_the_user_may_use(store: Store) -> None:
    await work_builders.register(store, "anns")
    await work_builders.register(store, "bobs", worker="theirs", owner="bob")
    await work_builders.register(store, "carols", worker="everybodys", owner="carol")
    await store.share_runtime(TENANT, "carols", ["*"])
    sessions = [await builders.session(store, owner=owner) for owner in ("bob", "ann", "carol", "bob")]
    runtimes = ["bobs", "carols", "carols", "carols"]
    tasks = [
        await work_builders.task(store, one, runtime=runtime)
        for one, runtime in zip(sessions, runtimes, strict=True)
    ]

    async def where() -> list[str]:
        return [(await work_builders.again(store, task)).runtime for task in tasks]

    mine = AgentBinding(TENANT, "agent", "anns", bound_by="ann")
    assert await store.bind_agent(mine, OnQueued.MOVE) == 1
    assert await where() == ["bobs", "anns", "carols", "carols"], "bob and carol could not read theirs there"
    await store.share_runtime(TENANT, "anns", ["carol"])
    assert await store.bind_agent(mine, OnQueued.MOVE) == 1
    assert await where() == ["bobs", "anns", "anns", "carols"]
    assert await store.bind_agent(replace(mine, bound_by="root"), OnQueued.MOVE, is_admin=True) == 0
    assert [(await builders.again(store, one)).runtime_id for one in sessions] == await where()


async def test_I34_a_pin_moves_no_session_that_the_user_may_not_read(store: Store) -> None:
    await work_builders.register(store, "anns")
    await work_builders.register(store, "bobs", worker="theirs", owner="bob")
    of_bob = await builders.session(store, owner="bob")
    assert await store.pin_runtime(TENANT, of_bob.id, "anns", OnQueued.MOVE, "ann") is None, "bob loses it"
    task = await work_builders.task(store, of_bob, runtime="bobs")
    for target in ("anns", None):
        assert await store.pin_runtime(TENANT, of_bob.id, target, OnQueued.MOVE, "ann") is None
    # Queued for bob's runtime, in a session that is on ann's: she may read the session, not move that task.
    of_ann = await builders.session(store, owner="ann")
    behind = await work_builders.task(store, of_ann, runtime="bobs")
    await work_builders.task(store, of_ann, runtime="anns")
    await work_builders.register(store, "anns", "desk")
    assert await store.pin_runtime(TENANT, of_ann.id, "desk", OnQueued.MOVE, "ann") == 1
    await store.bind_agent(AgentBinding(TENANT, "agent", "bobs", bound_by="bob"), OnQueued.KEEP)
    assert await store.pin_runtime(TENANT, of_ann.id, None, OnQueued.MOVE, "ann") == 0, "bob's laptop"
    assert {(await work_builders.again(store, one)).runtime for one in (task, behind)} == {"bobs"}
