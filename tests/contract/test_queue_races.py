"""The queue between several connections: nothing is forgotten, taken twice or let in above the limit.

What two nodes do at the same moment is brought about by locks, as in test_postgres_races.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from lastgood.model.attempts import AttemptStatus, BeginConflict, Begun, Committed
from lastgood.model.ids import AttemptId
from lastgood.model.queue import NotQueued, Parking, Queued, QueueKind
from lastgood.model.sessions import Session
from lastgood.store.postgres import PostgresStore, open_postgres
from tests.contract import builders
from tests.contract.builders import TENANT
from tests.contract.test_postgres_races import SESSION_ROW, Outside, queued

pytestmark = pytest.mark.anyio

TWO_FAILURES = Parking("it failed", failures=2)
AT_ONCE = Parking("it was cancelled", failures=0)

#: Rows that belong to an attempt which has ended: nobody would ever look at them again.
FORGOTTEN = """
SELECT count(*) FROM queued WHERE settled_at IS NULL AND attempt_id IS NOT NULL
  AND attempt_id NOT IN (SELECT attempt_id FROM sessions WHERE attempt_id IS NOT NULL)
"""
#: Sessions that are wrong about what their holder has.
MISCOUNTED = """
SELECT count(*) FROM sessions
WHERE attempt_id IS NOT NULL AND has_queued <> EXISTS (
    SELECT 1 FROM queued WHERE settled_at IS NULL AND queued.attempt_id = sessions.attempt_id)
"""
QUEUED_ROW = "SELECT 1 FROM queued WHERE n = $1 FOR UPDATE"


@pytest.fixture
async def outside(postgres_database: str) -> AsyncIterator[Outside]:
    connection = await asyncpg.connect(postgres_database)
    for table in ("sessions", "turns", "attempts", "requests", "steps", "events", "queued"):
        await connection.execute(f"DELETE FROM {table}")
    yield Outside(postgres_database, connection)
    await connection.close()


@pytest.fixture
async def store(outside: Outside) -> AsyncIterator[PostgresStore]:
    opened = await open_postgres(outside.dsn, pool_size=16)
    yield opened
    assert await outside.value(FORGOTTEN) == 0
    assert await outside.value(MISCOUNTED) == 0
    await opened.close()


# --- enqueue -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", QueueKind)
async def test_no_more_get_in_than_may_however_many_try(store: PostgresStore, kind: QueueKind) -> None:
    for _ in range(5):
        session = await builders.session(store)
        await builders.start(store, builders.ask(session))
        found = await asyncio.gather(
            *(store.enqueue(builders.said(session, kind), most=3) for _ in range(16))
        )
        assert sum(isinstance(each, Queued) for each in found) == 3
        assert {each for each in found if isinstance(each, NotQueued)} == {NotQueued.FULL}
        assert len(await builders.queue(store, session)) == 3


async def test_a_waiter_for_the_last_place_is_rejected(store: PostgresStore, outside: Outside) -> None:
    session = await builders.session(store)
    first, second = await queued(
        outside,
        SESSION_ROW,
        session.id,
        *(store.enqueue(builders.said(session), most=1) for _ in range(2)),
    )
    assert isinstance(first, Queued)
    assert second is NotQueued.FULL


async def test_I20_one_key_is_in_one_queue(store: PostgresStore, outside: Outside) -> None:
    for number in range(10):
        sessions = [await builders.session(store) for _ in range(8)]
        new = [builders.said(each, key=f"key {number}") for each in sessions]
        found = await asyncio.gather(*(store.enqueue(each, most=1) for each in new))
        assert len({each.turn for each in found if isinstance(each, Queued)}) == 1
        assert all(isinstance(each, Queued) for each in found)
    assert await outside.value("SELECT count(*) FROM queued") == 10


async def test_requests_are_served_in_order_of_admission(store: PostgresStore, outside: Outside) -> None:
    session = await builders.session(store)
    new = [builders.said(session) for _ in range(5)]
    await queued(outside, SESSION_ROW, session.id, *(store.enqueue(each, most=9) for each in new))
    assert [row.turn for row in await builders.queue(store, session)] == [each.turn for each in new]


# --- a steer and the end of what it steers -----------------------------------------------------------------


async def end(store: PostgresStore, tried: builders.Try, how: str) -> Committed | bool:
    if how == "commit":
        return (await store.commit_if_head(tried.hold, tried.plan(), builders.events("end"))).outcome
    return await store.finish_if_held(tried.hold, AttemptStatus(how), ("code", "why"), builders.events("end"))


ENDS = ["commit", "failed", "interrupted"]


@pytest.mark.parametrize("how", ENDS)
async def test_an_end_that_waited_for_a_steer_leaves_it_to_be_run(
    store: PostgresStore, outside: Outside, how: str
) -> None:
    """The statement of the end began before the steer was there, and cannot see it."""
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    early = await builders.steer(store, session)
    late, second, ended = await queued(
        outside,
        SESSION_ROW,
        session.id,
        store.enqueue(builders.said(session, QueueKind.STEER), most=9),
        store.enqueue(builders.said(session, QueueKind.STEER), most=9),
        end(store, tried, how),
    )
    assert ended in (Committed.YES, True)
    # The database gives the row to the waiting in nearly the order in which they came: a steer may come last.
    taken = [row for row in (early, late, second) if isinstance(row, Queued)]
    assert len(taken) > 1
    wanted = [replace(row, kind=QueueKind.FOLLOWUP, attempt=None) for row in taken]
    assert await builders.queue(store, session) == wanted
    assert await store.waiting_queues(9) == ((TENANT, session.id),)
    assert await outside.value("SELECT count(*) FROM events WHERE session_id = $1", session.id) == 1


@pytest.mark.parametrize("how", ENDS)
async def test_a_steer_that_waited_for_the_end_comes_too_late(
    store: PostgresStore, outside: Outside, how: str
) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    ended, late = await queued(
        outside,
        SESSION_ROW,
        session.id,
        end(store, tried, how),
        store.enqueue(builders.said(session, QueueKind.STEER), most=9),
    )
    assert ended in (Committed.YES, True)
    assert late is NotQueued.NOTHING_RUNS


async def test_I14_of_two_ends_that_waited_for_a_steer_one_happens(
    store: PostgresStore, outside: Outside
) -> None:
    """Neither could be one statement; the second of them then finds nothing to end."""
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    steer, committed, finished = await queued(
        outside,
        SESSION_ROW,
        session.id,
        store.enqueue(builders.said(session, QueueKind.STEER), most=9),
        end(store, tried, "commit"),
        end(store, tried, "failed"),
    )
    assert isinstance(steer, Queued)
    assert (committed, finished) in {(Committed.YES, False), (Committed.LOST, True)}
    assert await builders.queue(store, session) == [replace(steer, kind=QueueKind.FOLLOWUP, attempt=None)]
    assert await outside.value("SELECT count(*) FROM events WHERE session_id = $1", session.id) == 1


@pytest.mark.parametrize("how", ENDS)
async def test_steers_and_an_end_at_once_forget_none(store: PostgresStore, how: str) -> None:
    for _ in range(15):
        session = await builders.session(store)
        tried = await builders.start(store, builders.ask(session))
        ended, *steers = await asyncio.gather(
            end(store, tried, how),
            *(store.enqueue(builders.said(session, QueueKind.STEER), most=9) for _ in range(6)),
        )
        assert ended in (Committed.YES, True)
        let_in = {row.number for row in steers if isinstance(row, Queued)}
        assert {row.number for row in await builders.queue(store, session)} == let_in
        assert all(row.attempt is None for row in await builders.queue(store, session))


async def test_I14_of_a_commit_and_its_ends_one_decides_about_the_followup(
    store: PostgresStore, outside: Outside
) -> None:
    for _ in range(15):
        session = await builders.session(store)
        row = await builders.followup(store, session)
        tried = await builders.take(store, session, row)
        journaled = await builders.steer(store, session)
        await builders.journal_steers(store, tried.hold, journaled)
        committed, failed, cancelled = await asyncio.gather(
            store.commit_if_head(tried.hold, tried.plan(), []),
            store.finish_if_held(tried.hold, AttemptStatus.FAILED, ("code", "why"), [], parking=TWO_FAILURES),
            store.finish_if_held(tried.hold, AttemptStatus.CANCELLED, None, [], parking=AT_ONCE),
        )
        assert [committed.outcome is Committed.YES, failed, cancelled].count(True) == 1
        left = await builders.queue(store, session)
        if committed.outcome is Committed.YES:
            assert left == []
        else:
            parked = None if failed else AT_ONCE.reason
            steer = replace(journaled, kind=QueueKind.FOLLOWUP, attempt=None, is_journaled=False)
            assert left == [replace(row, failures=int(failed), parked=parked), steer]


# --- who takes a follow-up ---------------------------------------------------------------------------------


def taking(session: Session, row: Queued, **fields: Any) -> Any:
    return builders.begin(builders.ask(session, *row.messages), turn=row.turn, takes=row.number, **fields)


async def test_I3_of_sixteen_begins_one_takes_the_followup(store: PostgresStore) -> None:
    for _ in range(8):
        session = await builders.session(store)
        row = await builders.followup(store, session)
        begins = [taking(session, row) for _ in range(16)]
        found = await asyncio.gather(*(store.begin_if_free(each, []) for each in begins))
        (begun,) = [each for each in found if isinstance(each, Begun)]
        assert await builders.queue(store, session) == [replace(row, attempt=begun.hold.attempt)]


async def test_I3_of_sixteen_more_tries_of_a_followup_one_takes_it(store: PostgresStore) -> None:
    session = await builders.session(store)
    row = await builders.followup(store, session)
    tried = await builders.take(store, session, row)
    for _ in range(2):
        assert await store.finish_if_held(tried.hold, AttemptStatus.INTERRUPTED, None, [])
        begins = [taking(session, row, again=True) for _ in range(16)]
        found = await asyncio.gather(*(store.begin_if_free(each, []) for each in begins))
        (begun,) = [each for each in found if isinstance(each, Begun)]
        assert await builders.queue(store, session) == [replace(row, attempt=begun.hold.attempt)]
        tried = builders.Try(tried.begin, begun)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("lock", ["session", "queue"])
async def test_I3_a_begin_that_waited_while_its_followup_was_settled_begins_nothing(
    store: PostgresStore, outside: Outside, lock: str, again: bool
) -> None:
    session = await builders.session(store)
    row = await builders.followup(store, session)
    if again:
        tried = await builders.take(store, session, row)
        assert await store.finish_if_held(tried.hold, AttemptStatus.INTERRUPTED, None, [])
    before = await builders.again(store, session)
    async with outside.connection.transaction():
        if lock == "session":
            await outside.value(SESSION_ROW, session.id)
        await outside.value("UPDATE queued SET settled_at = 1 WHERE n = $1", row.number)
        begin = asyncio.ensure_future(store.begin_if_free(taking(session, row, again=again), []))
        await outside.until_waiting(1)
    assert isinstance(await begin, BeginConflict)
    assert await builders.again(store, session) == before
    assert await outside.value("SELECT count(*) FROM requests") == int(again)


async def test_I3_a_begin_that_waited_while_one_of_its_steers_was_taken_takes_none(
    store: PostgresStore, outside: Outside
) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    steers = [await builders.steer(store, session) for _ in range(3)]
    await builders.journal_steers(store, tried.hold, *steers)
    assert await store.finish_if_held(tried.hold, AttemptStatus.INTERRUPTED, None, [])
    begin = replace(
        tried.begin,
        attempt=AttemptId(builders.new_id()),
        again=True,
        continues=tried.hold.attempt,
        reclaims=tuple(row.number for row in steers),
    )
    before = await builders.queue(store, session)
    async with outside.connection.transaction():
        await outside.value("UPDATE queued SET settled_at = 1 WHERE n = $1", steers[1].number)
        waits = asyncio.ensure_future(store.begin_if_free(begin, builders.events("x")))
        await outside.until_waiting(1)
    assert isinstance(await waits, BeginConflict)
    assert await builders.queue(store, session) == [before[0], before[2]]
    assert (await builders.again(store, session)).attempt is None


async def test_a_followup_is_dropped_or_taken(store: PostgresStore, outside: Outside) -> None:
    for _ in range(15):
        session = await builders.session(store)
        row = await builders.followup(store, session)
        dropped, parked, begun = await asyncio.gather(
            store.drop_queued(TENANT, session.id, row.number),
            store.park_queued(TENANT, session.id, row.number, "why"),
            store.begin_if_free(taking(session, row), []),
        )
        if isinstance(begun, Begun):
            assert (dropped, parked) == (False, False)
        assert dropped == (await builders.queue(store, session) == [])


async def test_a_drop_that_waited_for_a_begin_is_too_late(store: PostgresStore, outside: Outside) -> None:
    session = await builders.session(store)
    row = await builders.followup(store, session)
    begun, dropped = await queued(
        outside,
        QUEUED_ROW,
        row.number,
        store.begin_if_free(taking(session, row), []),
        store.drop_queued(TENANT, session.id, row.number),
    )
    assert isinstance(begun, Begun)
    assert dropped is False


# --- everything at once ------------------------------------------------------------------------------------


async def test_I15_nothing_is_queued_after_a_delete(store: PostgresStore, outside: Outside) -> None:
    for _ in range(15):
        session = await builders.session(store)
        row = await builders.followup(store, session)
        tried = await builders.start(store, builders.ask(session))
        await asyncio.gather(
            store.delete_session(session.tenant, session.id),
            end(store, tried, "commit"),
            *(store.enqueue(builders.said(session, kind), most=9) for kind in QueueKind),
            store.drop_queued(TENANT, session.id, row.number),
            store.begin_if_free(taking(session, row), []),
            store.tidy(events_older_than=-1, keys_older_than=-1),
        )
    for table in ("sessions", "queued", "attempts", "requests"):
        assert await outside.value(f"SELECT count(*) FROM {table}") == 0, table


async def test_concurrent_operations_do_not_deadlock(store: PostgresStore) -> None:
    """The order of locks; the fixture looks at what is left."""
    dice = random.Random(1)
    sessions = [await builders.session(store) for _ in range(3)]

    async def one() -> None:
        session = dice.choice(sessions)
        rows = [row for row in await builders.queue(store, session) if row.attempt is None]
        begin = builders.begin(builders.ask(session))
        if rows and await store.read_request(TENANT, rows[0].turn) is None:
            begin = taking(session, rows[0])
        begun = await store.begin_if_free(begin, builders.events("x"))
        key = f"key {dice.randrange(40)}"
        await store.enqueue(builders.said(session, dice.choice(list(QueueKind)), key=key), most=4)
        if isinstance(begun, BeginConflict):
            return
        tried = builders.Try(begin, begun)
        await builders.journal_steers(store, tried.hold, *(await store.steers_of(tried.hold)))
        await end(store, tried, dice.choice(ENDS))
        await store.tidy(events_older_than=-1, keys_older_than=-1)
        for row in rows[1:3]:
            await store.drop_queued(TENANT, session.id, row.number)

    for _ in range(6):
        await asyncio.gather(*(one() for _ in range(20)))
