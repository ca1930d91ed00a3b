"""What a write costs does not depend on how long the conversation is."""

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from lastgood.model.messages import user
from lastgood.model.sessions import Session, SessionStatus
from lastgood.model.tasks import TaskStatus
from lastgood.ports import Store
from lastgood.store.sqlite import SqliteStore, open_sqlite, writer
from lastgood.store.statements import named, positional
from tests.contract import builders, work_builders
from tests.contract.builders import TENANT
from tests.contract.conftest import Backend, SqliteBackend, dump

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LONG = 1_000


class Written:
    """Counts the bytes that the database has put into its write-ahead log."""

    def __init__(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        """No checkpoint may shorten the log, and a page must not be logged whole because of one."""
        self.backend = backend
        monkeypatch.setattr(writer, "LOG_PAGES", 0)

    async def now(self) -> int:
        if isinstance(self.backend, SqliteBackend):
            wal = self.backend.path.with_name(self.backend.path.name + "-wal")
            return wal.stat().st_size
        ((written,),) = await self.backend.rows("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        return int(written)


async def cost_of_turns(written: Written, store: Store, session: Session, turns: int) -> float:
    """The median: a page split or a page logged whole after a checkpoint is somebody else's cost."""
    costs = []
    for number in range(turns):
        before = await written.now()
        await builders.commit(store, session, user(f"question {number:4}"))
        costs.append(await written.now() - before)
    return statistics.median(costs)


async def test_the_thousandth_turn_costs_what_the_first_did_and_a_fork_next_to_nothing(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, written = backend.store, Written(backend, monkeypatch)
    session = await builders.session(store)
    # The pages of an empty database fill up and split; what counts begins after that.
    await builders.talk(store, await builders.session(store), 60)
    first = await cost_of_turns(written, store, session, 15)
    await builders.talk(store, session, LONG - 30)
    last = await cost_of_turns(written, store, session, 15)
    assert (await builders.again(store, session)).turns == LONG
    assert last < 1.5 * first, (first, last)

    source = await builders.again(store, session)
    assert source.head is not None
    at = await store.find_turn(TENANT, source.head.turn)
    rows = await dump(backend)
    before = await written.now()
    fork = await builders.fork(store, source, at)
    # A row, its index entries and, on PostgreSQL, some of their pages logged whole.
    assert await written.now() - before < 80_000
    after = await dump(backend)
    assert after["turns"] == rows["turns"]
    assert len(after["sessions"]) == len(rows["sessions"]) + 1
    assert len(await store.read_turns(TENANT, fork.head.turn if fork.head else source.head.turn)) == LONG
    assert await cost_of_turns(written, store, fork, 15) < 1.5 * first


async def ten_thousand_more(backend: Backend) -> None:
    """Copies of the one session of that agent."""
    columns = "tenant, agent_key, created_at, updated_at, metadata, title, title_by"
    await backend.execute(
        f"WITH RECURSIVE many (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM many WHERE i < 10000) "
        f"INSERT INTO sessions (id, segment, {columns}) "
        f"SELECT 'copy-' || i, 'copy-' || i, {columns} FROM many, sessions WHERE agent_key = 'agent'"
    )


async def analyzed(backend: Backend) -> None:
    if backend.name == "postgres":
        await backend.execute("ANALYZE")


async def test_a_page_of_ten_thousand_sessions_reads_a_page(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store, title="needle")
    await builders.talk(store, session, 3)
    await ten_thousand_more(backend)
    await analyzed(backend)
    await backend.execute("ALTER TABLE turns RENAME TO taken_turns")
    try:
        before = pages_read(store)
        page = await store.list_sessions(TENANT, limit=50)
        assert len(page.sessions) == 50
        page = await store.list_sessions(TENANT, limit=50, cursor=page.next_cursor)
        assert len({each.number for each in page.sessions}) == 50
        assert pages_read(store) - before < 400
    finally:
        await backend.execute("ALTER TABLE taken_turns RENAME TO turns")


async def cpu_of_pages(store: Store, **how: Any) -> float:
    """Seconds of our own process for one page of fifty; the best of some."""
    costs = []
    for _ in range(5):
        before = time.process_time()
        await store.list_sessions(TENANT, limit=50, **how)
        costs.append(time.process_time() - before)
    return min(costs)


async def test_a_page_of_ten_thousand_sessions_costs_little_and_a_filter_no_more_than_a_scan(
    backend: Backend,
) -> None:
    store = backend.store
    for _ in range(3):  # at the very end of the list
        await builders.start(store, builders.ask(await builders.session(store, agent_key="rare")))
    await builders.session(store)
    await ten_thousand_more(backend)
    await analyzed(backend)
    for how in ({}, {"agent": "agent"}, {"status": SessionStatus.IDLE}):
        assert await cpu_of_pages(store, **how) < 0.010, how
    for how in ({"agent": "rare"}, {"status": SessionStatus.RUNNING}):
        page = await store.list_sessions(TENANT, limit=50, **how)
        assert len(page.sessions) == 3
        assert page.next_cursor is None
        assert await cpu_of_pages(store, **how) < 0.050, how


async def test_the_queue_is_found_by_its_indexes(backend: Backend) -> None:
    """An end of an attempt looks into the queue every time, and a sweep looks for what can be run."""
    store = backend.store
    session = await builders.session(store)
    await ten_thousand_more(backend)
    for settled in ("NULL", "1"):
        await backend.execute(
            "INSERT INTO queued (tenant, session_id, turn_id, kind, fingerprint, caller, end_user, parked, "
            "created_at, settled_at, input, checksum) "
            f"SELECT tenant, id, id || '{settled}', 'followup', '', '', '', 'why', 0, {settled}, '', '' "
            "FROM sessions"
        )
    await builders.followup(store, session)
    await analyzed(backend)
    sql = named(backend.name)
    plans = {
        "queued_by_attempt": "SELECT n FROM queued WHERE attempt_id = 'x' AND settled_at IS NULL",
        "queued_to_run": sql["waiting_queues"].replace(":limit", "100"),
        "queued_settled": "SELECT n FROM queued WHERE settled_at < 0 LIMIT 9",
        "sessions_by_source": sql["count_forks"].replace(":tenant", "'tenant'").replace(":session", "'x'"),
    }
    for index, statement in plans.items():
        plan = await backend.plan(statement)
        assert index in plan, plan
        assert "Seq Scan" not in plan, plan
        assert "SCAN sessions" not in plan, plan
    assert len(await store.waiting_queues(9)) == 1


def pages_read(store: Store) -> int:
    """Of SQLite's reader, from its cache or not; nothing elsewhere."""
    if not isinstance(store, SqliteStore):
        return 0
    reader = store.db._reader
    return sum(
        reader.status(what)[0] for what in (apsw.SQLITE_DBSTATUS_CACHE_HIT, apsw.SQLITE_DBSTATUS_CACHE_MISS)
    )


async def test_a_claim_reads_no_finished_task_and_no_other_runtimes(backend: Backend) -> None:
    """However many there are: workers ask every few seconds."""
    store = backend.store
    await work_builders.register(store)
    session = await builders.session(store)
    task = await work_builders.task(store, session)
    await ten_thousand_more(backend)
    columns = "tenant, agent_key, scope_kind, scope_id, created_by, end_user, deadline_seconds, created_at"
    for kind, state in (("done", "'completed', 1, tasks.runtime_id"), ("other", "'queued', NULL, 'other'")):
        await backend.execute(
            f"INSERT INTO tasks (id, session_id, turn_id, status, ended_at, runtime_id, {columns}) "
            f"SELECT '{kind}' || sessions.id, sessions.id, '{kind}' || sessions.id, {state}, "
            + ", ".join(f"tasks.{name}" for name in columns.split(", "))
            + f" FROM sessions, tasks WHERE tasks.id = '{task.id}' AND sessions.id <> '{session.id}'"
        )
    await analyzed(backend)
    values = {
        ":tenant": "'tenant'", ":worker": "'laptop'", ":owner": "'ann'", ":epoch": "1",
        ":runtimes": "'[\"rt_a\"]'",
        ":ageing": "600", ":wanted": "4", ":looked_at": "68",
    }  # fmt: skip
    for name in ("any_claimable", "pick_tasks"):
        statement = named(backend.name)[name].replace("clock()", "1.0")  # a function of our connections
        for parameter, value in values.items():
            statement = statement.replace(parameter, value)
        plan = await backend.plan(statement)
        assert "tasks_to_claim" in plan, plan
        assert "Seq Scan on tasks" not in plan, plan
        assert "Seq Scan on sessions" not in plan, plan
        assert "SCAN tasks" not in plan, plan
        assert "SCAN sessions" not in plan, plan
    claim = await work_builders.claim(store)
    assert claim.task == task.id
    assert await claim.fail(store, TaskStatus.QUEUED)
    began = time.perf_counter()
    assert len(await work_builders.claim_some(store)) == 1
    assert time.perf_counter() - began < 0.5


def test_every_statement_about_tasks_finds_them_by_an_index(tmp_path: Path) -> None:
    """A tenant alone is no way to find a task: it may have any number of them."""
    store = open_sqlite(tmp_path / "lastgood.db")
    connection = apsw.Connection(str(tmp_path / "lastgood.db"))
    connection.create_scalar_function("clock", lambda *_: 0.0, 0)
    checked = 0
    for name, statement in named("sqlite").items():
        if name.startswith(("check_", "stats_", "restored_")):
            continue  # commands of `lastgood db`, which read all rows of every table
        parameters = dict.fromkeys(positional(statement).names)
        try:
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
        except apsw.SQLError:
            continue  # a piece of others
        about_tasks = [step for step in plan if " tasks" in step]
        checked += bool(about_tasks)
        for step in about_tasks:
            assert step.startswith("SEARCH "), (name, plan)
            assert name == "pick_tasks" or "(tenant=?)" not in step, (name, plan)
    connection.close()
    asyncio.run(store.close())
    assert checked > 40
