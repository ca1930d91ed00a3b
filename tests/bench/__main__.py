"""`make bench`: what a turn costs, always beside a bare loop that makes the same durable writes.

Times on a shared machine say little; ratios within one run say more. The bare loop
is apsw alone: no asyncio, no threads, no model values, its statements prepared and
its parameters ready, the same rows into the same schema with synchronous=FULL, two
transactions a turn (begin and commit). It is timed twice: with one fsync for every
transaction, and with one for every sixteen, which no real caller can have but which
is what group commit strives for.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from lastgood.agents.builtin import SCRIPTED, scripted_agent
from lastgood.agents.catalog import Catalog
from lastgood.core.commit import plan_commit
from lastgood.engine.providers.scripted import Scripted
from lastgood.engine.tools.echo import ECHO
from lastgood.flows.dependencies import FlowLimits
from lastgood.flows.submission import Submission
from lastgood.model.attempts import Ask, AttemptStatus, Begin, Begun, Committed, Step, StepKind
from lastgood.model.events import AttemptEnded, AttemptStarted, Event
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.model.messages import assistant, user
from lastgood.model.sessions import NewSession, Session, Usage
from lastgood.model.usage import NO_USE
from lastgood.ports import Store
from lastgood.store.migrations import migrations
from lastgood.store.rows import event_body, of_begin
from lastgood.store.session_rows import of_new_session, to_session
from lastgood.store.sqlite import open_sqlite
from lastgood.store.sqlite.database import PREPARED
from lastgood.store.sqlite.schema_ledger import upgrade
from lastgood.store.statements import named
from lastgood.store.usage import uses_of_end
from lastgood.wiring import RandomIds, assemble
from tests.bench.history_reads import reading_cost
from tests.bench.loop import TARGET as LOOP_TARGET
from tests.bench.loop import loop_cost
from tests.bench.server import TARGET as SERVER_TARGET
from tests.bench.server import server_cost
from tests.bench.session_lists import listing_cost
from tests.engines import Kit
from tests.postgres import PostgresServer
from tests.wires.clients import CHUNKS, compare

CALLERS = 16
SAID = "What is the capital of the country in which this sentence was written down first?"
ANSWER = "That cannot be known from the sentence alone, but here is what can be said about it. " * 4


@dataclass(frozen=True, slots=True)
class Rate:
    turns_per_second: float
    cpu_per_turn_us: float


def measure(turns: int, work: Callable[[], None]) -> Rate:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Rate(turns / (time.perf_counter() - wall), (time.process_time() - cpu) / turns * 1e6)


# -- the store alone ---------------------------------------------------------------


def _begin(session: SessionId, ids: RandomIds) -> Begin:
    return Begin(
        ask=Ask(DEFAULT_TENANT, session, (user(SAID),)),
        turn=ids.turn(),
        attempt=ids.attempt(),
        holder="bench",
        lease_seconds=15.0,
        agent_key="builtin/scripted",
        agent_digest="sha256:0",
        agent_model="builtin/scripted",
        decision={"agent": "exact"},
    )


async def one_turn(store: Store, session: SessionId, ids: RandomIds) -> None:
    begin = _begin(session, ids)
    begun = await store.begin_if_free(
        begin, (Event(begin.attempt, AttemptStarted(begin.turn, begin.attempt, "bench")),)
    )
    assert isinstance(begun, Begun)
    plan = plan_commit(begin, begun, [Step(StepKind.MODEL, assistant(ANSWER), Usage(20, 80))], time.time())
    end = Event(begin.attempt, AttemptEnded("committed"))
    assert (await store.commit_if_head(begun.hold, plan, (end,))).outcome is Committed.YES


async def callers(store: Store, turns: int) -> None:
    ids = RandomIds()

    async def call() -> None:
        session = await store.create_session(NewSession(ids.session(), DEFAULT_TENANT, "builtin/scripted"))
        assert session is not None
        for _ in range(turns // CALLERS):
            await one_turn(store, session.id, ids)

    await asyncio.gather(*(call() for _ in range(CALLERS)))


def bare_loop(path: Path, turns: int, per_fsync: int) -> None:
    """The same rows by the same statements, and nothing around them."""
    connection = apsw.Connection(str(path), statementcachesize=PREPARED)
    connection.create_scalar_function("clock", lambda *_: time.time(), 0)
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", 2)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    upgrade(connection, migrations("sqlite"))
    sql = named("sqlite")
    ids = RandomIds()
    sessions = [ids.session() for _ in range(CALLERS)]
    for session in sessions:
        new = of_new_session(NewSession(session, DEFAULT_TENANT, "a"))
        connection.execute(sql["create_session"], new).fetchall()
    for first in range(0, turns, per_fsync):
        group = [
            _bare_turn(connection, sql, sessions[number % CALLERS], ids)
            for number in range(first, min(first + per_fsync, turns))
        ]
        for step in (0, 1):
            connection.execute("BEGIN IMMEDIATE")
            for turn in group:
                turn[step]()
            connection.execute("COMMIT")
    connection.close()


def _bare_turn(
    connection: apsw.Connection, sql: dict[str, str], session: SessionId, ids: RandomIds
) -> tuple[Callable[[], None], Callable[[], None]]:
    begin = _begin(session, ids)
    event = {"session": session, "attempt": begin.attempt, "kind": "x", "at": None}
    event["body"] = event_body(Event(begin.attempt, AttemptEnded("committed")))  # type: ignore[assignment]
    state: dict[str, Any] = {}

    def do_begin() -> None:
        parameters = of_begin(begin) | {"events": 1}
        held = to_session(connection.execute(sql["hold_session"], parameters).fetchall()[0])
        state["held"] = held
        connection.execute(sql["insert_request"], parameters)
        head = held.head.turn if held.head else None
        more = {"fence": held.fence, "base": head, "head": head, "model": "m"}
        connection.execute(sql["insert_attempt"], parameters | more).fetchall()
        connection.execute(sql["insert_event"], event | {"seq": held.last_event_seq})

    def do_commit() -> None:
        held: Session = state["held"]
        head = held.head.turn if held.head else None
        parameters = {
            "tenant": "default", "session": session, "attempt": begin.attempt, "fence": held.fence,
            "events": 1, "turn": begin.turn, "seq": held.turns + 1, "hash": b"0" * 32, "kind": "run",
            "base": head, "expected_head": head, "replaces": None, "agent_key": "a", "agent_digest": "d",
            "model": "m", "override": None, "binds": None, "decision": "{}", "input_tokens": 20,
            "output_tokens": 80, "cost": 0.0, "now": 0.0, "user": "", "inputs": 1,
            "body": (SAID + ANSWER).encode(), "status": "committed", "code": None, "message": None,
            "died": False,
        }  # fmt: skip
        last, _, segment = connection.execute(sql["commit_head"], parameters).fetchall()[0]
        connection.execute(sql["insert_turn"], parameters | {"segment": segment})
        connection.execute(sql["forget_input"], parameters)
        connection.execute(sql["end_attempt"], parameters | {"last_event": last})
        for use in uses_of_end(AttemptStatus.COMMITTED, NO_USE):
            connection.execute(sql["count_use"], {"attempt": begin.attempt, **use})
        connection.execute(sql["insert_event"], event | {"seq": last})

    return do_begin, do_commit


def store_alone(folder: Path, turns: int, repeats: int) -> tuple[Rate, Rate, Rate]:
    """Ours, bare with one fsync a transaction, bare with one for sixteen; interleaved, the medians."""
    ours, single, grouped = [], [], []
    for number in range(repeats):
        store = open_sqlite(folder / f"ours{number}.db")

        async def work(store: Store = store) -> None:
            await callers(store, turns)

        ours.append(measure(turns, lambda work=work: asyncio.run(work())))  # type: ignore[misc]
        asyncio.run(store.close())
        single.append(measure(turns, lambda n=number: bare_loop(folder / f"single{n}.db", turns, 1)))  # type: ignore[misc]
        grouped.append(
            measure(turns, lambda n=number: bare_loop(folder / f"grouped{n}.db", turns, CALLERS))  # type: ignore[misc]
        )
    return _median(ours), _median(single), _median(grouped)


def _median(rates: list[Rate]) -> Rate:
    return Rate(
        statistics.median(rate.turns_per_second for rate in rates),
        statistics.median(rate.cpu_per_turn_us for rate in rates),
    )


async def _postgres(dsn: str, turns: int) -> None:
    from lastgood.store.postgres import open_postgres

    store = await open_postgres(dsn)
    await callers(store, turns)
    await store.close()


# -- growth and whole turns --------------------------------------------------------


async def bytes_per_commit(folder: Path, turns: int = 1000) -> tuple[int, int]:
    """What a turn adds to the log at the beginning of a session, and after many turns."""
    path = folder / "growth.db"
    store = open_sqlite(path)
    ids = RandomIds()
    session = await store.create_session(NewSession(ids.session(), DEFAULT_TENANT, "builtin/scripted"))
    assert session is not None
    log = path.with_name(path.name + "-wal")
    checkpointer = apsw.Connection(str(path))
    costs = []
    for _ in range(turns):
        checkpointer.execute("SELECT count(*) FROM lastgood_schema").fetchall()
        checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        await one_turn(store, session.id, ids)
        costs.append(log.stat().st_size)
    checkpointer.close()
    await store.close()
    return round(statistics.mean(costs[1:11])), round(statistics.mean(costs[-10:]))


async def whole_turns(folder: Path, turns: int) -> None:
    """Submit to commit through the flows, with the scripted model: one caller each of sixteen sessions."""
    store = open_sqlite(folder / "flows.db")
    engine = Kit({SCRIPTED: Scripted()}, [ECHO]).engine()
    app = assemble(store, engine, Catalog([scripted_agent()]), limits=FlowLimits())

    async def call() -> None:
        session = await app.sessions.create(DEFAULT_TENANT, "builtin/scripted", title="bench")
        for _ in range(turns // CALLERS):
            submitted = await app.submitter.submit(
                Submission(Ask(DEFAULT_TENANT, session.id, (user("hello there"),)))
            )
            await submitted.outcome()

    await asyncio.gather(*(call() for _ in range(CALLERS)))
    await app.live.close(1.0)
    await store.close()


def http_clients(repeats: int) -> None:
    """The CPU of a streamed call in the process that makes it; the model server is another process."""
    costs = compare(320, repeats)
    print(f"streamed calls of {CHUNKS} chunks, {CALLERS} side by side, CPU of the client:")
    for name, cost in costs.items():
        print(f"  {name:18} {cost:8.0f} us a call  ({cost / costs['aiohttp']:.2f} of bare aiohttp)")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=3200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-postgres", action="store_true")
    parser.add_argument("--http", action="store_true", help="compare HTTP clients, and nothing else")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="compare the server with that of another checkout that has its own .venv, and nothing else",
    )
    parser.add_argument("--rounds", type=int, default=7, help="rounds of the server's benchmark (default 7)")
    options = parser.parse_args()
    if options.http:
        http_clients(options.repeats)
        return 0
    if options.against:
        return 0 if server_cost(options.rounds, against=options.against) <= SERVER_TARGET else 1
    turns = options.turns // CALLERS * CALLERS
    with tempfile.TemporaryDirectory(dir=os.environ.get("LASTGOOD_BENCH_DIR")) as name:
        folder = Path(name)
        ours, single, grouped = store_alone(folder, turns, options.repeats)
        print(f"store alone, SQLite FULL, {CALLERS} callers, {turns} turns, median of {options.repeats}:")
        for label, rate in (("lastgood", ours), ("bare, 1 a fsync", single), ("bare, 16 a fsync", grouped)):
            print(
                f"  {label:18} {rate.turns_per_second:8.0f} turns/s"
                f"  {rate.cpu_per_turn_us:6.0f} us CPU a turn"
            )
        ratio = ours.turns_per_second / single.turns_per_second
        best = ours.turns_per_second / grouped.turns_per_second
        print(f"  ratio to bare: {ratio:.2f} (target 0.50); to the grouped ideal: {best:.2f}")
        first, last = asyncio.run(bytes_per_commit(folder))
        print(f"bytes written by a turn: {first} at turn 10, {last} at turn 1,000 ({last / first:.2f}x)")
        flows = measure(turns, lambda: asyncio.run(whole_turns(folder, turns)))
        print(
            f"whole turns, scripted model: {flows.turns_per_second:.0f} turns/s, "
            f"{flows.cpu_per_turn_us:.0f} us CPU a turn"
        )
    if not options.no_postgres:
        with PostgresServer() as server:
            server.create_database("bench")
            rate = measure(turns, lambda: asyncio.run(_postgres(server.dsn("bench"), turns)))
            print(
                f"store alone, PostgreSQL, {CALLERS} callers: {rate.turns_per_second:.0f} turns/s, "
                f"{rate.cpu_per_turn_us:.0f} us CPU a turn (client)"
            )
    reading_cost()
    http_clients(options.repeats)
    loop, served, listed = loop_cost(), server_cost(options.rounds), listing_cost()
    return 0 if ratio >= 0.5 and loop <= LOOP_TARGET and served <= SERVER_TARGET and listed else 1


if __name__ == "__main__":
    sys.exit(main())
