"""What one user does with runtimes takes nothing from the others (I34)."""

from dataclasses import replace

import pytest

from lastgood.errors import Forbidden, RuntimeNotFound, SessionNotFound
from lastgood.flows.tokens import Tokens
from lastgood.flows.work.claims import ClaimCall
from lastgood.flows.work.enqueue import Enqueuer, RuntimeWish
from lastgood.flows.work.enrollment import Enroller
from lastgood.model.runtimes import AgentBinding, OnQueued
from lastgood.model.sessions import ScopeKind, TaskScope
from lastgood.model.tasks import TaskFilter, TaskStatus
from tests.flows.work.site import AGENT, Machine, Site

pytestmark = pytest.mark.anyio

BOBS = TaskScope(ScopeKind.ISSUE, "of bob")


async def machines(site: Site) -> tuple[Machine, Machine]:
    """Ann's and Bob's."""
    return await site.machine(), await site.machine("theirs", owner="bob")


def binding(site: Site, machine: Machine, user: str) -> AgentBinding:
    return AgentBinding(site.tenant, AGENT, machine.id, bound_by=user)


# -- bindings ----------------------------------------------------------------------------------


async def test_I34_a_binding_moves_nobody_elses_tasks(site: Site) -> None:
    anns, bobs = await machines(site)
    task = await site.queue("mine", runtime=bobs.id, user="bob", scope=BOBS)
    assert await site.bind(anns, OnQueued.MOVE) == 0
    await site.work.tasks.get(site.tenant, task.id, "bob")
    with pytest.raises(SessionNotFound):
        await site.work.access.session(site.tenant, task.session, "ann")
    assert len(await bobs.claims()) == 1


async def test_I34_a_binding_takes_the_agent_from_nobody_else(site: Site) -> None:
    anns, bobs = await machines(site)
    await site.bind(anns)
    enqueuer = Enqueuer(site.node.deps)

    async def chosen(user: str, harness: str | None = None) -> str | None:
        plan = await enqueuer.choose(RuntimeWish(site.tenant, user, AGENT, harness))
        return None if plan is None else plan.runtime.id

    assert await chosen("ann") == anns.id
    assert await chosen("bob") is None, "local, as if it were bound to nothing"
    assert await chosen("bob", "claude-code") == bobs.id
    assert await site.work.runtimes.binding(site.tenant, AGENT, "bob") is None
    await site.work.runtimes.share(site.tenant, anns.id, ["bob"], "ann")
    assert await chosen("bob", "claude-code") == anns.id


async def test_I34_only_its_users_and_admins_change_a_binding(site: Site) -> None:
    anns, bobs = await machines(site)
    runtimes = site.work.runtimes
    await site.bind(anns)
    with pytest.raises(Forbidden, match="bound to a runtime that you may not use"):
        await runtimes.bind(binding(site, bobs, "bob"), OnQueued.MOVE)
    with pytest.raises(Forbidden, match="bound to a runtime that you may not use"):
        await runtimes.unbind(site.tenant, AGENT, "bob")
    assert await runtimes.binding(site.tenant, AGENT, "root", is_admin=True) is not None
    with pytest.raises(RuntimeNotFound):
        await runtimes.bind(binding(site, anns, "root"), OnQueued.KEEP, is_admin=True)
    assert await runtimes.unbind(site.tenant, AGENT, "root", is_admin=True)
    assert not await runtimes.unbind(site.tenant, AGENT, "root", is_admin=True)
    await runtimes.bind(binding(site, bobs, "bob"), OnQueued.KEEP)


async def test_a_binding_to_a_removed_runtime_may_be_replaced(site: Site) -> None:
    anns, bobs = await machines(site)
    await site.bind(anns)
    await site.work.runtimes.remove(site.tenant, anns.id, "root", is_admin=True)
    await site.work.runtimes.bind(binding(site, bobs, "bob"), OnQueued.KEEP)
    found = await site.work.runtimes.binding(site.tenant, AGENT, "bob")
    assert found is not None
    assert found.runtime == bobs.id


async def test_I34_a_session_is_not_bound_to_where_the_user_who_made_it_loses_it(site: Site) -> None:
    anns, bobs = await machines(site)
    await site.work.runtimes.share(site.tenant, bobs.id, ["ann"], "bob")
    task = await site.queue("mine", runtime=bobs.id, user="bob", scope=BOBS)
    pin = site.work.runtimes.pin
    with pytest.raises(Forbidden, match="share the runtime with them first"):
        await pin(site.tenant, task.session, anns.id, OnQueued.MOVE, "ann")
    await site.work.runtimes.share(site.tenant, anns.id, ["bob"], "ann")
    assert await pin(site.tenant, task.session, anns.id, OnQueued.MOVE, "ann") == 1


# -- workers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["bob", "root", ""])
async def test_I34_a_worker_claims_and_reports_only_for_its_owner(site: Site, user: str) -> None:
    a = await site.machine()
    task = await site.queue("secret", runtime=a.id)
    call = ClaimCall(site.tenant, a.worker, a.epoch, (a.id,), 1, user=user)
    assert await site.work.claims.claim(call) == ()
    sent = await a.claim()
    beat = await a.beat(sent, owner=user)
    assert (beat.renewed, beat.lost, beat.unknown_runtimes) == ((), (task.id,), (a.id,))
    assert not await site.work.runtimes.deregister(site.tenant, a.worker, user, a.epoch)
    with pytest.raises(Forbidden, match="belongs to another user"):
        await site.work.runtimes.newest_epoch(site.tenant, a.worker, user)
    for worker in (a.worker, None):
        key = replace(a.key(sent), worker=worker, user=user)
        assert await site.store.find_claim(site.tenant, task.id, key.hash, user, worker) is None
    await a.complete(sent, "done")


async def test_I34_a_code_for_a_worker_that_is_another_users_makes_no_token(site: Site) -> None:
    enroller = Enroller(site.node.deps, Tokens(site.store, site.node.deps.clock))
    code, _ = await enroller.create(site.tenant, "bob", "laptop", None)
    a = await site.machine()
    await site.work.runtimes.remove(site.tenant, a.id, "ann", is_admin=False)
    with pytest.raises(Forbidden, match="belongs to another user"):
        await enroller.exchange(code, "laptop")
    with pytest.raises(Forbidden, match="belongs to another user"):
        await enroller.create(site.tenant, "bob", "laptop", None)
    with pytest.raises(Forbidden, match="create a new one with `lastgood tokens enroll`"):
        await enroller.exchange(code, "laptop")


# -- tasks -------------------------------------------------------------------------------------


async def test_I32_a_task_of_a_removed_runtime_is_listed_with_its_reason(site: Site) -> None:
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    await site.work.runtimes.remove(site.tenant, a.id, "ann", is_admin=False)

    async def listed(user: str) -> list[str]:
        shown, _ = await site.work.tasks.list(site.tenant, user, TaskFilter(), limit=9, cursor=None)
        return [one.why for one in shown]

    (why,) = await listed("ann")
    assert "removed" in why
    assert await listed("bob") == []
    assert (await site.task(task.id)).task.status is TaskStatus.QUEUED
