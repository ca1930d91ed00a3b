"""Pointers are one row from one attempt (I27), and snapshots belong to the turn that commits."""

from typing import Any

import pytest

from lastgood.model.ids import TurnId
from lastgood.model.tasks import PointerOutcome, TaskStatus
from lastgood.ports import Store
from tests.contract import builders, work_builders
from tests.contract.builders import STRANGER, TENANT
from tests.contract.conftest import Backend, dump
from tests.contract.work_builders import RUNTIME, WORKER, Claim, pointer

pytestmark = pytest.mark.anyio


async def claimed(store: Store, **fields: Any) -> Claim:
    await work_builders.register(store)
    await work_builders.task(store, await builders.session(store), **fields)
    return await work_builders.claim(store)


async def test_I27_a_pointer_has_its_parts_from_its_own_attempt(store: Store) -> None:
    await work_builders.register(store)
    session = await builders.session(store)
    turn = await builders.commit(store, session)
    task = await work_builders.task(store, session)
    claim = await work_builders.claim(store)
    await store.confirm_claim(claim.hold, claim.token, {}, 90.0, [], agent_digest="sha256:1")
    assert await store.report_pointer(await claim.state(store), claim.token, pointer())
    (stored,) = await store.list_pointers(TENANT, session.id)
    assert (stored.attempt, stored.task, stored.base) == (claim.hold.attempt, task.id, turn.id)
    assert stored.runtime == work_builders.new_runtime().identity
    assert (stored.native_session, stored.work_dir, stored.worker) == ("native", "/work", WORKER)
    assert (stored.outcome, stored.is_dirty, stored.through) == (PointerOutcome.UNCOUNTED, True, None)
    assert (stored.agent_digest, stored.retired) == ("sha256:1", None)


async def test_I27_an_absent_value_never_wipes_a_stored_one(store: Store) -> None:
    claim = await claimed(store)
    state = await claim.state(store)
    turn = TurnId("seen")
    assert await store.report_pointer(state, claim.token, pointer(through=turn))
    for empty in (None, ""):
        report = pointer(native_session=empty, work_dir=empty)
        assert await store.report_pointer(state, claim.token, report)
    failed = pointer(native_session=None, work_dir=None, outcome=PointerOutcome.FAILED, is_dirty=False)
    assert await claim.fail(store, pointer=failed)
    (stored,) = await store.list_pointers(TENANT, claim.hold.session)
    assert (stored.native_session, stored.work_dir, stored.through) == ("native", "/work", turn)
    assert (stored.outcome, stored.is_dirty) == (PointerOutcome.FAILED, False)


async def test_I27_each_attempt_has_a_row_of_its_own_and_numbers_rise(store: Store) -> None:
    first = await claimed(store)
    await first.fail(store, TaskStatus.QUEUED, pointer=pointer(native_session="a"))
    second = await work_builders.claim(store)
    await second.complete(store, pointer=pointer(native_session="b", outcome=PointerOutcome.COMMITTED))
    stored = await store.list_pointers(TENANT, first.hold.session)
    assert [(each.attempt, each.native_session) for each in stored] == [
        (first.hold.attempt, "a"),
        (second.hold.attempt, "b"),
    ]
    assert stored[0].number < stored[1].number
    assert await store.list_pointers(STRANGER, first.hold.session) == ()


async def test_a_pin_of_a_cancelled_task_is_kept_unless_a_newer_attempt_has_one(store: Store) -> None:
    claim = await claimed(store)
    behind = await work_builders.task(store, claim.claimed.session)
    await claim.cancel(store)
    state = await claim.state(store)
    assert await store.report_pointer(state, claim.token, pointer(native_session="late"))
    newer = await work_builders.claim(store)
    assert newer.task == behind.id
    assert await store.report_pointer(state, claim.token, pointer(native_session="later"))
    assert await store.report_pointer(await newer.state(store), newer.token, pointer(native_session="new"))
    assert not await store.report_pointer(state, claim.token, pointer(native_session="too late"))
    natives = [each.native_session for each in await store.list_pointers(TENANT, claim.hold.session)]
    assert natives == ["later", "new"]


async def test_a_claim_that_has_reported_its_end_points_nowhere_any_more(backend: Backend) -> None:
    store = backend.store
    claim = await claimed(store)
    await claim.complete(store, pointer=pointer())
    before = await dump(backend)
    assert not await store.report_pointer(await claim.state(store), claim.token, pointer(native_session="x"))
    assert await dump(backend) == before


async def test_a_native_session_is_retired_on_its_runtime_alone(store: Store) -> None:
    await work_builders.register(store, "a", "b")
    session = await builders.session(store)
    for runtime in ("a", "b", "a"):
        await work_builders.task(store, session, runtime=runtime)
        claim = await work_builders.claim(store, runtime)
        await claim.fail(store, pointer=pointer(native_session="same"))
    assert await store.retire_native_session(STRANGER, session.id, "a", "same", "why") == 0
    assert await store.retire_native_session(TENANT, session.id, None, "same", "why") == 0
    assert await store.retire_native_session(TENANT, session.id, "a", "other", "why") == 0
    assert await store.retire_native_session(TENANT, session.id, "a", "same", "why") == 2
    assert await store.retire_native_session(TENANT, session.id, "a", "same", "again") == 0
    assert [each.retired for each in await store.list_pointers(TENANT, session.id)] == ["why", None, "why"]


async def test_a_report_retires_what_it_names_in_its_own_transaction(store: Store) -> None:
    claim = await claimed(store)
    await claim.fail(store, TaskStatus.QUEUED, pointer=pointer(native_session="bad"))
    second = await work_builders.claim(store)
    report = pointer(native_session="good", retires=(("bad", "it was lost"),))
    assert await store.report_pointer(await second.state(store), second.token, report)
    stored = await store.list_pointers(TENANT, claim.hold.session)
    assert [each.retired for each in stored] == ["it was lost", None]


async def test_a_pointer_survives_the_removal_of_its_runtime(store: Store) -> None:
    claim = await claimed(store)
    await store.remove_runtime(TENANT, RUNTIME)
    assert await claim.fail(store, pointer=pointer())
    (stored,) = await store.list_pointers(TENANT, claim.hold.session)
    assert stored.runtime == work_builders.new_runtime().identity


# --- snapshots ---------------------------------------------------------------------------------------------


async def test_a_snapshot_replaces_that_of_its_attempt_and_counts_in_the_sessions_bytes(store: Store) -> None:
    claim = await claimed(store)
    state = await claim.state(store)
    for size in (100, 7):
        snapshot = work_builders.snapshot(claim, bytes(size))
        assert await store.put_snapshot(state, claim.token, snapshot)
        assert (await builders.again(store, claim.claimed.session)).stored_bytes == size
        stored = await store.get_snapshot(TENANT, claim.hold.attempt)
        assert stored is not None
        assert (stored.body, stored.summary, stored.turn) == (bytes(size), {"files": 1}, snapshot.turn)
    assert await store.get_snapshot(STRANGER, claim.hold.attempt) is None


async def test_only_the_snapshot_of_a_committed_attempt_speaks_for_its_turn(store: Store) -> None:
    await work_builders.register(store)
    session = await builders.session(store)
    turns = []
    for name in (b"first", b"second"):
        await work_builders.task(store, session)
        failed = await work_builders.claim(store)
        failed_snapshot = work_builders.snapshot(failed, b"failed")
        await store.put_snapshot(await failed.state(store), failed.token, failed_snapshot)
        await failed.fail(store, TaskStatus.QUEUED)
        claim = await work_builders.claim(store)
        snapshot = work_builders.snapshot(claim, name)
        await store.put_snapshot(await claim.state(store), claim.token, snapshot)
        assert await store.newest_snapshot(TENANT, session.id, [claim.claimed.task.turn]) is None
        await claim.complete(store)
        turns.append(claim.claimed.task.turn)

    async def newest(*of: TurnId, tenant: Any = TENANT) -> bytes | None:
        found = await store.newest_snapshot(tenant, session.id, of)
        snapshot = await store.get_snapshot(tenant, found) if found else None
        return snapshot.body if snapshot else None

    assert await newest(*turns) == b"second"
    assert await newest(*reversed(turns)) == b"second"
    assert await newest(turns[0]) == b"first"
    assert await newest() is None
    assert await newest(*turns, tenant=STRANGER) is None
