"""A stall of this process costs no turn; a process that is wedged loses its sessions (I11, I12).

The main loop is really held up, with `time.sleep` on it. On PostgreSQL a rival on a thread of its own
sweeps meanwhile, as another node would.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from lastgood.engine.tools.tool import Tool, ToolUse
from lastgood.errors import SessionBusy
from lastgood.flows.heartbeat import heartbeat
from lastgood.flows.leases import Leases
from lastgood.model.attempts import AttemptStatus
from lastgood.model.ids import DEFAULT_TENANT
from lastgood.store.postgres import open_postgres
from lastgood.store.sqlite import open_sqlite
from lastgood.wiring import Lastgood, SystemClock, running
from tests.contract import builders
from tests.faults.world import World
from tests.flows.cluster import LIMITS, PATIENCE_SECONDS, Cluster, Gate, eventually, gate_tool

pytestmark = pytest.mark.anyio

T = TypeVar("T")

#: The lease ends in the middle of a stall.
SHORT = replace(LIMITS, lease_seconds=1.2, heartbeat_seconds=0.2, sweep_seconds=0.1, stop_seconds=0.2)
STALL_SECONDS = 2.5
THREAD = "lastgood-heartbeat"


def stall_tool(seconds: float) -> Tool:
    async def run(use: ToolUse) -> str:
        time.sleep(seconds)  # noqa: ASYNC251 - real time: the length of the stall
        return "woke up"

    return Tool("stall", "Holds the loop up.", {"type": "object"}, run)


class Rival:
    """Another node on the same database, with a loop and a thread of its own."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._ready = threading.Event()
        self._ends: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._app: Lastgood
        self.ended = 0

    @contextmanager
    def sweeping(self) -> Iterator[Rival]:
        thread = threading.Thread(target=lambda: asyncio.run(self._sweep()))
        thread.start()
        self._ready.wait(PATIENCE_SECONDS)
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._ends.set)
            thread.join()

    async def _sweep(self) -> None:
        self._loop, self._ends = asyncio.get_running_loop(), asyncio.Event()
        store = await open_postgres(self._dsn, pool_size=2)
        self._app = World(store).node("rival", limits=SHORT)
        self._ready.set()
        while not self._ends.is_set():
            self.ended += await self._app.recovery.sweep()
            await asyncio.sleep(0.02)  # real time: the interval between two sweeps
        await store.close()

    async def do(self, work: Callable[[Lastgood], Awaitable[T]]) -> T:
        async def there() -> T:
            return await work(self._app)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), self._loop))


def rival_of(cluster: Cluster) -> Rival:
    assert isinstance(cluster.where, str)
    return Rival(cluster.where)


async def test_I11_a_stall_that_is_longer_than_the_lease_costs_no_turn(cluster: Cluster) -> None:
    node = await cluster.node(tools=[stall_tool(STALL_SECONDS)], limits=SHORT, alone=True, alive=False)
    async with running(node, grace_seconds=0):
        session = await cluster.session(node, title="mine")
        if cluster.is_sqlite:
            turn = await cluster.good(node, session, "!tool stall {}\n!say done")
        else:
            with rival_of(cluster).sweeping() as rival:
                turn = await cluster.good(node, session, "!tool stall {}\n!say done")
            assert rival.ended == 0
    assert turn.messages[-1].content == "done"
    assert [one.status for one in await cluster.attempts(session)] == [AttemptStatus.COMMITTED]


@pytest.mark.parametrize("where", ["postgres"], indirect=True)
async def test_I12_a_wedged_process_loses_its_sessions(cluster: Cluster) -> None:
    """Its thread could renew for ever; it does not, because the loop does not run any more."""
    wedged = replace(SHORT, wedged_seconds=0.5)
    node = await cluster.node(tools=[stall_tool(2 * STALL_SECONDS)], limits=wedged, alone=True, alive=False)
    async with running(node, retries_durable=False, grace_seconds=0):
        session = await cluster.session(node, title="mine")
        with rival_of(cluster).sweeping() as rival:
            outcome = await cluster.say(node, session, "!tool stall {}\n!say never")
        assert (rival.ended, outcome.turn) == (1, None)
    assert [one.status for one in await cluster.attempts(session)] == [AttemptStatus.INTERRUPTED]


@pytest.mark.parametrize("where", ["postgres"], indirect=True)
async def test_a_cancel_on_another_node_reaches_the_run_through_the_thread(cluster: Cluster) -> None:
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)], limits=SHORT, alone=True, alive=False)
    async with running(node, grace_seconds=0):
        session = await cluster.session(node, title="mine")
        running_turn = await cluster.submit(node, session, "!tool gate {}")
        await gate.until_reached()
        with rival_of(cluster).sweeping() as rival:
            received = await rival.do(lambda app: app.turns.cancel(DEFAULT_TENANT, session))
        outcome = await cluster.outcome(node, running_turn)
    assert (received.status, outcome.status) == (AttemptStatus.CANCELLED, AttemptStatus.CANCELLED)


@pytest.mark.parametrize("where", ["postgres"], indirect=True)
async def test_the_heartbeat_ends_with_its_process_and_leaves_nothing_open(cluster: Cluster) -> None:
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)], limits=SHORT, alone=True, alive=False)
    connections = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%AS hold (tenant%'"
    # The watching connection asks the same, so it is told from the heartbeat by its own text.
    count = connections + " AND query NOT LIKE '%pg_stat_activity%'"
    async with running(node, grace_seconds=0):
        session = await cluster.session(node, title="mine")
        await cluster.submit(node, session, "!tool gate {}")
        await gate.until_reached()

        async def beats() -> bool:
            return bool((await cluster.backend.rows(count))[0][0] == 1)

        await eventually(beats)
        assert THREAD in {thread.name for thread in threading.enumerate()}
    assert THREAD not in {thread.name for thread in threading.enumerate()}

    async def closed() -> bool:
        return bool((await cluster.backend.rows(count))[0][0] == 0)

    await eventually(closed)


@pytest.mark.parametrize("where", ["sqlite"], indirect=True)
async def test_a_process_that_is_alone_has_no_heartbeat(cluster: Cluster) -> None:
    leases = Leases(LIMITS, SystemClock())
    async with heartbeat(cluster.backend.store, leases, lambda _: None):
        assert THREAD not in {thread.name for thread in threading.enumerate()}


# -- alone on a store: SQLite -----------------------------------------------------------


class Hands:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
async def clocked(cluster: Cluster, hands: Hands, tmp_path: Path) -> Cluster:
    """A cluster whose database has a clock that is moved by hand."""
    await cluster.backend.store.close()
    cluster.backend.store = open_sqlite(tmp_path / "clocked.db", clock=hands)
    cluster.world.store = cluster.backend.store
    return cluster


@pytest.mark.parametrize("where", ["sqlite"], indirect=True)
@pytest.mark.parametrize("jump", [60.0, 22.0, -60.0])
async def test_I11_a_clock_that_jumps_displaces_nothing_on_sqlite(
    clocked: Cluster, hands: Hands, jump: float
) -> None:
    """Nor does a pause of the whole process: all that it shows is a later time."""
    gate = Gate()
    node = await clocked.node(tools=[gate_tool(gate)], alone=True, alive=False)
    session = await clocked.session(node, title="mine")
    submitted = await clocked.submit(node, session, "!tool gate {}\n!say done")
    await gate.until_reached()
    hands.now += jump
    assert await node.recovery.sweep() == 0
    with pytest.raises(SessionBusy):
        await clocked.submit(node, session, "me first")
    gate.open()
    outcome = await clocked.outcome(node, submitted)
    assert outcome.status is AttemptStatus.COMMITTED
    await clocked.good(node, session, "and at once again")


@pytest.mark.parametrize("where", ["sqlite"], indirect=True)
async def test_I12_abandoned_attempts_are_ended_by_the_next_sweep_on_sqlite(cluster: Cluster) -> None:
    """A begin whose answer never came, or an end that could not be written: no lease would end it."""
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)], alone=True, alive=False)
    mine = await cluster.session(node, title="mine")
    submitted = await cluster.submit(node, mine, "!tool gate {}\n!say done")
    await gate.until_reached()
    store = cluster.backend.store
    left = await builders.start(store, builders.ask(await builders.session(store)))
    assert await node.recovery.sweep() == 1
    found = await store.get_attempt(left.hold.tenant, left.hold.attempt)
    assert found is not None
    assert (found.status, found.error_code) == (AttemptStatus.INTERRUPTED, "store_unavailable")
    gate.open()
    assert (await cluster.outcome(node, submitted)).status is AttemptStatus.COMMITTED


@pytest.mark.parametrize("where", ["sqlite"], indirect=True)
async def test_a_question_keeps_its_deadline_on_sqlite(clocked: Cluster, hands: Hands) -> None:
    store = clocked.backend.store
    node = await clocked.node(alone=True, alive=False)
    asked = await builders.start(store, builders.ask(await builders.session(store)))
    await store.wait_if_held(asked.hold, {}, 3600.0, [])
    hands.now += 3599.0
    assert await node.recovery.sweep() == 0
    hands.now += 2.0
    assert await node.recovery.sweep() == 1


async def test_a_pause_of_the_process_is_no_silence_of_the_model(cluster: Cluster) -> None:
    """The idle timer is overdue when the loop runs again; what the model said meanwhile comes first."""
    limits = replace(LIMITS, idle_seconds=0.5)
    node = await cluster.node(tools=[stall_tool(2.0)], limits=limits, alone=True)
    session = await cluster.session(node, title="mine")
    assert (await cluster.good(node, session, "!tool stall {}\n!say done")).seq == 1
