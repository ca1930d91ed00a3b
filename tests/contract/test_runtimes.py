"""Workers register, say that they live, and are bound to agents (I34, I35)."""

import asyncio
import time
from dataclasses import replace

import pytest

from lastgood.errors import Conflict
from lastgood.model.runtimes import (
    AgentBinding,
    Enforcement,
    Enrollment,
    Heartbeat,
    HeartbeatResult,
    OnAgentChange,
    OnDirty,
    OnOffline,
    OnQueued,
)
from lastgood.ports import Store
from tests.contract import builders, work_builders
from tests.contract.builders import STRANGER, TENANT
from tests.contract.conftest import Backend, dump
from tests.contract.work_builders import OWNER, RUNTIME, WORKER

pytestmark = pytest.mark.anyio


def beat(epoch: int, *runtimes: str, worker: str = WORKER, **fields: object) -> Heartbeat:
    return replace(Heartbeat(TENANT, worker, epoch, runtimes, (), owner=OWNER), **fields)  # type: ignore[arg-type]


# --- register ----------------------------------------------------------------------------------------------


async def test_a_registration_is_read_back_as_it_was_made(store: Store) -> None:
    new = work_builders.new_runtime(
        profile="work", cli_version="2.1", steerable=True, enforces=Enforcement.NONE
    )
    made = await store.register(work_builders.registration(new))
    (runtime,) = made.runtimes
    assert (made.epoch, made.took_over) == (1, False)
    assert runtime.identity == new.identity
    assert (runtime.name, runtime.profile, runtime.cli_version) == (new.name, "work", "2.1")
    assert (runtime.owner, runtime.shared_with, runtime.steerable) == ("ann", (), True)
    assert runtime.enforces is Enforcement.NONE
    assert (runtime.status, runtime.removed_at, runtime.tenant) == ("", None, TENANT)
    assert 0 <= runtime.seen_seconds_ago < 60
    assert abs(runtime.created_at - time.time()) < 60


async def test_registering_again_changes_nothing_but_what_it_says(store: Store) -> None:
    first = await work_builders.register(store, "a", "b")
    new = replace(work_builders.new_runtime("a"), name="another", cli_version="3")
    again = await store.register(work_builders.registration(new, work_builders.new_runtime("b")))
    assert (again.epoch, again.took_over) == (1, False)
    assert [each.id for each in again.runtimes] == ["a", "b"]
    assert (again.runtimes[0].name, again.runtimes[0].cli_version) == ("another", "3")
    assert again.runtimes[0].created_at == first.runtimes[0].created_at
    assert len(await store.list_runtimes(TENANT)) == 2


async def test_a_runtime_keeps_its_id_whatever_id_it_is_registered_under(store: Store) -> None:
    await work_builders.register(store, "a")
    new = work_builders.new_runtime("a")
    other = replace(new, identity=replace(new.identity, id="other"))
    made = await store.register(work_builders.registration(other))
    assert [each.id for each in made.runtimes] == ["a"]


async def test_another_instance_takes_over_with_a_higher_epoch(store: Store) -> None:
    await work_builders.register(store)
    second = await work_builders.register(store, instance="second")
    assert (second.epoch, second.took_over) == (2, True)
    again = await work_builders.register(store, instance="second")
    assert (again.epoch, again.took_over) == (2, False)


async def test_of_many_instances_that_start_at_once_each_has_an_epoch_of_its_own(store: Store) -> None:
    made = await asyncio.gather(*(work_builders.register(store, instance=f"i{n}") for n in range(8)))
    assert sorted(each.epoch for each in made) == list(range(1, 9))
    assert sorted(each.took_over for each in made) == [False] + 7 * [True]


async def test_I34_a_worker_of_another_user_is_not_taken_over(backend: Backend) -> None:
    await work_builders.register(backend.store)
    before = await dump(backend)
    with pytest.raises(Conflict):
        await work_builders.register(backend.store, owner="bea")
    assert await dump(backend) == before


async def test_I35_the_same_worker_id_in_two_tenants_is_two_workers(store: Store) -> None:
    await work_builders.register(store, "a")
    other = await work_builders.register(store, "b", tenant=STRANGER, owner="bea")
    assert (other.epoch, other.took_over) == (1, False)
    assert [each.id for each in await store.list_runtimes(TENANT)] == ["a"]


async def test_a_removed_runtime_is_there_again_under_its_old_id(store: Store) -> None:
    made = await work_builders.register(store)
    assert await store.remove_runtime(TENANT, RUNTIME)
    assert not await store.remove_runtime(TENANT, RUNTIME), "it was removed before"
    assert await store.list_runtimes(TENANT) == ()
    removed = await store.get_runtime(TENANT, RUNTIME)
    assert removed is not None
    assert removed.removed_at is not None
    again = await work_builders.register(store)
    assert again.runtimes[0].id == RUNTIME
    assert again.runtimes[0].removed_at is None
    assert again.runtimes[0].created_at == made.runtimes[0].created_at


async def test_a_runtime_is_shared_with_users(store: Store) -> None:
    await work_builders.register(store)
    shared = await store.share_runtime(TENANT, RUNTIME, ["bea", "*"])
    assert shared is not None
    assert shared.shared_with == ("bea", "*")
    assert (await work_builders.register(store)).runtimes[0].shared_with == ("bea", "*")


# --- heartbeat ---------------------------------------------------------------------------------------------


async def test_a_heartbeat_says_that_its_runtimes_are_there(backend: Backend) -> None:
    store = backend.store
    await work_builders.register(store, "a", "b")
    await backend.execute("UPDATE runtimes SET last_seen_at = 1000")
    assert await store.beat(beat(1, "a", status="paused"), 90) == HeartbeatResult()
    a, b = await store.list_runtimes(TENANT)
    assert a.seen_seconds_ago < 60
    assert b.seen_seconds_ago > 1_000_000
    assert (a.status, b.status) == ("paused", "paused")


async def test_a_heartbeat_names_runtimes_that_are_not_the_workers(store: Store) -> None:
    await work_builders.register(store, "a", "gone")
    await work_builders.register(store, "theirs", worker="other")
    await store.remove_runtime(TENANT, "gone")
    result = await store.beat(beat(1, "a", "gone", "theirs", "nowhere"), 90)
    assert result == HeartbeatResult(unknown_runtimes=("gone", "theirs", "nowhere"))


async def test_a_replaced_instance_learns_it_and_renews_no_runtime(backend: Backend) -> None:
    store = backend.store
    await work_builders.register(store)
    await work_builders.register(store, instance="second")
    await backend.execute("UPDATE runtimes SET last_seen_at = 1000")
    assert await store.beat(beat(1, RUNTIME, status="old"), 90) == HeartbeatResult(replaced=True)
    (runtime,) = await store.list_runtimes(TENANT)
    assert runtime.seen_seconds_ago > 1_000_000
    assert runtime.status == ""


async def test_removed_runtimes_are_listed_on_request(store: Store) -> None:
    await work_builders.register(store, "a", "b")
    await store.remove_runtime(TENANT, "a")
    assert [one.id for one in await store.list_runtimes(TENANT)] == ["b"]
    listed = await store.list_runtimes(TENANT, with_removed=True)
    assert [(one.id, one.removed_at is None) for one in listed] == [("a", False), ("b", True)]


async def test_a_worker_that_never_registered_is_not_replaced(store: Store) -> None:
    assert await store.beat(beat(1, "a"), 90) == HeartbeatResult(unknown_runtimes=("a",))


async def test_a_worker_that_deregisters_is_offline_and_keeps_its_claims(store: Store) -> None:
    await work_builders.register(store)
    assert not await store.deregister(TENANT, WORKER, OWNER, 2), "another epoch"
    assert await store.deregister(TENANT, WORKER, OWNER, 1)
    (runtime,) = await store.list_runtimes(TENANT)
    assert runtime.seen_seconds_ago > 1_000_000
    again = await work_builders.register(store, instance="second")
    assert (again.epoch, again.took_over) == (2, False)
    assert again.runtimes[0].seen_seconds_ago < 60
    assert not await store.deregister(TENANT, WORKER, OWNER, 1), "the second instance runs"


# --- bindings and enrollments -------------------------------------------------------------------------------


async def test_a_binding_is_read_back_replaced_and_removed(store: Store) -> None:
    first = AgentBinding(TENANT, "agent", "a", OnOffline.FAIL, 60.0, 120.0, 3, True, "tok")
    first = replace(first, on_agent_change=OnAgentChange.FRESH, on_dirty=OnDirty.REPLAY)
    assert await store.bind_agent(first, OnQueued.KEEP) == 0
    assert await store.get_binding(TENANT, "agent") == first
    second = AgentBinding(TENANT, "agent", "b")
    await store.bind_agent(second, OnQueued.MOVE)
    assert await store.get_binding(TENANT, "agent") == second
    assert await store.unbind_agent(TENANT, "agent", OWNER)
    assert not await store.unbind_agent(TENANT, "agent", OWNER)
    assert await store.get_binding(TENANT, "agent") is None


async def test_a_session_is_read_with_whether_the_agent_of_its_next_turn_is_bound(store: Store) -> None:
    session = await builders.session(store, conversation="c", agent_key="agent")

    async def unbound(agent_key: str | None) -> set[str | None]:
        by_id = await store.locate_session(TENANT, session.id, agent_key)
        by_name = await store.locate_conversation(TENANT, "c", agent_key)
        assert by_id is not None
        assert by_name is not None
        assert by_id.session == by_name.session == await builders.again(store, session)
        return {by_id.unbound_agent, by_name.unbound_agent}

    assert await unbound(None) == {"agent"}
    assert await unbound("other") == {"other"}
    await store.bind_agent(AgentBinding(STRANGER, "agent", "a"), OnQueued.KEEP)
    assert await unbound(None) == {"agent"}, "another tenant's binding"
    await store.bind_agent(AgentBinding(TENANT, "agent", "a"), OnQueued.KEEP)
    assert await unbound(None) == {None}
    assert await unbound("agent") == {None}
    assert await unbound("other") == {"other"}
    assert await store.unbind_agent(TENANT, "agent", OWNER)
    assert await unbound(None) == {"agent"}


async def test_an_enrollment_is_used_once(store: Store) -> None:
    made = Enrollment(TENANT, "ann", WORKER, time.time() + 60)
    code = work_builders.secret()
    await store.create_enrollment(made, code)
    assert await store.use_enrollment(work_builders.secret()) is None
    used = await asyncio.gather(*(store.use_enrollment(code) for _ in range(4)))
    assert [each for each in used if each] == [made]


async def test_an_enrollment_that_has_expired_is_not_used(store: Store) -> None:
    code = work_builders.secret()
    await store.create_enrollment(Enrollment(TENANT, "ann", WORKER, time.time() - 1), code)
    assert await store.use_enrollment(code) is None


async def test_a_session_is_pinned_to_a_runtime_and_released(store: Store) -> None:
    await work_builders.register(store, "a")
    session = await builders.session(store)
    assert await store.pin_runtime(TENANT, session.id, "a", OnQueued.KEEP, OWNER) == 0
    now = await builders.again(store, session)
    assert (now.runtime_id, now.runtime_pinned) == ("a", True)
    assert await store.pin_runtime(TENANT, session.id, None, OnQueued.MOVE, OWNER) == 0
    now = await builders.again(store, session)
    assert (now.runtime_id, now.runtime_pinned) == ("a", False)
    assert await store.pin_runtime(STRANGER, session.id, "a", OnQueued.KEEP, OWNER) is None
