"""`lastgood db check`: everything that a prompt is built from is checked, of every tenant (I6, I18)."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lastgood.errors import LastgoodError
from lastgood.flows.database_check import CheckReport, check_database
from lastgood.flows.verified_history import read_chain
from lastgood.model.attempts import AttemptStatus
from lastgood.model.messages import user
from lastgood.model.stored_rows import StoredTable
from lastgood.model.tasks import PointerOutcome
from lastgood.ports import Store
from lastgood.store.sqlite import open_sqlite
from tests.contract import builders, work_builders
from tests.contract.builders import STRANGER, TENANT
from tests.contract.conftest import Backend, SqliteBackend
from tests.contract.work_builders import Claim

pytestmark = pytest.mark.anyio

#: A change of each column as SQL, and the row that is changed. What is not here is in NOT_COVERED.
CHANGES: dict[str, tuple[str, dict[str, str]]] = {
    "turns": (
        "seq = 2 AND tenant = 'stranger'",
        {
            "id": "'another'",
            "tenant": "'another'",
            "session_id": "'another'",
            "seq": "9",
            "segment": "'another'",
            "parent": "'another'",
            "attempt_id": "'another'",
            "kind": "'reset'",
            "hash": "{bytes}",
            "agent_key": "'another'",
            "agent_digest": "'another'",
            "model": "'another'",
            "decision": "'{\"left_out\": 3}'",
            "input_tokens": "input_tokens + 1",
            "output_tokens": "output_tokens + 1",
            "cost": "cost + 1",
            "created_at": "created_at + 1",
            "end_user": "'another'",
            "inputs": "0",
            "body": "{bytes}",
        },
    ),
    "branches": (
        "tenant = 'stranger'",
        {
            "tenant": "'another'",
            "session_id": "'another'",
            "head": "'another'",
            "seq": "9",
            "replaced_by": "'another'",
        },
    ),
    "steps": (
        "n = 1",
        {
            "attempt_id": "'another'",
            "n": "9",
            "kind": "'steer'",
            "input_tokens": "input_tokens + 1",
            "output_tokens": "output_tokens + 1",
            "cost": "cost + 1",
            "body": "{bytes}",
            "checksum": "{bytes}",
        },
    ),
    "requests": (
        "{durable}",
        {
            "turn_id": "'another'",
            "tenant": "'another'",
            "session_id": "'another'",
            "kind": "'reset'",
            "key": "'another'",
            "fingerprint": "'another'",
            "caller": "'another'",
            "end_user": "'another'",
            "model": "'another'",
            "agent_key": "'another'",
            "after": "'another'",
            "replaces": "'another'",
            "expects": "'another'",
            "options": "'{\"temperature\": 1}'",
            "on_leave": "'cancel'",
            "durable": "{no}",
            "input": "{bytes}",
            "checksum": "{bytes}",
        },
    ),
    "queued": (
        "kind = 'followup'",
        {
            "tenant": "'another'",
            "session_id": "'another'",
            "turn_id": "'another'",
            "key": "'another'",
            "fingerprint": "'another'",
            "caller": "'another'",
            "end_user": "'another'",
            "model": "'another'",
            "agent_key": "'another'",
            "input": "{bytes}",
            "checksum": "{bytes}",
        },
    ),
    "sessions": (
        "tenant = 'stranger' AND seq = 3",
        {
            "id": "'another'",
            "tenant": "'another'",
            "forked_turn": "'another'",
            "head": "'another'",
            "seq": "2",
            "head_hash": "{bytes}",
            "attempt_id": "'another'",
        },
    ),
    "attempts": (
        "fence = 3 AND tenant = 'stranger'",
        {"tenant": "'another'", "session_id": "'another'", "turn_id": "id"},
    ),
    "tasks": (
        "status = 'claimed'",
        {
            "id": "'another'",
            "tenant": "'another'",
            "session_id": "'another'",
            "turn_id": "'another'",
            "runtime_id": "'another'",
            "directive": "'{'",
            "claim_token": "{bytes}",
            "attempt_id": "'another'",
            "decision": "'{'",
        },
    ),
    "claims": (
        "report IS NOT NULL",
        {
            "token": "{bytes}",
            "tenant": "'another'",
            "task_id": "'another'",
            "attempt_id": "'another'",
            "report": "'{'",
        },
    ),
    "pointers": (
        "outcome = 'committed'",
        {
            "tenant": "'another'",
            "session_id": "'another'",
            "task_id": "'another'",
            "attempt_id": "'another'",
            "base_turn": "'another'",
            "through_turn": "'another'",
        },
    ),
    "snapshots": (
        "tenant = 'stranger'",
        {
            "tenant": "'another'",
            "session_id": "'another'",
            "attempt_id": "'another'",
            "turn_id": "'another'",
            "summary": "'{'",
        },
    ),
}
#: These change after their row was written, or nobody who builds a prompt reads them.
NOT_COVERED = {
    "requests": {"created_at", "closed"},
    "branches": {"n", "after", "created_at"},
    "queued": {"n", "kind", "attempt_id", "journaled", "failures", "parked", "created_at", "settled_at"},
}


async def furnished(store: Store) -> None:
    """Two tenants, forks, edits, a turn that runs, one that was promised, and one that waits."""
    for tenant in (TENANT, STRANGER):
        session = await builders.session(store, tenant)
        turns = await builders.talk(store, session, 3)
        fork = await builders.fork(store, await builders.again(store, session), turns[1])
        await builders.talk(store, fork, 2)
        await builders.fork(store, await builders.again(store, fork), turns[0])
        edited = await builders.session(store, tenant)
        await builders.talk(store, edited, 1)
        await builders.edit(store, edited, None)
    empty = await builders.session(store)
    running = await builders.start(store, builders.ask(empty))
    await store.journal_if_held(running.hold, (builders.answer("one"), builders.result("1", "two")), [])
    durable = await builders.session(store, STRANGER)
    tried = await builders.start(store, builders.ask(durable, user("promised"), durable=True))
    await store.finish_if_held(tried.hold, AttemptStatus.INTERRUPTED, None, [])
    await builders.followup(store, empty)
    await worked(store)


async def worked(store: Store) -> tuple[Claim, Claim]:
    """A task that is done, with all that it has left, and one that a worker has."""
    session = await builders.session(store, STRANGER)
    await work_builders.register(store, tenant=STRANGER)
    claims = []
    for _ in range(2):
        await work_builders.task(store, session)
        claim = await work_builders.claim(store, tenant=STRANGER)
        await store.confirm_claim(claim.hold, claim.token, {}, 90.0, [], agent_digest="sha256:1")
        claims.append(claim)
        if len(claims) == 1:
            state = await claim.state(store)
            await store.put_snapshot(state, claim.token, work_builders.snapshot(claim))
            through = work_builders.pointer(through=claim.claimed.task.turn, outcome=PointerOutcome.COMMITTED)
            await claim.complete(store, pointer=through)
    return claims[0], claims[1]


async def change(backend: Backend, table: str, column: str) -> None:
    where, columns = CHANGES[table]
    is_sqlite = backend.name == "sqlite"
    words = {
        "{bytes}": "CAST('[]' AS BLOB)" if is_sqlite else "convert_to('[]', 'UTF8')",
        "{no}": "0" if is_sqlite else "false",
        "{durable}": "durable = 1" if is_sqlite else "durable",
    }
    sql = f"UPDATE {table} SET {column} = {columns[column]} WHERE {where}"
    for word, meaning in words.items():
        sql = sql.replace(word, meaning)
    before = await backend.rows(f"SELECT * FROM {table}")
    await backend.execute(sql)
    assert await backend.rows(f"SELECT * FROM {table}") != before, "the test has changed nothing"


@asynccontextmanager
async def kept(backend: Backend, table: str) -> AsyncIterator[None]:
    """At its end the table is as it was."""
    await backend.execute(f"CREATE TEMP TABLE kept AS SELECT * FROM {table}")
    yield
    numbered = "" if backend.name == "sqlite" else "OVERRIDING SYSTEM VALUE"
    await backend.execute(f"DELETE FROM {table}")
    await backend.execute(f"INSERT INTO {table} {numbered} SELECT * FROM kept")
    await backend.execute("DROP TABLE kept")


async def test_I6_a_whole_database_is_found_whole_and_counted(backend: Backend) -> None:
    await furnished(backend.store)
    report = await check_database(backend.store)
    assert report.findings == []
    for table in StoredTable:
        (count,) = await backend.rows(f"SELECT count(*) FROM {table.value}")
        assert report.rows[table] == count[0] > 0
    assert report.tenants == {TENANT, STRANGER}


@pytest.mark.parametrize("table", CHANGES)
async def test_I6_a_change_of_any_column_is_reported(backend: Backend, table: str) -> None:
    await furnished(backend.store)
    _, columns = CHANGES[table]
    for column in columns:
        async with kept(backend, table):
            await change(backend, table, column)
            report = await check_database(backend.store)
            assert not report.is_good, column
            if column not in ("tenant", "session_id", "attempt_id", "id"):
                tenant = TENANT if table in ("steps", "queued") else STRANGER
                assert {one.tenant for one in report.findings} == {tenant}, column
                assert all(one.session and one.what for one in report.findings), column
    assert (await check_database(backend.store)).is_good, "a change was not taken back"


async def test_every_column_is_tried_or_has_a_reason_not_to_be(backend: Backend) -> None:
    for table in ("turns", "branches", "steps", "requests", "queued"):
        sql = (
            f"SELECT name FROM pragma_table_info('{table}')"
            if backend.name == "sqlite"
            else f"SELECT column_name::text FROM information_schema.columns WHERE table_name = '{table}'"
        )
        columns = {name for (name,) in await backend.rows(sql)}
        assert columns == set(CHANGES[table][1]) | NOT_COVERED.get(table, set())


async def found(store: Store) -> list[tuple[str, str, str]]:
    return [(one.session, one.what, one.problem) for one in (await check_database(store)).findings]


async def test_I6_a_task_and_a_session_that_disagree_are_reported(backend: Backend) -> None:
    store = backend.store
    _, claim = await worked(store)
    session, task, attempt = claim.hold.session, claim.task, claim.hold.attempt
    await backend.execute(f"UPDATE tasks SET status = 'queued' WHERE id = '{task}'")
    of_attempt = f"it has not ended, but is not the claim of its task, {task}"
    assert await found(store) == [(session, f"attempt {attempt}", of_attempt)]
    await backend.execute(f"UPDATE tasks SET status = 'running' WHERE id = '{task}'")
    assert await found(store) == []
    await backend.execute(f"UPDATE sessions SET attempt_id = NULL, lease_until = NULL WHERE id = '{session}'")
    of_task = f"a worker has it, but its attempt, {attempt}, does not hold the session"
    assert (session, f"task {task}", of_task) in await found(store)


async def test_I6_two_tasks_of_a_session_that_workers_have_are_reported(backend: Backend) -> None:
    done, claim = await worked(backend.store)
    await backend.execute("DROP INDEX tasks_open")
    await backend.execute(
        f"UPDATE tasks SET status = 'running', ended_at = NULL, lease_until = 0 WHERE id = '{done.task}'"
    )
    received = await found(backend.store)
    rival = "a worker has another task of the same session, too"
    assert (claim.hold.session, f"task {claim.task}", rival) in received
    assert [one for one in received if one[1] == f"task {done.task}"], (
        "the other one does not hold the session"
    )


async def test_an_imported_pointer_names_a_task_of_another_system(backend: Backend) -> None:
    done, _ = await worked(backend.store)
    elsewhere = "task_id = 'theirs', attempt_id = 'their attempt', base_turn = NULL"
    await backend.execute(f"UPDATE pointers SET {elsewhere}, agent_digest = '', runtime_id = NULL")
    assert await found(backend.store) == []
    await backend.execute(f"UPDATE pointers SET task_id = '{done.task}'")
    assert len(await found(backend.store)) == 1


async def test_I6_a_turn_that_no_session_reaches_is_reported(backend: Backend) -> None:
    """A head that was put back to an earlier turn fits together, and an acknowledged turn is lost."""
    store = backend.store
    session = await builders.session(store)
    turns = await builders.talk(store, session, 3)
    earlier = turns[1]
    value = f"x'{earlier.hash.hex()}'" if backend.name == "sqlite" else f"'\\x{earlier.hash.hex()}'"
    await backend.execute(f"UPDATE sessions SET head = '{earlier.id}', seq = 2, head_hash = {value}")
    report = await check_database(store)
    assert [(one.session, one.what, one.problem) for one in report.findings] == [
        (session.id, f"turn 3 ({turns[2].id})", "no session references it")
    ]


async def test_a_check_sees_one_moment_while_others_write(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    await builders.talk(store, session, 3)
    async with store.inspect() as look:
        seen = [row async for row in look.rows(StoredTable.SESSIONS)]
        await builders.talk(store, session, 2)
        assert len([row async for row in look.rows(StoredTable.TURNS)]) == 3
    assert len(seen) == 1
    assert (await check_database(store)).rows[StoredTable.TURNS] == 5


async def test_deleting_leaves_nothing_that_is_reported(backend: Backend) -> None:
    await furnished(backend.store)
    for id, tenant in await backend.rows("SELECT id, tenant FROM sessions ORDER BY n"):
        await backend.store.delete_session(tenant, id)
        assert (await check_database(backend.store)).findings == []


# -- bytes of the file ------------------------------------------------------------------------------------


async def prompts_of(store: Store) -> list[Any]:
    """All that a model could be shown out of this database."""
    found: list[Any] = []
    for tenant in (TENANT, STRANGER):
        for session in (await store.list_sessions(tenant, limit=100)).sessions:
            chain = await read_chain(store, tenant, session.head)
            found.append((session.id, session.head, chain.turns, chain.damage is None))
            for attempt in await store.list_attempts(tenant, session.id):
                found.append(await store.read_steps(tenant, attempt.id))
                found.append(await store.read_request(tenant, attempt.turn))
            found.append([item.messages for item in await store.read_queue(tenant, session.id)])
    return found


async def judged(path: Path) -> CheckReport | None:
    """None: it was refused, in words."""
    try:
        store = open_sqlite(path, read_only=True)
        try:
            return await check_database(store)
        finally:
            await store.close()
    except LastgoodError:
        return None


@pytest.mark.parametrize("seed", range(4))
async def test_I18_flipped_bytes_and_cut_files_are_reported_or_harmless(tmp_path: Path, seed: int) -> None:
    backend = SqliteBackend(tmp_path / "whole.db")
    await furnished(backend.store)
    whole = await prompts_of(backend.store)
    await backend.close()
    content = (tmp_path / "whole.db").read_bytes()
    used = [place for place, byte in enumerate(content) if byte]  # most of a small database is empty
    dice = random.Random(seed)
    received = {"refused": 0, "reported": 0, "harmless": 0}
    for number in range(60):
        hurt = bytearray(content)
        if number % 6 == 5:
            del hurt[dice.randrange(1, len(hurt)) :]
        else:
            hurt[dice.choice(used)] ^= 1 << dice.randrange(8)
        path = tmp_path / f"hurt {number}.db"
        path.write_bytes(hurt)
        report = await judged(path)
        if report is None:
            received["refused"] += 1
        elif not report.is_good:
            received["reported"] += 1
        else:
            store = open_sqlite(path, read_only=True)
            assert await prompts_of(store) == whole, (seed, number)
            await store.close()
            received["harmless"] += 1
    assert received["reported"] > 10, received
