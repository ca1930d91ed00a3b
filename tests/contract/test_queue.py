"""The queue: entries are stored, journaled, run or parked, and none is sent to the model twice."""

from dataclasses import replace
from typing import Any

import pytest

from lastgood.errors import StoreError
from lastgood.model.attempts import AttemptStatus, Committed
from lastgood.model.ids import SessionId
from lastgood.model.messages import user
from lastgood.model.queue import NotQueued, Queued, QueueKind
from lastgood.ports import Store
from tests.contract import builders
from tests.contract.builders import STRANGER, TENANT, eventually
from tests.contract.conftest import Backend, dump

pytestmark = pytest.mark.anyio

# --- said --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", QueueKind)
async def test_what_was_said_comes_back_as_it_was_said(store: Store, kind: QueueKind) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    new = builders.said(
        session,
        kind,
        messages=(user("one 🧭"), user("two\0")),
        model="some/model",
        agent_key="other",
        key="key",
        fingerprint="print",
        caller="caller",
        user="end user",
    )
    row = await builders.enqueue(store, new)
    for field in new.__dataclass_fields__:
        assert getattr(row, field) == getattr(new, field)
    assert row.attempt == (tried.hold.attempt if kind is QueueKind.STEER else None)
    assert (row.is_journaled, row.failures, row.parked, row.settled_at) == (False, 0, None, None)
    assert row.created_at > 1_600_000_000
    assert await builders.queue(store, session) == [row]


async def test_the_queue_has_the_order_in_which_it_was_said(store: Store) -> None:
    session, other = await builders.session(store), await builders.session(store)
    await builders.start(store, builders.ask(session))
    said = []
    for number in range(6):
        await builders.followup(store, other)
        make = builders.steer if number % 2 else builders.followup
        said.append((await make(store, session)).number)
    assert said == sorted(said)
    assert [row.number for row in await builders.queue(store, session)] == said


async def refused(backend: Backend, new: Any, most: int = 100) -> NotQueued:
    """Why; and nothing has changed (I13)."""
    before = await dump(backend)
    why = await backend.store.enqueue(new, most=most)
    assert isinstance(why, NotQueued), why
    assert await dump(backend) == before
    return why


@pytest.mark.parametrize("kind", QueueKind)
async def test_nothing_is_said_to_a_session_that_is_not_there(backend: Backend, kind: QueueKind) -> None:
    session = await builders.session(backend.store)
    await builders.start(backend.store, builders.ask(session))
    new = builders.said(session, kind)
    assert await refused(backend, replace(new, session=SessionId("none"))) is NotQueued.GONE
    assert await refused(backend, replace(new, tenant=STRANGER)) is NotQueued.GONE


async def test_I20_a_key_in_the_queue_finds_what_was_said_under_it(backend: Backend) -> None:
    store = backend.store
    session, other = await builders.session(store), await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    row = await builders.followup(store, session, key="key", fingerprint="a")
    before = await dump(backend)
    for again in (
        builders.said(session, key="key", fingerprint="a"),
        builders.said(session, QueueKind.STEER, key="key", fingerprint="b"),
        builders.said(other, key="key"),
        builders.said(other, QueueKind.STEER, key="key"),  # nothing runs there, and that does not matter now
    ):
        assert await store.enqueue(again, most=0) == row
    assert await dump(backend) == before
    await store.finish_if_held(tried.hold, AttemptStatus.FAILED, None, [])
    await store.drop_queued(TENANT, session.id, row.number)
    found = await store.enqueue(builders.said(other, key="key"), most=0)
    assert isinstance(found, Queued)
    assert found.settled_at is not None, "a settled one is found as well"
    assert found == replace(row, settled_at=found.settled_at)
    stranger = await builders.session(store, STRANGER)
    await builders.followup(store, stranger, key="key")


async def test_I20_a_key_of_another_request_is_used(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    await builders.commit(store, session, key="asked")
    assert await refused(backend, builders.said(session, key="asked")) is NotQueued.KEY_USED
    stranger = await builders.session(store, STRANGER)
    await builders.followup(store, stranger, key="asked")


async def test_I20_the_key_of_a_followup_that_runs_is_still_its_own(store: Store) -> None:
    session = await builders.session(store)
    row = await builders.followup(store, session, key="key")
    asked = builders.ask(session, *row.messages, key="key")
    tried = await builders.start(store, asked, turn=row.turn, takes=row.number)
    found = await store.enqueue(builders.said(session, key="key"), most=9)
    assert found == replace(row, attempt=tried.hold.attempt)


async def test_there_must_be_something_to_steer(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    new = builders.said(session, QueueKind.STEER)
    assert await refused(backend, new) is NotQueued.NOTHING_RUNS
    tried = await builders.start(store, builders.ask(session))
    assert (await builders.steer(store, session)).attempt == tried.hold.attempt
    await store.wait_if_held(tried.hold, {"q": 1}, 60, [])
    assert (await builders.steer(store, session)).attempt == tried.hold.attempt
    assert await store.finish_if_held(tried.hold, AttemptStatus.FAILED, None, [])
    assert await refused(backend, new) is NotQueued.NOTHING_RUNS


@pytest.mark.parametrize("kind", QueueKind)
async def test_so_many_of_a_kind_may_wait_in_a_session(backend: Backend, kind: QueueKind) -> None:
    store = backend.store
    session, other = await builders.session(store), await builders.session(store)
    for each in (session, other):
        await builders.start(store, builders.ask(each))
    for _ in range(3):
        assert isinstance(await store.enqueue(builders.said(session, kind), most=3), Queued)
    assert await refused(backend, builders.said(session, kind), most=3) is NotQueued.FULL
    for each_kind in QueueKind:
        for place in (session, other):
            if (place, each_kind) != (session, kind):
                assert isinstance(await store.enqueue(builders.said(place, each_kind), most=1), Queued)


async def test_parked_and_settled_ones_take_no_place(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    first, second = [await builders.followup(store, session) for _ in range(2)]
    new = builders.said(session)
    assert await refused(backend, new, most=2) is NotQueued.FULL
    assert await store.park_queued(TENANT, session.id, first.number, "why")
    assert isinstance(await store.enqueue(new, most=2), Queued)
    new = builders.said(session)
    assert await refused(backend, new, most=2) is NotQueued.FULL
    assert await store.drop_queued(TENANT, session.id, second.number)
    assert isinstance(await store.enqueue(new, most=2), Queued)


async def test_I3_a_turn_id_is_in_the_queue_once(backend: Backend) -> None:
    session = await builders.session(backend.store)
    new = builders.said(session)
    await builders.enqueue(backend.store, new)
    before = await dump(backend)
    with pytest.raises(StoreError):
        await backend.store.enqueue(new, most=9)
    assert await dump(backend) == before


# --- journaled ----------------------------------------------------------------------------------------------


async def test_an_attempt_finds_its_unread_steers(store: Store) -> None:
    session, other = await builders.session(store), await builders.session(store)
    tried = await builders.take(store, session, await builders.followup(store, session))
    elsewhere = await builders.start(store, builders.ask(other))
    await builders.followup(store, session)
    first, second = [await builders.steer(store, session) for _ in range(2)]
    foreign = await builders.steer(store, other)
    assert await store.steers_of(tried.hold) == (first, second)
    await builders.journal_steers(store, tried.hold, first)
    assert await store.steers_of(tried.hold) == (second,)
    assert await builders.unsettled(store, first) == replace(first, is_journaled=True)
    assert await store.steers_of(elsewhere.hold) == (foreign,)
    (step,) = await store.read_steps(TENANT, tried.hold.attempt)
    assert step.queued == first.number


async def test_an_attempt_reads_only_its_own_steers(store: Store) -> None:
    session, other = await builders.session(store), await builders.session(store)
    row = await builders.followup(store, session)
    waits = await builders.followup(store, session)
    tried = await builders.take(store, session, row)
    await builders.start(store, builders.ask(other))
    foreign = await builders.steer(store, other)
    await builders.journal_steers(store, tried.hold, foreign, row, waits)
    for each in (foreign, waits):
        assert await builders.unsettled(store, each) == each
    assert not (await builders.unsettled(store, row)).is_journaled


async def test_I10_a_journal_without_the_hold_consumes_no_steers(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    row = await builders.steer(store, session)
    before = await dump(backend)
    late = replace(tried.hold, fence=tried.hold.fence + 1)
    step = builders.answer("x")
    assert not await store.journal_if_held(late, [replace(step, queued=row.number)], [])
    assert await dump(backend) == before


# --- to run ------------------------------------------------------------------------------------------------


async def test_free_sessions_with_something_to_run_are_found_oldest_first(store: Store) -> None:
    sessions = [await builders.session(store) for _ in range(3)] + [await builders.session(store, STRANGER)]
    for each in (2, 0, 3, 0, 2):
        await builders.followup(store, sessions[each])
    found = [(sessions[each].tenant, sessions[each].id) for each in (2, 0, 3)]
    assert await store.waiting_queues(9) == tuple(found)
    assert await store.waiting_queues(2) == tuple(found[:2])


async def test_I32_a_session_is_found_again_when_it_is_free_again(store: Store) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    await builders.steer(store, session)
    await builders.followup(store, session)
    assert await store.waiting_queues(9) == ()
    await store.wait_if_held(tried.hold, {"q": 1}, 60, [])
    assert await store.waiting_queues(9) == ()
    resumed = await store.resume_if_waiting(tried.hold, "node", 60)
    assert resumed is not None
    assert (await store.commit_if_head(resumed, tried.plan(), [])).outcome is Committed.YES
    assert await store.waiting_queues(9) == ((TENANT, session.id),)


async def test_what_is_parked_settled_or_taken_is_not_to_run(store: Store) -> None:
    session = await builders.session(store)
    parked, dropped, taken = [await builders.followup(store, session) for _ in range(3)]
    assert await store.park_queued(TENANT, session.id, parked.number, "why")
    assert await store.drop_queued(TENANT, session.id, dropped.number)
    tried = await builders.take(store, session, taken)
    assert (await store.commit_if_head(tried.hold, tried.plan(), [])).outcome is Committed.YES
    assert await store.waiting_queues(9) == ()
    assert await store.unpark_queued(TENANT, session.id, parked.number)
    assert await store.waiting_queues(9) == ((TENANT, session.id),)


# --- dropped and parked ------------------------------------------------------------------------------------


@pytest.mark.parametrize("parked", [False, True])
async def test_unclaimed_entries_can_be_dropped_once(store: Store, parked: bool) -> None:
    session = await builders.session(store)
    row, other = [await builders.followup(store, session) for _ in range(2)]
    if parked:
        await store.park_queued(TENANT, session.id, row.number, "why")
    assert await store.drop_queued(TENANT, session.id, row.number)
    assert await builders.queue(store, session) == [other]
    assert not await store.drop_queued(TENANT, session.id, row.number)


async def test_what_an_attempt_has_is_neither_dropped_nor_parked(backend: Backend) -> None:
    store = backend.store
    session, other = await builders.session(store), await builders.session(store)
    row = await builders.followup(store, session)
    await builders.take(store, session, row)
    steer = await builders.steer(store, session)
    elsewhere = await builders.followup(store, other)
    before = await dump(backend)
    for number in (row.number, steer.number, elsewhere.number, 999):
        assert not await store.drop_queued(TENANT, session.id, number)
        assert not await store.park_queued(TENANT, session.id, number, "why")
        assert not await store.unpark_queued(TENANT, session.id, number)
    assert await dump(backend) == before


async def test_a_park_reason_stays_until_a_retry(store: Store) -> None:
    session = await builders.session(store)
    row = await builders.followup(store, session)
    assert not await store.unpark_queued(TENANT, session.id, row.number)
    assert await store.park_queued(TENANT, session.id, row.number, "first\0")
    assert not await store.park_queued(TENANT, session.id, row.number, "second")
    assert ((await builders.unsettled(store, row)).parked or "").startswith("first")
    assert await store.unpark_queued(TENANT, session.id, row.number)
    assert await builders.unsettled(store, row) == row


# --- gone --------------------------------------------------------------------------------------------------


async def test_I15_the_queue_of_a_deleted_session_is_gone(backend: Backend) -> None:
    store = backend.store
    session, kept = await builders.session(store), await builders.session(store)
    rows = [await builders.followup(store, kept, key="kept")]
    tried = await builders.take(store, session, await builders.followup(store, session, key="key"))
    await builders.steer(store, session)
    await store.drop_queued(TENANT, session.id, (await builders.followup(store, session)).number)
    assert await store.delete_session(TENANT, session.id)
    assert await builders.queue(store, session) == []
    assert await store.steers_of(tried.hold) == ()
    assert await builders.queue(store, kept) == rows
    assert await backend.rows("SELECT key FROM queued") == [("kept",)]
    await builders.followup(store, kept, key="key")


async def test_I20_keys_are_kept_for_a_while_after_they_were_settled(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    row = await builders.followup(store, session, key="key")
    waits = await builders.followup(store, session, key="waits")
    # It had waited for long when its turn came, and its key is as young as its outcome.
    await backend.execute("UPDATE queued SET created_at = 0")
    tried = await builders.take(store, session, row)
    assert (await store.commit_if_head(tried.hold, tried.plan(), [])).outcome is Committed.YES
    await store.tidy(events_older_than=3600, keys_older_than=3600)
    assert isinstance(await store.enqueue(builders.said(session, key="key"), most=0), Queued)

    async def dropped() -> bool:
        await store.tidy(events_older_than=3600, keys_older_than=0)
        return await backend.rows("SELECT n FROM queued") == [(waits.number,)]

    await eventually(dropped)
    await builders.followup(store, session, key="key")


async def test_tidying_counts_and_drops_no_more_than_it_may(store: Store) -> None:
    session = await builders.session(store)
    for _ in range(5):
        row = await builders.followup(store, session)
        await store.drop_queued(TENANT, session.id, row.number)
    counts = [await store.tidy(events_older_than=3600, keys_older_than=-60, limit=2) for _ in range(4)]
    assert counts == [2, 2, 1, 0]


async def test_an_unknown_session_has_no_queue(store: Store) -> None:
    assert await store.read_queue(TENANT, SessionId("unknown")) == ()


async def test_parked_ones_of_a_tenant_are_listed_newest_first(store: Store) -> None:
    session, other = await builders.session(store), await builders.session(store)
    theirs = await builders.session(store, STRANGER)
    first, waiting, dropped = [await builders.followup(store, session) for _ in range(3)]
    second, hidden = await builders.followup(store, other), await builders.followup(store, theirs)
    for place, row in ((session, first), (session, dropped), (other, second), (theirs, hidden)):
        assert await store.park_queued(place.tenant, place.id, row.number, "why")
    assert await store.drop_queued(TENANT, session.id, dropped.number)
    found = await store.parked(TENANT, limit=10)
    assert [(one.number, one.parked) for one in found] == [(second.number, "why"), (first.number, "why")]
    assert waiting.number not in {one.number for one in found}
    assert len(await store.parked(TENANT, limit=1)) == 1
