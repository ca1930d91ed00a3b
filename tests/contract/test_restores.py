"""A restored database: no number and no claim of the time after the backup comes back (I9, I10, I22, I31)."""

from __future__ import annotations

import time

import pytest

from lastgood.flows.database_check import check_database
from lastgood.flows.event_outbox import _BATCH_BITS
from lastgood.model.attempts import AttemptStatus
from lastgood.model.audit import AuditFilter
from lastgood.model.tasks import TaskStatus
from lastgood.store.restores import FENCE_LEAP, FENCES_PER_SECOND, LEAP, RETIRED
from tests.contract import builders, work_builders
from tests.contract.builders import TENANT
from tests.contract.conftest import Backend

pytestmark = pytest.mark.anyio


async def test_I22_event_numbers_rise_above_the_clock_and_older_ones_are_dropped(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    await builders.talk(store, session, 2)
    now = time.time()
    await store.mark_restored(now, "backup.db")
    first = await builders.again(store, session)
    assert first.last_event_seq == first.events_dropped == int(now * 1_000_000) < 2**53
    assert first.fence == int(now * FENCES_PER_SECOND)
    await store.mark_restored(now - 3600, "backup.db")
    second = await builders.again(store, session)
    assert second.last_event_seq == second.events_dropped == first.last_event_seq + LEAP
    assert second.fence == first.fence + FENCE_LEAP
    assert (await builders.commit(store, session)).seq == 3
    assert (await check_database(store)).is_good


async def test_I8_batches_of_a_restored_session_have_numbers_that_the_store_takes(backend: Backend) -> None:
    """A batch is numbered above the fence. Raised too far, no turn with a step could be stored again."""
    store = backend.store
    session = await builders.session(store)
    in_2100 = 4_102_444_800.0
    await store.mark_restored(in_2100, "backup.db")
    tried = await builders.start(store, builders.ask(session))
    batch = (tried.hold.fence + 1) << _BATCH_BITS
    assert await store.journal_if_held(tried.hold, (), [], batch=batch)
    assert await store.is_stored(tried.hold, batch)


async def test_I10_an_attempt_of_the_backup_can_be_ended_and_not_by_its_old_holder(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    await store.mark_restored(time.time(), "backup.db")
    assert not await store.finish_if_held(tried.hold, AttemptStatus.FAILED, ("code", "late"), [])
    found = await store.get_attempt(TENANT, tried.hold.attempt)
    assert found is not None
    assert found.hold.fence > tried.hold.fence
    assert await store.finish_if_held(found.hold, AttemptStatus.INTERRUPTED, ("code", "why"), [])
    assert (await builders.start(store, builders.ask(session))).hold.fence > found.hold.fence


async def test_I31_no_claim_token_of_the_backup_counts_and_its_task_is_claimed_again(
    backend: Backend,
) -> None:
    store = backend.store
    await work_builders.register(store)
    done, running = await builders.session(store), await builders.session(store)
    await work_builders.task(store, done)
    ended = await work_builders.claim(store)
    assert (await ended.complete(store, pointer=work_builders.pointer())).value == "yes"
    task = await work_builders.task(store, running)
    old = await work_builders.claim(store)
    await store.mark_restored(time.time(), "backup.db")
    assert await store.find_claim(TENANT, task.id, old.token, work_builders.OWNER, old.worker) is None
    repeated = await ended.state(store)
    assert repeated.report == {"status": "completed"}  # an answer that was given is given again
    new = await work_builders.claim(store)
    assert new.task == task.id
    assert (await new.complete(store)).value == "yes"
    assert (await work_builders.again(store, task)).status is TaskStatus.COMPLETED
    (pointer,) = [one for one in await store.list_pointers(TENANT, done.id) if one.native_session]
    assert pointer.retired == RETIRED
    assert (await check_database(store)).is_good


async def test_numbers_of_queue_and_audit_are_not_given_again(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    now = time.time()
    await store.mark_restored(now, "backup.db")
    (record,) = await store.list_audit(TENANT, AuditFilter(), limit=10)
    assert record.number > now * 1_000_000
    assert record.entry.subject == "backup.db"
    assert (await builders.followup(store, session)).number > now * 1_000_000


async def test_statistics_count_every_table(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    await builders.talk(store, session, 3)
    async with store.inspect() as look:
        found = await look.statistics()
    counted = {table.name: table for table in found.tables}
    ignored = {"lastgood_schema", "write_probe"}
    assert counted.keys() == set(await backend.tables()) - ignored
    assert counted["turns"].rows == 3
    assert counted["turns"].bytes > 0
    assert (found.attempts, found.tenants) == ({"committed": 3}, 1)
    assert found.bytes >= sum(table.bytes for table in found.tables)
    assert found.oldest_session_at is not None
    assert found.last_change_at is not None
