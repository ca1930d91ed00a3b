"""An outage of the store costs time, not the turn; and nobody is told that a committed turn failed.

On PostgreSQL the connections go through a proxy that cuts them, holds them up or loses one answer. On SQLite
a fault at the seam stands for a disk that is full for a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from lastgood.core.lifecycle import Move
from lastgood.errors import (
    HistoryDamaged,
    LastgoodError,
    OutcomeUnknown,
    SessionBusy,
    StoreUnavailable,
    TurnCancelled,
)
from lastgood.flows.attempt_end import AttemptStop
from lastgood.flows.dependencies import FlowLimits
from lastgood.flows.turn_outcome import Outcome
from lastgood.model.attempts import AttemptStatus
from lastgood.model.events import TextStreamed
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.model.messages import user
from lastgood.model.queue import NewQueued, QueueKind
from lastgood.store.postgres import open_postgres
from lastgood.wiring import Lastgood, running
from tests import polls
from tests.faults.faults import Mode
from tests.flows.cluster import LIMITS, PATIENCE_SECONDS, Cluster, Gate, eventually, gate_tool
from tests.postgres import PostgresServer
from tests.postgres_proxy import PostgresProxy
from tests.present import present

pytestmark = pytest.mark.anyio

on_postgres = pytest.mark.parametrize("where", ["postgres"], indirect=True)

#: As a server has them.
OUTAGE_LIMITS = replace(
    LIMITS, lease_seconds=20.0, heartbeat_seconds=1.0, stop_seconds=1.0, sweep_seconds=0.2
)
TURN = '!tool ledger-repeat {"text": "a"}\n!slow 0.05\n!say one two three four five six seven eight nine ten'


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> PostgresProxy:
    return PostgresProxy(postgres_server)


@asynccontextmanager
async def behind(proxy: PostgresProxy, cluster: Cluster, limits: FlowLimits) -> AsyncIterator[Lastgood]:
    """A node as it serves, heartbeat thread and all, whose database is behind the proxy."""
    assert isinstance(cluster.where, str)
    with proxy:
        straight = cluster.backend.store
        database = cluster.where.partition("?")[0].rpartition("/")[2]
        cluster.backend.store = await open_postgres(proxy.dsn(database))
        try:
            node = await cluster.node("behind", limits=limits, alone=True, alive=False)
            async with running(node, grace_seconds=0):
                yield node
        finally:
            proxy.restore()
            await cluster.backend.store.close()
            cluster.backend.store = straight


async def promise(cluster: Cluster, node: Lastgood, n: int) -> list[SessionId]:
    """As many sessions with a turn that was promised: answered 202, under a key, or as a follow-up."""
    sessions = [await cluster.session(node, title="mine") for _ in range(n)]
    for number, session in enumerate(sessions):
        text = f"promise {number}\n{TURN}"
        if number % 3 == 0:
            await cluster.submit(node, session, text, durable=True)
        elif number % 3 == 1:
            await cluster.submit(node, session, text, durable=True, key=f"key {session}")
        else:
            turn = node.deps.ids.turn()
            await node.queue.put(NewQueued(DEFAULT_TENANT, session, turn, QueueKind.FOLLOWUP, (user(text),)))
    return sessions


async def until_committed(cluster: Cluster, sessions: list[SessionId]) -> None:
    async def committed() -> bool:
        found = [await cluster.get(session) for session in sessions]
        return all(session.turns == 1 for session in found)

    await eventually(committed)


# -- outages of PostgreSQL ------------------------------------------------------------


@on_postgres
@pytest.mark.parametrize("how", ["cut", "stall"])
@pytest.mark.parametrize("times", [1, 4])
async def test_I12_an_outage_that_is_shorter_than_the_lease_costs_no_attempt(
    cluster: Cluster, proxy: PostgresProxy, how: str, times: int
) -> None:
    """`times`: how often the node has met the outage when it ends."""
    async with behind(proxy, cluster, OUTAGE_LIMITS) as node:
        sessions = await promise(cluster, node, 9)
        await cluster.until_prompted(3)
        (proxy.cut if how == "cut" else proxy.stall)()
        await polls.eventually(lambda: proxy.felt >= times)
        proxy.restore()
        await until_committed(cluster, sessions)
        for session in sessions:
            tries = await cluster.attempts(session)
            assert [one.status for one in tries] == [AttemptStatus.COMMITTED]


@on_postgres
async def test_I12_after_a_longer_outage_durable_turns_run_again_and_no_attempt_is_counted(
    cluster: Cluster, proxy: PostgresProxy
) -> None:
    limits = replace(OUTAGE_LIMITS, lease_seconds=1.5, heartbeat_seconds=0.3, stop_seconds=0.2)
    async with behind(proxy, cluster, limits) as node:
        sessions = await promise(cluster, node, 6)
        await cluster.until_prompted(3)
        proxy.cut()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while node.live.count:  # each is interrupted when its lease can no longer be renewed
                await asyncio.sleep(0.01)
        proxy.restore()
        await until_committed(cluster, sessions)
        assert await cluster.backend.rows("SELECT count(*) FROM attempts WHERE died") == [(0,)]
        assert await cluster.backend.rows("SELECT count(*) FROM queued WHERE parked IS NOT NULL") == [(0,)]
        ends = await cluster.backend.rows(
            "SELECT DISTINCT error_code FROM attempts WHERE status = 'interrupted'"
        )
        assert ends in ([], [("store_unavailable",)])


#: A piece of the text of each write of an attempt, and of no other.
WRITES = {
    "begin": b"INSERT INTO attempts",
    "commit": b"INSERT INTO turns",
}


@on_postgres
@pytest.mark.parametrize("is_executed", [True, False], ids=["answer lost", "call lost"])
@pytest.mark.parametrize("write", ["begin", "commit"])
async def test_I16_a_connection_that_is_cut_at_a_write_costs_no_turn(
    cluster: Cluster, proxy: PostgresProxy, write: str, is_executed: bool
) -> None:
    async with behind(proxy, cluster, OUTAGE_LIMITS) as node:
        session = await cluster.session(node, title="mine")
        proxy.lose_answer(WRITES[write], is_executed=is_executed)
        turn = await cluster.good(node, session, TURN)
        assert proxy.cuts == 1
        assert [one.id for one in await cluster.turns(session)] == [turn.id]
        assert len(await cluster.attempts(session)) == 1


# -- on both stores, at the seam -----------------------------------------------------------


def striking(**modes: Mode) -> Callable[[str], Awaitable[Mode | None]]:
    async def jitter(point: str) -> Mode | None:
        return modes.get(point.removeprefix("store."))

    return jitter


async def until_repeated(cluster: Cluster, node: Lastgood, point: str) -> None:
    """Until a call that failed was made again."""
    hits, before = cluster.faults(node).hits, cluster.faults(node).hits[point]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while hits[point] < before + 2:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    "point",
    ["journal_if_held", "append_events_if_held", "commit_if_head", "read_turns", "get_session", "steers_of"],
)
@pytest.mark.parametrize("mode", [Mode.RAISE, Mode.SILENT])
async def test_a_store_that_fails_for_a_moment_costs_no_attempt(
    cluster: Cluster, point: str, mode: Mode
) -> None:
    node = await cluster.node(kept_histories=0)
    session = await cluster.session(node, title="mine")
    await cluster.good(node, session, "first")
    if point == "read_turns":  # the history is read as soon as the run starts
        cluster.faults(node).jitter = striking(read_turns=mode)
    submitted = await cluster.submit(node, session, TURN)
    cluster.faults(node).jitter = striking(**{point: mode})
    await until_repeated(cluster, node, f"store.{point}")
    assert not cluster.run_of(submitted).done.done()
    cluster.heal(node)
    outcome = await cluster.outcome(node, submitted)
    assert outcome.status is AttemptStatus.COMMITTED
    assert len(await cluster.attempts(session)) == 2


@pytest.mark.parametrize("point", ["store.journal_if_held", "store.append_events_if_held"])
async def test_I22_a_batch_whose_answer_is_lost_is_stored_once(cluster: Cluster, point: str) -> None:
    node = await cluster.node()
    session = await cluster.session(node, title="mine")
    submitted = await cluster.submit(node, session, TURN)
    cluster.strike(node, point, Mode.LOST)
    watched = [event async for event in submitted.events()]
    outcome = await cluster.outcome(node, submitted)
    assert cluster.faults(node).struck
    assert outcome.turn is not None
    events = await cluster.backend.store.read_events(DEFAULT_TENANT, session, after=0)
    assert watched == [event for event in events if event.attempt == outcome.attempt]
    words = [event.data.content for event in events if isinstance(event.data, TextStreamed)]
    assert "".join(words) == outcome.turn.messages[-1].content
    steps = await cluster.backend.store.read_steps(DEFAULT_TENANT, present(outcome.attempt))
    assert [step.message for step in steps] == list(outcome.turn.messages[1:-1])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlowLimits, "outage_seconds", 0.2)
    monkeypatch.setattr("lastgood.flows.attempt_run._END_SECONDS", 0.1)


async def outcome_in(cluster: Cluster, node: Lastgood, **modes: Mode) -> tuple[SessionId, Outcome]:
    session = await cluster.session(node, title="mine")
    cluster.faults(node).jitter = striking(**modes)
    outcome = await cluster.say(node, session, TURN)
    cluster.heal(node)
    return session, outcome


async def test_an_outage_interrupts_and_the_caller_gets_the_true_outcome(
    cluster: Cluster, impatient: None
) -> None:
    node = await cluster.node(alive=False)
    session, outcome = await outcome_in(cluster, node, journal_if_held=Mode.RAISE, finish_if_held=Mode.RAISE)
    assert (outcome.status, outcome.turn) == (AttemptStatus.INTERRUPTED, None)
    assert isinstance(outcome.error, StoreUnavailable)
    assert outcome.error.code == "store_unavailable"
    assert "nothing was committed. Send the request again" in outcome.error.message
    # Its end is written when the store is back, before its lease ends.
    await node.recovery.sweep()
    [attempt] = await cluster.attempts(session)
    assert (attempt.status, attempt.error_code) == (AttemptStatus.INTERRUPTED, "store_unavailable")
    assert await cluster.turns(session) == ()


@pytest.mark.parametrize("mode", [Mode.LOST, Mode.SILENT])
async def test_I16_once_a_commit_was_sent_an_error_says_that_the_outcome_is_unknown(
    cluster: Cluster, impatient: None, mode: Mode
) -> None:
    node = await cluster.node(alive=False)
    gone = dict.fromkeys(("finish_if_held", "get_attempt", "find_turn"), Mode.RAISE)
    session, outcome = await outcome_in(cluster, node, commit_if_head=mode, **gone)
    assert isinstance(outcome.error, OutcomeUnknown)
    assert f"/api/sessions/{session}/attempts/{outcome.attempt}" in outcome.error.message
    assert "Idempotency-Key" in outcome.error.message
    await node.recovery.sweep()
    assert len(await cluster.turns(session)) == (1 if mode is Mode.LOST else 0)
    assert (await cluster.get(session)).attempt is None


@pytest.mark.parametrize(("durable", "expected"), [(True, OutcomeUnknown), (False, SessionBusy)])
async def test_I13_after_a_lost_begin_only_a_turn_without_recovery_is_rejected(
    cluster: Cluster, durable: bool, expected: type[LastgoodError]
) -> None:
    """The begin happened and its answer was lost. Before it is repeated, its lease was swept and another
    request took the session. Recovery will try a durable turn again, so its client must not send it again."""
    node, other = await cluster.node(alive=False), await cluster.node("other", alive=False)
    session = await cluster.session(node, title="mine")
    begins = 0

    async def jitter(point: str) -> Mode | None:
        nonlocal begins
        if point != "store.begin_if_free":
            return None
        begins += 1
        if begins == 1:
            return Mode.LOST
        [lost] = await cluster.attempts(session)
        assert await cluster.backend.store.finish_if_held(lost.hold, AttemptStatus.INTERRUPTED, None, ())
        await cluster.submit(other, session, "!slow 1\n!say another")
        return None

    cluster.faults(node).jitter = jitter
    with pytest.raises(expected) as refused:
        await cluster.submit(node, session, "hello", durable=durable)
    assert type(refused.value) is expected
    assert begins == 2


async def test_I18_a_turn_that_is_damaged_when_its_commit_is_read_back_is_not_answered(
    cluster: Cluster,
) -> None:
    node = await cluster.node(alive=False)
    session = await cluster.session(node, title="mine")
    commits = 0

    async def jitter(point: str) -> Mode | None:
        nonlocal commits
        if point != "store.commit_if_head":
            return None
        commits += 1
        if commits == 1:
            return Mode.LOST
        await cluster.backend.execute(f"UPDATE turns SET kind = 'append' WHERE session_id = '{session}'")
        return None

    cluster.faults(node).jitter = jitter
    outcome = await cluster.say(node, session, "hello")
    assert commits == 2
    assert outcome.turn is None
    assert isinstance(outcome.error, HistoryDamaged)


async def test_a_commit_whose_answer_is_lost_is_read_back_when_it_is_cancelled(
    cluster: Cluster, impatient: None
) -> None:
    """A cancel that comes while nobody knows must not call the turn cancelled if it is committed."""
    node = await cluster.node(alive=False)
    session = await cluster.session(node, title="mine")
    cluster.faults(node).jitter = striking(commit_if_head=Mode.LOST, find_turn=Mode.RAISE)
    submitted = await cluster.submit(node, session, "hello")
    run = cluster.run_of(submitted)

    async def unknown() -> bool:
        return run.commit_is_unknown

    await eventually(unknown)
    cancelling = asyncio.create_task(node.live.stop(run, AttemptStop(Move.CANCEL, TurnCancelled())))
    await asyncio.sleep(0)
    cluster.heal(node)
    outcome = await cancelling
    assert outcome.status is AttemptStatus.COMMITTED


async def test_a_refused_statement_is_a_failure_and_no_outage(cluster: Cluster) -> None:
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)])
    session = await cluster.session(node, title="mine")
    submitted = await cluster.submit(node, session, "!tool gate {}\n!say done")
    await gate.until_reached()
    await cluster.backend.execute("ALTER TABLE steps RENAME TO hidden")
    try:
        gate.open()
        outcome = await cluster.outcome(node, submitted)
    finally:
        await cluster.backend.execute("ALTER TABLE hidden RENAME TO steps")
    assert outcome.status is AttemptStatus.FAILED
    assert outcome.error is not None
    assert outcome.error.code == "store_error"


async def test_a_read_error_is_not_reported_to_watchers_as_a_failed_turn(
    cluster: Cluster, impatient: None
) -> None:
    gate = Gate()
    node = await cluster.node("a", tools=[gate_tool(gate)])
    other = await cluster.node("b", alive=False)
    session = await cluster.session(node, title="mine")
    submitted = await cluster.submit(node, session, "!tool gate {}\n!say done")
    await gate.until_reached()
    cluster.faults(other).jitter = striking(get_attempt=Mode.RAISE)
    with pytest.raises(OutcomeUnknown):
        await other.turns.handle(
            DEFAULT_TENANT, session, submitted.turn, present(submitted.attempt)
        ).outcome()
    gate.open()
    assert (await cluster.outcome(node, submitted)).status is AttemptStatus.COMMITTED
