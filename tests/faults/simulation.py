"""The real flows on a virtual clock, with seeded clients, nodes and faults.

One seed is one run: the same interleaving, the same faults, the same end. Two
nodes share one SQLite file through an inline writer; their leases expire in
virtual seconds. When all is over the faults stop, recovery runs, every session
must answer once more, and the checker judges.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lastgood.flows.dependencies import FlowLimits
from lastgood.model.attempts import OnLeave
from lastgood.model.ids import DEFAULT_TENANT, SessionId, TurnId
from lastgood.model.sessions import TurnKind
from lastgood.store.sqlite import SqliteStore, open_sqlite
from lastgood.wiring import Lastgood
from tests.faults.checker import check
from tests.faults.edit_client import edit
from tests.faults.faults import Faults, FaultyStore, Mode, faulty_engine
from tests.faults.virtual_loop import VirtualLoop, run_virtually
from tests.faults.world import OTHER_MODEL, ClientCall, World

T = TypeVar("T")

EPOCH = 1_000_000_000.0
SHM = Path("/dev/shm")


@dataclass(slots=True)
class Node:
    app: Lastgood
    faults: Faults
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    is_stopping: bool = False  # nothing new is sent to it


@dataclass(slots=True)
class Weather:
    """How often things go wrong, per call."""

    fault: float = 0.03
    deaths: int = 1
    stall: float = 0.01
    latency: float = 0.05
    outages: int = 3  # of the store, for all nodes at once
    stops: int = 1  # of nodes, as by SIGTERM

    @property
    def is_undisturbed(self) -> bool:
        return not (self.fault or self.stall or self.outages)


LIMITS = FlowLimits(
    lease_seconds=15,
    heartbeat_seconds=4,
    sweep_seconds=5,
    idle_seconds=60,
    turn_seconds=120,
    grace_seconds=3,
    stop_seconds=1,
)

#: Tables whose rows belong to a session, and are deleted with it.
OF_SESSIONS = ("sessions", "turns", "branches", "attempts", "steps", "events")

#: How much longer than its grace time a node may take to stop.
STOP_SECONDS = 11.0


class Simulation:
    def __init__(self, loop: VirtualLoop, seed: int, weather: Weather, folder: Path) -> None:
        self.loop = loop
        self.seed = seed
        self.random = random.Random(seed)
        self.weather = weather
        self.store: SqliteStore = open_sqlite(
            folder / "simulation.db", inline=True, clock=lambda: EPOCH + loop.time()
        )
        self.world = World(self.store)
        self.nodes: list[Node] = []
        self.sessions: list[SessionId] = []
        self.calm = False
        self._count = 0
        self._is_out = False
        self._chance = random.Random(f"outages {seed}")  # of its own: outages change no other choice
        self._stop_chance = random.Random(f"stops {seed}")
        self.stopped = 0
        self._found: list[str] = []

    # -- nodes -------------------------------------------------------------------

    def start_node(self) -> Node:
        name = f"node{len(self.nodes)}"
        faults = Faults(stall_seconds=LIMITS.lease_seconds * 1.5)
        faults.jitter = self._jitter
        app = self.world.node(
            name,
            store=FaultyStore(self.store, faults),  # type: ignore[arg-type]
            engine=faulty_engine(self.world.kit(), faults),
            limits=LIMITS,
            seed=str(self.seed),
        )
        node = Node(app, faults)
        node.tasks = [
            asyncio.create_task(app.live.keep_alive()),
            asyncio.create_task(app.recovery.keep_sweeping()),
        ]
        self.nodes.append(node)
        return node

    async def _jitter(self, point: str) -> Mode | None:
        await asyncio.sleep(self.random.random() * self.weather.latency)
        if self.calm:
            return None
        if self._is_out and point.startswith("store."):
            # A write that was under way may have happened, or may happen; most calls reach nothing.
            return self._chance.choice(
                [Mode.RAISE, Mode.RAISE, Mode.RAISE, Mode.SILENT, Mode.LOST, Mode.LATE]
            )
        luck = self.random.random()
        if luck < self.weather.stall:
            return Mode.STALL
        if luck < self.weather.stall + self.weather.fault:
            return self.random.choice([Mode.RAISE, Mode.LOST, Mode.SILENT])
        return None

    def living(self) -> Node:
        return self.random.choice(
            [node for node in self.nodes if not node.faults.dead and not node.is_stopping]
        )

    def kill(self, node: Node) -> None:
        """As kill -9 does: nothing of it ever returns; its clients hear nothing more."""
        node.faults.dead = True
        for task in node.tasks:
            task.cancel()

    async def stop(self, node: Node, grace_seconds: float) -> None:
        """As SIGTERM does: the sweep ends first, what runs may finish for a while, the heartbeat is last."""
        node.is_stopping = True
        _, sweep = node.tasks
        sweep.cancel()
        await asyncio.wait({sweep})
        started = self.loop.time()
        await node.app.live.close(grace_seconds)
        seconds = self.loop.time() - started
        if self.weather.is_undisturbed:
            self._found += await self._left_by(node, seconds - grace_seconds)
        await asyncio.sleep(1)  # whoever watches hears how it ended
        self.kill(node)

    async def _left_by(self, node: Node, too_long: float) -> list[str]:
        """What a stopped node still holds. With faults, its leases may have to end by themselves."""
        name = node.app.deps.node
        sql = "SELECT id, attempt_id FROM sessions WHERE attempt_id IS NOT NULL AND holder = ?"
        held = await self._rows(sql, name)
        found = [
            f"I12 {session}: still held by {attempt} of {name}, which was stopped"
            for session, attempt in held
        ]
        if too_long > STOP_SECONDS:
            found.append(f"I25 {name}: took {too_long:.1f} s longer than its grace time to stop")
        return found

    # -- clients -----------------------------------------------------------------

    async def client(self, number: int, steps: int) -> None:
        for _ in range(steps):
            await asyncio.sleep(self.random.random() * 2)
            session = self.random.choice(self.sessions)
            await self._act(session, f"tok{number}x{self._next():04d}")

    def _next(self) -> int:
        self._count += 1
        return self._count

    async def _act(self, session: SessionId, token: str) -> None:
        node, pick = self.living(), self.random.random()
        world = self.world
        if pick < 0.17:
            await self.patiently(world.ask(node.app, session, self.text(), token, watch=pick < 0.1))
        elif pick < 0.37:
            await self._keyed(session, token)
        elif pick < 0.45:
            await self._leaving(node, session, token)
        elif pick < 0.50:
            more = (f"{token}-a", f"{token}-b")
            await self.patiently(world.ask(node.app, session, "!say three", token, more=more))
        elif pick < 0.55:
            await self.patiently(world.ask(node.app, session, self.text(), token, model=OTHER_MODEL))
        elif pick < 0.78:
            await edit(self, node.app, session, token)
        elif pick < 0.85:
            await self.patiently(world.cancel(node.app, session))
        else:
            await self._rarer(node, session, token, (pick - 0.85) / 0.15)

    async def _rarer(self, node: Node, session: SessionId, token: str, pick: float) -> None:
        world, sessions = self.world, node.app.sessions
        if pick < 0.25:
            await self.patiently(self._fork(node, session))
        elif pick < 0.45:
            await self.patiently(
                world.do(
                    "rename",
                    session,
                    sessions.rename(DEFAULT_TENANT, session, f"named {token}"),
                    f"named {token}",
                )
            )
        elif pick < 0.6:
            await self.patiently(world.do("star", session, sessions.star(DEFAULT_TENANT, session, True)))
        elif pick < 0.8:
            await self.patiently(world.ask(node.app, session, "", "", kind=TurnKind.RESET, messages=()))
        elif len(self.sessions) > 2:
            self.sessions.remove(session)
            await self.patiently(world.do("delete", session, sessions.delete(DEFAULT_TENANT, session)))

    def text(self) -> str:
        return self.random.choice(
            [
                "hello",
                "\n!remember",
                "\n!fail before",
                "\n!fail during",
                "\n!fail after",
                "\n!empty",
                "\n!fail before 1",
                '\n!tool ledger-repeat {"text": "r"}\n!say done',
                '\n!tool ledger-fail {"text": "f"}\n!tool echo {"text": "e"}\n!say done',
                '\n!tool ledger-fail {"text": "f"}\n!also ledger-repeat {"text": "g"}\n!slow 0.5\n!say it is',
                "\n!slow 2\n!say slowly now",
                '\n!say-json "half \\ud800 a pair"',
            ]
        )

    async def _keyed(self, session: SessionId, token: str) -> None:
        """A client that sends the same again until it knows."""
        text = self.text()
        for _ in range(3):
            received = await self.patiently(
                self.world.ask(self.living().app, session, text, token, key=f"key {token}", watch=True)
            )
            if received is not None and received.outcome in ("committed", "cancelled", "refused"):
                return

    async def _leaving(self, node: Node, session: SessionId, token: str) -> None:
        """A client that goes away in the middle; sometimes it sends the same again, as SDKs do."""
        leave = asyncio.Event()
        self.loop.call_later(self.random.random() * 2, leave.set)
        text = "\n!slow 0.3\n!say one two three four"
        first = asyncio.create_task(
            self.patiently(
                self.world.ask(node.app, session, text, token, on_leave=OnLeave.ORPHAN, leave=leave)
            )
        )
        if self.random.random() < 0.5:
            await leave.wait()
            await asyncio.sleep(self.random.random())
            await self.patiently(
                self.world.ask(
                    self.living().app, session, text, token, on_leave=OnLeave.ORPHAN, is_retry=True
                )
            )
        await first

    async def _fork(self, node: Node, session: SessionId) -> None:
        turn: TurnId | None = None
        with suppress(Exception):
            whole = await node.app.sessions.read(DEFAULT_TENANT, session)
            turn = self.random.choice(whole.turns).id if whole.turns else None
        received = await self.world.do("fork", session, node.app.sessions.fork(DEFAULT_TENANT, session, turn))
        if received.outcome == "done":
            self.sessions.append(SessionId(received.other))

    async def patiently(self, work: Awaitable[T]) -> T | None:
        """A client's own patience: a dead node never answers."""
        try:
            async with asyncio.timeout(90):
                return await work
        except TimeoutError:
            return None

    # -- the run -----------------------------------------------------------------

    async def run(self, *, clients: int = 4, steps: int = 6) -> list[str]:
        self.start_node()
        self.start_node()
        calm, self.calm = self.calm, True
        for _ in range(3):
            self.sessions.append(await self.world.create(self.nodes[0].app))
        self.calm = calm
        deaths = asyncio.create_task(self._deaths())
        outages = asyncio.create_task(self._outages())
        stops = asyncio.create_task(self._stops())
        await asyncio.gather(*(self.client(number, steps) for number in range(clients)))
        await asyncio.gather(deaths, outages, stops)
        return self._found + await self._settle()

    async def _deaths(self) -> None:
        for _ in range(self.weather.deaths):
            await asyncio.sleep(self.random.random() * 12)
            self.kill(self.living())
            self.start_node()

    async def _stops(self) -> None:
        """Nodes are replaced one by one. Some take too long to stop, and are killed meanwhile."""
        for _ in range(self.weather.stops):
            await asyncio.sleep(self._stop_chance.random() * 12)
            node = self.living()
            stopping = asyncio.create_task(self.stop(node, self._stop_chance.random() * 2))
            self.start_node()
            patience = self._stop_chance.random() * 2 if self._stop_chance.random() < 0.3 else None
            await asyncio.wait({stopping}, timeout=patience)
            if stopping.done():
                stopping.result()
            else:
                self.kill(node)
                stopping.cancel()
            self.stopped += 1

    async def _outages(self) -> None:
        """From a moment to a third of a lease: they cost time, and no attempt by themselves."""
        for _ in range(self.weather.outages):
            await asyncio.sleep(self._chance.random() * 10)
            self._is_out = True
            await asyncio.sleep(0.2 + self._chance.random() * 4.8)
            self._is_out = False

    async def _settle(self) -> list[str]:
        """The faults stop. Every session must be free in time, and answer."""
        self.calm = True
        await asyncio.sleep(LIMITS.turn_seconds + 3 * (LIMITS.lease_seconds + LIMITS.sweep_seconds))
        found: list[str] = []
        for session in self.sessions:
            received = await self.patiently(
                self.world.ask(self.living().app, session, "\n!remember", f"last{self._next():04d}")
            )
            if received is None or received.outcome != "committed":
                found.append(f"I12 {session}: does not answer after all is over: {received}")
        self.world.log = [
            received
            for received in self.world.log
            if received.outcome is not None or _is_unanswered(received)
        ]
        return found + await check(self.world) + await self._delete_all()

    async def _delete_all(self) -> list[str]:
        """I15: after the last session is deleted, no row of any is left. Also of forks no client knows of."""
        for (session,) in await self._rows("SELECT id FROM sessions"):
            await self.living().app.sessions.delete(DEFAULT_TENANT, SessionId(session))
        counts = {table: (await self._rows(f"SELECT count(*) FROM {table}"))[0][0] for table in OF_SESSIONS}
        left = {table: count for table, count in counts.items() if count}
        return [f"I15: every session is deleted, and rows are left: {left}"] if left else []

    async def _rows(self, sql: str, *values: Any) -> list[Any]:
        return await self.store.db.write(lambda connection: connection.execute(sql, values).fetchall())


def _is_unanswered(received: ClientCall) -> bool:
    received.outcome = "unknown"
    return True


@dataclass(frozen=True, slots=True)
class Simulated:
    found: list[str]  # violations
    prompts: list[dict[str, Any]]  # all of them, in order: the run itself, for comparison
    acknowledged: int
    edits: int  # of these
    stops: int


def simulate(seed: int, weather: Weather | None = None, *, clients: int = 4, steps: int = 6) -> list[str]:
    """Every violation of one seeded run."""
    return simulated(seed, weather, clients=clients, steps=steps).found


def simulated(seed: int, weather: Weather | None = None, *, clients: int = 4, steps: int = 6) -> Simulated:
    with tempfile.TemporaryDirectory(dir=SHM if SHM.is_dir() else None) as folder:

        async def work(loop: VirtualLoop) -> Simulated:
            simulation = Simulation(loop, seed, weather or Weather(), Path(folder))
            try:
                found = await simulation.run(clients=clients, steps=steps)
            finally:
                await simulation.store.close()
            good = [received for received in simulation.world.log if received.outcome == "committed"]
            edits = sum(received.is_edit for received in good)
            return Simulated(found, simulation.world.prompts, len(good), edits, simulation.stopped)

        return run_virtually(work)
