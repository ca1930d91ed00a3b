"""The fault matrix: every point × what may go wrong there × which hit × both stores.

A cell is one story: two good turns, then a keyed turn with three tool calls and a
model override during which the fault strikes once; then the fault is over, the
client sends the same again until it knows, and one more turn must be answered.
For `kill -9` the first part runs in a process of its own that really dies there.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lastgood.flows.dependencies import FlowLimits
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.model.messages import ToolCall, assistant, tool_result, user
from lastgood.model.sessions import SessionStatus, TurnKind
from lastgood.ports import Store
from lastgood.wiring import Lastgood
from tests.faults.checker import check
from tests.faults.client_log import ClientLog
from tests.faults.faults import READS, Faults, FaultyStore, Mode, faulty_engine
from tests.faults.stores import Place
from tests.faults.world import OTHER_MODEL, World
from tests.polls import eventually

LIMITS = FlowLimits(
    lease_seconds=0.3,
    heartbeat_seconds=0.06,
    sweep_seconds=0.05,
    idle_seconds=20,
    turn_seconds=30,
    stop_seconds=0.2,
    tick_seconds=0.002,
    poll_seconds=0.02,
)
#: Only ends a story that hangs.
PATIENCE_SECONDS = 60.0
#: Of the node that is not struck: a slow machine must not cost it its lease.
HEALTHY = replace(LIMITS, lease_seconds=20.0)
TOOLS = '\n!tool ledger-repeat {"text": "a"}\n!tool ledger-fail {"text": "b"}\n!also echo {"text": "c"}'
#: Two turns that are there already, without a model call and so without a title.
BEFORE = (
    (user("hello"), assistant("hi")),
    (
        user("what is x?"),
        assistant("", ToolCall("call-0-0", "echo", "{}")),
        tool_result("call-0-0", "x"),
        assistant("that is x"),
    ),
)
#: Two kinds of turn: one that is good, and one whose first attempt fails at its very end.
TURNS = {
    "good": TOOLS + "\n!say that is all there is",
    "failing": TOOLS + "\n!say that is all there is\n!fail after 1",
}


@dataclass(frozen=True, slots=True)
class Cell:
    turn: str
    point: str
    mode: Mode
    hit: int

    def __str__(self) -> str:
        return f"{self.turn} turn, {self.point}, {self.mode.value}, hit {self.hit}"


#: What a failing turn passes, and a good one only if it loses its lease. All others are a good one's, too.
FAILING = {"store.finish_if_held"}
#: How often these are met is the clock's; their first hit is sure.
BY_THE_CLOCK = {"store.read_events", "store.append_events_if_held", "store.get_session"}
#: Met by every sweep. A story lasts until one has come.
SWEPT = {"store.waiting_queues", "store.merge_usage"}


def cells(turn: str, hits: Counter[str]) -> list[Cell]:
    """First, second and last hit of each point that a faultless story passes."""
    found = []
    for point, count in sorted(hits.items()):
        if (turn == "failing") is not (point in FAILING):
            continue
        for mode in Mode:
            if mode in (Mode.LOST, Mode.SILENT, Mode.LATE) and point.removeprefix("store.") in READS:
                continue
            if mode in (Mode.SILENT, Mode.LATE) and not point.startswith("store."):
                continue
            found += [Cell(turn, point, mode, hit) for hit in sorted({1, min(2, count), count})]
    return found


class CellScenario:
    """One node to be struck and, afterwards, one that is not."""

    def __init__(self, store: Store, world: World, lease: float = LIMITS.lease_seconds) -> None:
        self.store = store
        self.world = world
        self.faults = Faults(stall_seconds=lease * 2)
        faulty: Any = FaultyStore(store, self.faults)
        engine = faulty_engine(world.kit(), self.faults)
        limits = replace(LIMITS, lease_seconds=lease)
        self.struck = world.node("struck", store=faulty, engine=engine, limits=limits)
        beside: Any = FaultyStore(store, Faults())
        self.healthy = world.node("healthy", store=beside, limits=HEALTHY)
        self._tasks: list[asyncio.Task[Any]] = []

    def keep_alive(self, *nodes: Lastgood) -> None:
        for node in nodes:
            self._tasks.append(asyncio.create_task(node.live.keep_alive()))
            self._tasks.append(asyncio.create_task(node.recovery.keep_sweeping()))

    async def first_part(self, cell: Cell) -> SessionId:
        session = await self.world.create(self.struck)
        for messages in BEFORE:
            await self.world.ask(self.struck, session, "", "", kind=TurnKind.APPEND, messages=messages)
        self.strike(cell, session)
        self.struck.deps.histories._kept.clear()  # so that the history is read, too
        await self.ask_third(self.struck, session, cell.turn)
        await self._until_named()
        await eventually(lambda: all(self.faults.hits[point] for point in SWEPT), PATIENCE_SECONDS)
        return session

    async def _until_named(self) -> None:
        """Titles are given beside the turn: until one is being written, or nothing is left to write it."""
        await eventually(
            lambda: not self.struck.live._tasks or self.faults.hits["store.set_title"], PATIENCE_SECONDS
        )

    def strike(self, cell: Cell, session: SessionId) -> None:
        self.faults.hits.clear()
        self.faults.point, self.faults.mode, self.faults.hit = cell.point, cell.mode, cell.hit
        self.faults.cancel = lambda: self._cancel(session)

    def _cancel(self, session: SessionId) -> None:
        self._tasks.append(asyncio.create_task(self.world.cancel(self.struck, session)))

    async def ask_third(self, node: Lastgood, session: SessionId, turn: str) -> str | None:
        received = await self.world.ask(
            node, session, TURNS[turn], "tok3", key=f"key {session}", model=OTHER_MODEL, watch=True
        )
        return received.outcome

    async def second_part(self, session: SessionId, turn: str) -> list[str]:
        self.faults.point = ""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self.ask_third(self.healthy, session, turn) not in ("committed", "cancelled"):
                await asyncio.sleep(0.02)
            while (await self._status(session)) is not SessionStatus.IDLE:
                await asyncio.sleep(0.02)
            last = await self.world.ask(self.healthy, session, "\n!remember", "tok4")
        found = [] if last.outcome == "committed" else [f"I12 {session}: does not answer: {last}"]
        return found + await check(self.world)

    async def _status(self, session: SessionId) -> SessionStatus | None:
        found = await self.store.get_session(DEFAULT_TENANT, session)
        return found.status if found else None

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def count_hits(place: Place, turn: str, lease: float = LIMITS.lease_seconds) -> Counter[str]:
    """The points of a story without a fault."""
    store = await place.open()
    story = CellScenario(store, World(store), lease)
    try:
        story.keep_alive(story.struck)
        await story.first_part(Cell(turn, "", Mode.RAISE, 0))
        hits = story.faults.hits
        return Counter({point: count for point, count in hits.items() if point not in _IN_BACKGROUND})
    finally:
        await story.close()
        await store.close()


#: Met or not as the clock will have it; the stories of a recovery strike them.
_IN_BACKGROUND = {
    "store.expired_attempts",
    "store.interrupted_asks",
    "store.tidy",
    "store.renew_leases",
    "store.get_attempt",  # a watcher that has heard nothing for a while
}


async def run_cell(place: Place, cell: Cell, lease: float) -> tuple[list[str], bool]:
    """The violations, and whether the fault struck at all."""
    store = await place.open()
    story = CellScenario(store, World(store), lease)
    try:
        story.keep_alive(story.struck, story.healthy)
        session = await story.first_part(cell)
        return await story.second_part(session, cell.turn), story.faults.struck
    finally:
        await story.close()
        await store.close()


def run_any(
    place: Place, cell: Cell, client_log: Path, lease: float = LIMITS.lease_seconds
) -> tuple[list[str], bool]:
    """`lease` is that of the node that is struck, in seconds."""
    if cell.mode is Mode.KILL:
        return run_killed(place, cell, client_log, lease)
    return asyncio.run(run_cell(place, cell, lease))


# -- kill -9 -----------------------------------------------------------------------


def run_killed(place: Place, cell: Cell, client_log: Path, lease: float) -> tuple[list[str], bool]:
    """The first part in a process that dies; the second here, as after a restart."""
    killed = in_a_process(_die(place, cell, ClientLog(client_log), lease))
    return asyncio.run(_go_on(place, cell.turn, ClientLog(client_log))), killed


def in_a_process(work: Coroutine[Any, Any, None]) -> bool:
    """Runs it in a fork of this process; True: it was killed, as it wished."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            asyncio.run(work)
            status = 0
        finally:
            os._exit(status)
    work.close()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    if os.waitstatus_to_exitcode(status) != 0:
        raise RuntimeError(f"the process failed by itself: {status}")
    return False


async def _die(place: Place, cell: Cell, client_log: ClientLog, lease: float = LIMITS.lease_seconds) -> None:
    store = await place.open()
    world = World(store)
    client_log.keep(world)
    story = CellScenario(store, world, lease)
    story.keep_alive(story.struck)
    await story.first_part(cell)


async def _go_on(place: Place, turn: str, client_log: ClientLog) -> list[str]:
    store = await place.open()
    world = World(store)
    client_log.read(world)
    story = CellScenario(store, world)
    story.healthy.deps.store.alone = store.alone
    try:
        await story.healthy.recovery.at_start()
        story.keep_alive(story.healthy)
        return await story.second_part(world.log[0].session, turn)
    finally:
        await story.close()
        await store.close()


# -- dying while recovering --------------------------------------------------------

#: Where the first process dies: the tool has had its effect, and nobody wrote its result down.
DEATH = Cell("good", "tool.end", Mode.KILL, 2)

RECOVERY_POINTS = (
    "store.running_attempts",
    "store.expired_attempts",
    "store.finish_if_held",
    "store.interrupted_asks",
    "store.begin_if_free",
    "store.read_steps",
    "store.read_turns",
    "store.journal_if_held",
    "model.call",
    "store.commit_if_head",
)


def run_recovery_killed(place: Place, point: str, client_log: Path) -> tuple[list[str], bool]:
    """Dies in a turn, dies again at `point` while recovering, and recovers."""
    in_a_process(_die(place, DEATH, ClientLog(client_log)))
    killed = in_a_process(_die_recovering(place, Cell("good", point, Mode.KILL, 1), ClientLog(client_log)))
    return asyncio.run(_go_on(place, "good", ClientLog(client_log))), killed


async def _die_recovering(place: Place, cell: Cell, client_log: ClientLog) -> None:
    store = await place.open()
    world = World(store)
    client_log.read(world)
    session = world.log[0].session
    world.log = []
    client_log.keep(world)
    story = CellScenario(store, world)
    story.struck.deps.store.alone = store.alone
    story.strike(cell, session)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await story.struck.recovery.at_start()
        story.keep_alive(story.struck)
        while (found := await store.get_session(DEFAULT_TENANT, session)) and found.turns < 3:
            await asyncio.sleep(0.01)
