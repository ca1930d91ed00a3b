"""What only several connections to one server can show: who wins, and what is left when the server dies.

A race that chance does not bring about is brought about by locks: an outside connection holds a row, the
store's statements queue up behind it, and the server itself says when they do.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from typing import Any, TypeVar

import asyncpg
import pytest

from lastgood.errors import InvalidRequest, NotADatabase, OutcomeUnknown, StoreError, StoreUnavailable
from lastgood.model.attempts import AttemptStatus, BeginConflict, Begun, CommitResult, Committed
from lastgood.model.ids import AttemptId, SessionId, TurnId
from lastgood.model.sessions import Session
from lastgood.store.postgres import PostgresStore, open_postgres
from lastgood.store.postgres.database import split_dsn
from tests.contract import builders
from tests.postgres import PostgresServer
from tests.turn_chains import broken_link

pytestmark = pytest.mark.anyio

T = TypeVar("T")
_numbers = itertools.count()


class Outside:
    """Somebody else on the same database."""

    def __init__(self, dsn: str, connection: Any) -> None:
        self.dsn = dsn
        self.connection = connection

    async def value(self, sql: str, *values: object) -> Any:
        return await self.connection.fetchval(sql, *values)

    async def until_waiting(self, count: int) -> None:
        """Returns once that many statements of others wait for a lock."""

        async def waiting() -> bool:
            await self.value("SELECT pg_stat_clear_snapshot()")  # else a transaction sees one state only
            return bool(
                await self.value(
                    "SELECT count(*) >= $1 FROM pg_stat_activity"
                    " WHERE datname = current_database() AND wait_event_type = 'Lock'",
                    count,
                )
            )

        await builders.eventually(waiting)


@pytest.fixture
async def outside(postgres_server: PostgresServer) -> AsyncIterator[Outside]:
    name = f"races_{next(_numbers)}"
    postgres_server.create_database(name)
    dsn = postgres_server.dsn(name)
    connection = await asyncpg.connect(dsn)
    yield Outside(dsn, connection)
    await connection.close()
    postgres_server.drop_database(name)


@pytest.fixture
async def store(outside: Outside) -> AsyncIterator[PostgresStore]:
    opened = await open_postgres(outside.dsn, pool_size=16)
    yield opened
    await opened.close()


async def queued(outside: Outside, lock: str, key: object, *work: Awaitable[T]) -> list[T]:
    """Runs all of `work` up to the row that `lock` locks, in the order given, and only then further."""
    transaction = outside.connection.transaction()
    await transaction.start()
    await outside.value(lock, key)
    tasks = []
    for count, each in enumerate(work, 1):
        tasks.append(asyncio.ensure_future(each))
        await outside.until_waiting(count)
    await transaction.rollback()
    return await asyncio.gather(*tasks)


SESSION_ROW = "SELECT 1 FROM sessions WHERE id = $1 FOR UPDATE"
ATTEMPT_ROW = "SELECT 1 FROM attempts WHERE id = $1 FOR UPDATE"


async def chain_is_whole(store: PostgresStore, session: Session) -> int:
    """The number of turns, after checking that they are a chain."""
    now = await builders.again(store, session)
    turns = await store.read_turns(now.tenant, now.head.turn) if now.head else ()
    assert [turn.seq for turn in turns] == list(range(1, now.turns + 1))
    assert broken_link(turns) is None
    return len(turns)


# --- begin -------------------------------------------------------------------------------------------------


async def test_I9_of_sixteen_begins_one_holds_the_session(store: PostgresStore) -> None:
    for _ in range(10):
        session = await builders.session(store)
        begins = [builders.begin(builders.ask(session)) for _ in range(16)]
        found = await asyncio.gather(*(store.begin_if_free(each, builders.events("x")) for each in begins))
        begun = [each for each in found if isinstance(each, Begun)]
        assert len(begun) == 1
        for each in found:
            if isinstance(each, BeginConflict):
                assert each.holder is not None
                assert each.holder.hold == begun[0].hold
        assert len(await store.list_attempts(session.tenant, session.id)) == 1
        assert (await builders.again(store, session)).last_event_seq == 1


async def test_I20_one_key_on_two_sessions_begins_once(store: PostgresStore, outside: Outside) -> None:
    for number in range(10):
        sessions = [await builders.session(store) for _ in range(8)]
        begins = [builders.begin(builders.ask(each, key=f"key {number}")) for each in sessions]
        found = await asyncio.gather(*(store.begin_if_free(each, []) for each in begins))
        assert sum(isinstance(each, Begun) for each in found) == 1
        for each in found:
            if isinstance(each, BeginConflict):
                assert each.prior is not None
                assert each.holder is None, "the whole begin was undone, its hold, too"
    assert await outside.value("SELECT count(*) FROM requests") == 10


async def test_I3_a_begin_that_waited_for_the_commit_of_its_turn_does_not_try_it_again(
    store: PostgresStore, outside: Outside
) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    assert await store.finish_if_held(tried.hold, AttemptStatus.INTERRUPTED, None, [])
    again = replace(tried.begin, attempt=AttemptId(builders.new_id()), again=True)
    async with outside.connection.transaction():
        # All that another node leaves of a try that began and was committed meanwhile.
        await outside.value("UPDATE sessions SET fence = fence + 1 WHERE id = $1", session.id)
        await outside.value("UPDATE requests SET input = NULL WHERE turn_id = $1", tried.begin.turn)
        begin = asyncio.ensure_future(store.begin_if_free(again, builders.events("x")))
        await outside.until_waiting(1)
    assert isinstance(await begin, BeginConflict)
    now = await builders.again(store, session)
    assert (now.attempt, now.fence, now.last_event_seq) == (None, 2, 2**20)


async def test_I3_of_sixteen_more_tries_of_one_turn_one_begins(store: PostgresStore) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session, key="k"))
    for number in range(2, 8):
        assert await store.finish_if_held(tried.hold, AttemptStatus.FAILED, ("code", "why\0"), [])
        begins = [replace(tried.begin, attempt=AttemptId(builders.new_id()), again=True) for _ in range(16)]
        found = await asyncio.gather(*(store.begin_if_free(each, []) for each in begins))
        (begun,) = [each for each in found if isinstance(each, Begun)]
        assert begun.number == number
        tried = builders.Try(next(each for each in begins if each.attempt == begun.hold.attempt), begun)
    assert (await store.commit_if_head(tried.hold, tried.plan(), [])).outcome is Committed.YES
    again = replace(tried.begin, attempt=AttemptId(builders.new_id()), again=True)
    assert isinstance(await store.begin_if_free(again, []), BeginConflict)


# --- commit ------------------------------------------------------------------------------------------------


async def test_I21_no_orphan_commits_after_a_client_got_superseded(store: PostgresStore) -> None:
    for _ in range(60):
        session = await builders.session(store)
        tried = await builders.start(store, builders.ask(session))
        committed, orphaned = await asyncio.gather(
            store.commit_if_head(tried.hold, tried.plan(), builders.events("end")),
            store.set_orphaned(tried.hold, True),
        )
        assert (committed.outcome, orphaned) in {(Committed.YES, False), (Committed.ORPHANED, True)}
        assert await chain_is_whole(store, session) == (committed.outcome is Committed.YES)


async def test_I21_a_commit_that_waits_for_set_orphaned_sees_it(
    store: PostgresStore, outside: Outside
) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    orphaned, committed = await queued(
        outside,
        ATTEMPT_ROW,
        tried.hold.attempt,
        store.set_orphaned(tried.hold, True),
        store.commit_if_head(tried.hold, tried.plan(), builders.events("end")),
    )
    assert (orphaned, committed) == (True, CommitResult(Committed.ORPHANED))
    assert (await builders.again(store, session)).last_event_seq == 0
    # Somebody comes back to it, and then it may.
    assert await store.set_orphaned(tried.hold, False)
    assert (await store.commit_if_head(tried.hold, tried.plan(), [])).outcome is Committed.YES


async def test_I21_set_orphaned_that_waits_for_a_commit_is_too_late(
    store: PostgresStore, outside: Outside
) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    committed, orphaned = await queued(
        outside,
        ATTEMPT_ROW,
        tried.hold.attempt,
        store.commit_if_head(tried.hold, tried.plan(), []),
        store.set_orphaned(tried.hold, True),
    )
    assert (orphaned, committed) == (False, CommitResult(Committed.YES, 0))


async def test_I14_of_a_commit_and_its_ends_one_happens(store: PostgresStore, outside: Outside) -> None:
    session = await builders.session(store)
    for turns in range(20):
        tried = await builders.start(store, builders.ask(session))
        ended = [AttemptStatus.CANCELLED, AttemptStatus.FAILED, AttemptStatus.INTERRUPTED]
        first, *others = await asyncio.gather(
            store.commit_if_head(tried.hold, tried.plan(), builders.events("end")),
            *(store.finish_if_held(tried.hold, each, None, builders.events("end")) for each in ended),
        )
        is_committed = isinstance(first, CommitResult) and first.outcome is Committed.YES
        assert [is_committed, *others].count(True) == 1, turns
        attempt = await store.get_attempt(session.tenant, tried.hold.attempt)
        assert attempt is not None
        assert (attempt.status is AttemptStatus.COMMITTED) == is_committed
    ends = await outside.value("SELECT count(*) FROM events WHERE session_id = $1", session.id)
    assert ends == 20, "each attempt has exactly one terminal event"
    await chain_is_whole(store, session)


async def test_I11_a_lease_that_is_renewed_meanwhile_is_not_expired(
    store: PostgresStore, outside: Outside
) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session), lease_seconds=-1.0)
    held, finished = await queued(
        outside,
        SESSION_ROW,
        session.id,
        store.renew_leases([tried.hold], 60.0),
        store.finish_if_held(tried.hold, AttemptStatus.INTERRUPTED, None, [], only_if_expired=True),
    )
    assert isinstance(held, dict)
    assert tried.hold.attempt in held
    assert finished is False


async def test_I22_event_numbers_are_dense_however_many_write(store: PostgresStore) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    steps = [builders.answer("one"), builders.answer("two")]
    await asyncio.gather(
        *(store.append_events_if_held(tried.hold, builders.events("a", "b", "c")) for _ in range(20)),
        *(store.journal_if_held(tried.hold, steps, builders.events("d")) for _ in range(20)),
        *(store.renew_leases([tried.hold], 60.0) for _ in range(5)),
    )
    found = await store.read_events(session.tenant, session.id, after=0)
    assert [event.seq for event in found] == list(range(1, 81))
    assert len(await store.read_steps(session.tenant, tried.hold.attempt)) == 40


# --- forks and deletes -------------------------------------------------------------------------------------


async def test_I6_deletes_and_forks_at_once_break_no_fork_and_leak_no_turn(
    store: PostgresStore, outside: Outside
) -> None:
    for _ in range(12):
        source = await builders.session(store)
        turns = await builders.talk(store, source, 4)
        source = await builders.again(store, source)
        new = [builders.new_session(source.tenant) for _ in range(6)]
        *forks, _ = await asyncio.gather(
            *(store.fork_session(source, turns[number % 4], each) for number, each in enumerate(new)),
            store.delete_session(source.tenant, source.id),
        )
        made = [each for each in forks if isinstance(each, Session)]
        for each in made:
            assert await chain_is_whole(store, each) == each.turns
        longest = max((each.turns for each in made), default=0)
        assert await outside.value("SELECT count(*) FROM turns") == longest

        gone = await asyncio.gather(*(store.delete_session(each.tenant, each.id) for each in made))
        assert all(gone)
        assert await outside.value("SELECT count(*) FROM turns") == 0


async def test_I15_nothing_appears_after_a_delete(store: PostgresStore, outside: Outside) -> None:
    for _ in range(20):
        session = await builders.session(store)
        await builders.talk(store, session, 1)
        tried = await builders.start(store, builders.ask(session))
        await asyncio.gather(
            store.delete_session(session.tenant, session.id),
            store.commit_if_head(tried.hold, tried.plan(), builders.events("end")),
            store.append_events_if_held(tried.hold, builders.events("a")),
            store.journal_if_held(tried.hold, [builders.answer("one")], []),
            store.set_orphaned(tried.hold, True),
            store.begin_if_free(builders.begin(builders.ask(session)), builders.events("a")),
            store.tidy(events_older_than=-1, keys_older_than=-1),
        )
    for table in ("sessions", "turns", "attempts", "requests", "steps", "events"):
        assert await outside.value(f"SELECT count(*) FROM {table}") == 0, table


# --- opening -----------------------------------------------------------------------------------------------


async def test_I19_nodes_that_open_a_fresh_database_at_once_all_succeed(outside: Outside) -> None:
    # All have seen the database empty before the first of them may write.
    async with outside.connection.transaction():
        await outside.value("SELECT pg_advisory_xact_lock(hashtextextended('lastgood migrate', 0))")
        opening = [asyncio.ensure_future(open_postgres(outside.dsn, pool_size=1)) for _ in range(6)]
        await outside.until_waiting(6)
    stores = await asyncio.gather(*opening)
    assert await outside.value("SELECT count(*) FROM lastgood_schema") == 1
    session = await builders.session(stores[0])
    assert await builders.again(stores[-1], session) == session
    await asyncio.gather(*(each.close() for each in stores))


async def test_a_database_of_another_program_is_left_as_it_is(outside: Outside) -> None:
    await outside.connection.execute("CREATE TABLE sessions (mine TEXT)")
    with pytest.raises(NotADatabase, match="another program"):
        await open_postgres(outside.dsn)
    tables = await outside.value(
        "SELECT string_agg(tablename, ' ') FROM pg_tables WHERE schemaname = 'public'"
    )
    assert tables == "sessions"


async def test_everything_is_in_the_schema_of_the_dsn(outside: Outside) -> None:
    await outside.connection.execute("CREATE SCHEMA elsewhere")
    store = await open_postgres(outside.dsn + "&search_path=elsewhere")
    await builders.talk(store, await builders.session(store), 1)
    await store.close()
    assert await outside.value("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
    assert await outside.value("SELECT count(*) FROM elsewhere.turns") == 1


@pytest.mark.parametrize(
    ("dsn", "split"),
    [
        ("postgresql://h/d", ("postgresql://h/d", True)),
        ("postgresql://h/d?prepared=off", ("postgresql://h/d", False)),
        ("postgresql://h/d?prepared=on&host=/a%3Fb", ("postgresql://h/d?host=/a%3Fb", True)),
        ("postgresql:///d?host=/tmp&prepared=off&port=1", ("postgresql:///d?host=/tmp&port=1", False)),
    ],
)
def test_prepared_is_ours_and_the_rest_is_the_drivers(dsn: str, split: tuple[str, bool]) -> None:
    assert split_dsn(dsn) == split


async def test_without_prepared_statements_nothing_is_kept_on_a_connection(outside: Outside) -> None:
    store = await open_postgres(outside.dsn + "&prepared=off", pool_size=1)
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    assert await store.journal_if_held(tried.hold, [builders.answer("one")], builders.events("x"))
    assert (await store.commit_if_head(tried.hold, tried.plan(), [])).outcome is Committed.YES
    row = await store.db._pool.fetchrow(
        "SELECT (SELECT count(*) FROM pg_prepared_statements WHERE name <> ''),"
        " current_setting('synchronous_commit')"
    )
    assert tuple(row or ()) == (0, "on"), "a relaxed write relaxes nothing but itself"
    await store.close()


# --- errors ------------------------------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_unavailable(outside: Outside) -> None:
    with pytest.raises(StoreUnavailable, match="Database unreachable") as caught:
        await open_postgres("postgresql://postgres@/x?host=/nonexistent")
    assert not isinstance(caught.value, OutcomeUnknown)
    with pytest.raises(StoreError, match="does not exist") as refused:
        await open_postgres(outside.dsn.replace("races_", "no_such_"))
    assert not isinstance(refused.value, StoreUnavailable), "waiting would not help"


async def test_I18_a_connection_lost_under_a_write_leaves_its_outcome_unknown(
    store: PostgresStore, outside: Outside
) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    async with outside.connection.transaction():
        await outside.value(SESSION_ROW, session.id)
        commit = asyncio.ensure_future(store.commit_if_head(tried.hold, tried.plan(), []))
        await outside.until_waiting(1)
        await outside.value(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        with pytest.raises(OutcomeUnknown):
            await commit
    assert await store.find_turn(session.tenant, tried.begun.turn) is None
    assert (await store.commit_if_head(tried.hold, tried.plan(), [])).outcome is Committed.YES


async def test_I18_a_read_whose_connection_is_lost_is_unavailable(
    store: PostgresStore, outside: Outside
) -> None:
    session = await builders.session(store)
    async with outside.connection.transaction():
        await outside.connection.execute("LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE")
        read = asyncio.ensure_future(store.get_session(session.tenant, session.id))
        await outside.until_waiting(1)
        await outside.value(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        with pytest.raises(StoreUnavailable) as caught:
            await read
    assert not isinstance(caught.value, OutcomeUnknown)


async def test_a_cancelled_statement_leaves_no_answer_to_the_next(outside: Outside) -> None:
    store = await open_postgres(outside.dsn, pool_size=1)
    session = await builders.session(store)
    for _ in range(20):
        async with outside.connection.transaction():
            await outside.value(SESSION_ROW, session.id)
            write = asyncio.ensure_future(store.set_field(session.tenant, session.id, "model", "lost"))
            await outside.until_waiting(1)
            write.cancel()
            with pytest.raises(asyncio.CancelledError):
                await write
        assert await builders.again(store, session) == session
        assert await store.find_turn(session.tenant, TurnId("none")) is None
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.get_session(session.tenant, session.id)


async def test_when_all_connections_are_taken_the_store_is_unavailable(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lastgood.store.postgres.database.ACQUIRE_SECONDS", 0.05)
    store = await open_postgres(outside.dsn, pool_size=1)
    session = await builders.session(store)
    async with outside.connection.transaction():
        await outside.value(SESSION_ROW, session.id)
        write = asyncio.ensure_future(store.set_field(session.tenant, session.id, "starred", True))
        await outside.until_waiting(1)
        with pytest.raises(StoreUnavailable, match="Database unreachable") as caught:
            await store.get_session(session.tenant, session.id)
        assert not isinstance(caught.value, OutcomeUnknown)
    assert await write
    await store.close()


async def test_text_that_cannot_be_stored_is_refused(store: PostgresStore) -> None:
    with pytest.raises(InvalidRequest, match="character"):
        await builders.session(store, title="a\0b")


async def test_a_missing_table_is_an_error_and_not_an_empty_answer(
    store: PostgresStore, outside: Outside
) -> None:
    session = await builders.session(store)
    await outside.connection.execute("DROP TABLE turns")
    with pytest.raises(StoreError, match="turns"):
        await store.read_turns(session.tenant, TurnId("any"))


# --- the server dies ---------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_I16_a_crash_of_the_server_corrupts_nothing_and_the_store_works_on() -> None:
    with PostgresServer() as server:
        server.create_database("crash")
        store = await open_postgres(server.dsn("crash"))
        session = await builders.session(store)
        for done in range(1, 5):
            tried = await builders.start(store, builders.ask(session))
            await asyncio.to_thread(server.restart, "immediate")
            try:
                committed = (
                    await store.commit_if_head(tried.hold, tried.plan(), builders.events("end"))
                ).outcome
            except StoreUnavailable:
                # What it says to do: read, never assume.
                if await store.find_turn(session.tenant, tried.begun.turn) is None:
                    committed = (
                        await store.commit_if_head(tried.hold, tried.plan(), builders.events("end"))
                    ).outcome
                else:
                    committed = Committed.YES
            assert committed is Committed.YES, "the begin was acknowledged, so it has survived"
            assert await chain_is_whole(store, session) == done
        await store.close()


@pytest.mark.slow
async def test_I16_acknowledged_turns_survive_crashes_under_load() -> None:
    with PostgresServer() as server:
        server.create_database("crash")
        store = await open_postgres(server.dsn("crash"))
        sessions = [await builders.session(store) for _ in range(8)]
        acknowledged: dict[SessionId, set[TurnId]] = {each.id: set() for each in sessions}
        stopped, is_up = asyncio.Event(), asyncio.Event()
        is_up.set()

        async def work(session: Session) -> None:
            while not stopped.is_set():
                try:
                    turn = await builders.commit(store, session)
                    acknowledged[session.id].add(turn.id)
                except StoreUnavailable:
                    await is_up.wait()
                    await free(session)
                except AssertionError:  # the answer to a begin was lost, so the session is held
                    await free(session)

        async def free(session: Session) -> None:
            try:
                for attempt in await store.list_attempts(session.tenant, session.id):
                    await store.finish_if_held(attempt.hold, AttemptStatus.INTERRUPTED, None, [])
            except StoreUnavailable:
                await is_up.wait()

        workers = [asyncio.ensure_future(work(each)) for each in sessions]
        for restarts in range(4):
            if restarts:
                is_up.clear()
                await asyncio.to_thread(server.restart, "immediate")
                is_up.set()
            count = sum(map(len, acknowledged.values()))
            async with asyncio.timeout(60):
                while sum(map(len, acknowledged.values())) < count + 4 * len(sessions):
                    await asyncio.sleep(0.005)
        stopped.set()
        await asyncio.gather(*workers)

        for session in sessions:
            assert await chain_is_whole(store, session) >= len(acknowledged[session.id]) > 0
            now = await builders.again(store, session)
            assert now.head is not None
            chain = await store.read_turns(session.tenant, now.head.turn)
            assert acknowledged[session.id] <= {turn.id for turn in chain}
        await store.close()
