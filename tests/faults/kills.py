"""SIGKILL and SIGTERM at random instants: fork, work, end it, restart, and check that nothing is lost.

Each round is a process of its own on the same database: it recovers what the one
before left, then works until it is ended. A process that is stopped with SIGTERM must
end by itself, in time, and leave no session held. After some rounds a last process
recovers, every session must answer, and the checker judges everything that all of
them saw. The same seed gives the same work and the same delays; the instant
itself is the machine's.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from lastgood.core.recovery import MOST_DEATHS
from lastgood.errors import LastgoodError, StoreError
from lastgood.flows.dependencies import FlowLimits
from lastgood.model.attempts import After
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.ports import Store
from lastgood.wiring import Lastgood, running
from tests.faults.checker import check
from tests.faults.client_log import ClientLog
from tests.faults.outage import KINDS, Outages, outage_seconds
from tests.faults.stores import Place
from tests.faults.world import OTHER_MODEL, World
from tests.polls import eventually

LIMITS = FlowLimits(
    lease_seconds=0.5,
    heartbeat_seconds=0.1,
    sweep_seconds=0.05,
    tick_seconds=0.002,
    poll_seconds=0.02,
)
#: In seconds: of processes that end while they start and recover, and of those that end at work.
LATEST_EARLY = {"sqlite": 0.08, "postgres": 0.4}
#: On PostgreSQL, past the lease of the process before: until then its sessions are busy.
LATEST_AT_WORK = {"sqlite": 0.25, "postgres": 1.5}
#: How long a process that is told to stop lets its turns finish; some texts below take longer.
GRACE_SECONDS = 0.02
#: How long it may take in all: stopping is bounded, on a busy machine, too.
STOP_SECONDS = 15.0
TEXTS = (
    "hello",
    "\n!remember",
    "\n!fail during",
    "\n!slow 0.001\n!say one two three four five",
    "\n!slow 0.02\n!say one two three four five",
    '\n!tool ledger-repeat {"text": "r"}\n!say done',
    '\n!tool ledger-fail {"text": "f"}\n!tool echo {"text": "e"}\n!say done',
)


COULD_NOT_START = 3


class CouldNotStart(Exception):
    """The database was away while the process started."""


class Ending(StrEnum):
    KILL = "SIGKILL"
    STOP = "SIGTERM"
    LOST_PATIENCE = "SIGTERM, then SIGKILL"  # as a supervisor does whose process takes too long to stop


class Ended(Enum):
    KILLED = "killed"
    STOPPED = "stopped"  # by itself, as it was told to
    NEVER_STARTED = "never started"  # the database was away
    LATE = "late"  # it was told to stop, did not, and was killed


@dataclass(slots=True)
class Killed:
    endings: dict[Ending, int] = field(default_factory=lambda: dict.fromkeys(Ending, 0))
    outages: int = 0
    acknowledged: int = 0
    edits: int = 0  # of these
    lost: int = 0
    violations: int = 0
    found: list[str] = field(default_factory=list)

    @property
    def processes(self) -> int:
        return sum(self.endings.values())


def rounds(
    place: Place,
    client_log: Path,
    seed: int,
    processes: int,
    endings: Sequence[Ending] = tuple(Ending),
    *,
    outages: Outages | None = None,
) -> Killed:
    """So many processes ended in turn on one database, then the judgement.

    `outages`: the database is taken away from half of them for a while. Some end before it is back.
    """
    dice = random.Random(seed)
    result = Killed()
    worked_on = place if outages is None else Place(place.kind, outages.dsn(place.where))
    for number in range(processes):
        is_early = dice.random() < 0.3
        delay = dice.random() ** 2 * (LATEST_EARLY[place.kind] if is_early else LATEST_AT_WORK[place.kind])
        patience = dice.random() * GRACE_SECONDS * 2
        ending = dice.choice(endings)
        node = f"{seed}x{number}"
        child = start(partial(work_until_stopped, worked_on, client_log, node), until_working=not is_early)
        time.sleep(delay)  # real time: a random moment
        is_away = outages is not None and dice.random() < 0.5
        ends_meanwhile = dice.random() < 0.3
        if is_away and outages is not None:
            seconds = outage_seconds(dice)
            outages.begin(dice.choice(KINDS), seconds)
            result.outages += 1
            if ends_meanwhile:
                time.sleep(seconds * dice.random())  # real time: a random moment
            else:
                outages.wait()
                time.sleep(dice.random() * LATEST_AT_WORK[place.kind])  # real time: a random moment
        ended = end(child, ending, patience)
        if is_away and ends_meanwhile and outages is not None:
            outages.wait()
        result.endings[ending] += 1
        if ended is Ended.STOPPED and not (is_away and ends_meanwhile):
            result.found += asyncio.run(_held(place, node))
        elif ended is Ended.NEVER_STARTED and not is_away:
            result.found.append(f"I12 process {node}: did not start, and the database was there")
        elif ended is Ended.LATE:
            result.found.append(f"I25 process {node}: did not stop within {STOP_SECONDS} s of SIGTERM")
    found, result.acknowledged, result.edits = asyncio.run(_judge(place, client_log))
    result.found += found
    result.violations = len(result.found)
    result.lost = sum(1 for one in found if one.startswith("I16"))
    return result


def start(work: Callable[[Callable[[], Any]], Any], *, until_working: bool) -> int:
    """The process id of a child that runs. `work` is called with what it calls when it has started.

    On a busy machine most processes that are ended after a fixed time would never have worked.
    """
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(ready)
            os.write(tell, b".")
            asyncio.run(work(partial(_tell, tell)))
            status = 0
        except CouldNotStart:
            status = COULD_NOT_START
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(tell)
    os.read(ready, 1)  # it runs
    if until_working:
        os.read(ready, 1)
    os.close(ready)
    return child


def _tell(pipe: int) -> None:
    with suppress(BrokenPipeError):  # nobody waits for it
        os.write(pipe, b".")


def end(child: int, ending: Ending, patience: float) -> Ended:
    """RuntimeError: it failed, or ended although nobody told it to."""
    status = None
    if ending is not Ending.KILL:
        os.kill(child, signal.SIGTERM)
        status = _waited(child, STOP_SECONDS if ending is Ending.STOP else patience)
    is_late = status is None and ending is Ending.STOP
    if status is None:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):  # maybe by a SIGTERM that came before the process could listen for it
        return Ended.LATE if is_late else Ended.KILLED
    code = os.waitstatus_to_exitcode(status)
    if code == COULD_NOT_START:
        return Ended.NEVER_STARTED
    if code != 0 or ending is Ending.KILL:
        raise RuntimeError(f"the process ended by itself: {code}")
    return Ended.STOPPED


def _waited(child: int, seconds: float) -> int | None:
    """How the child ended; None: it has not, within that time."""
    ends = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        if time.monotonic() > ends:
            return None
        time.sleep(0.001)


async def work_until_stopped(
    place: Place, client_log: Path, name: str, is_working: Callable[[], Any] = lambda: None
) -> None:
    """As a server does: after SIGTERM nothing new begins, and what runs may finish for a moment."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    clients: list[asyncio.Task[None]] = []

    async def wait_for_answers() -> None:
        await asyncio.gather(*clients)

    async with AsyncExitStack() as stack:
        try:
            store = await place.open()
            stack.push_async_callback(store.close)
            # After the node has stopped: whoever waits hears how their turn ended before the process does.
            stack.push_async_callback(wait_for_answers)
            world = World(store)
            ClientLog(client_log).keep(world)
            ready = running(world.node(name, limits=LIMITS), grace_seconds=GRACE_SECONDS)
            node = await stack.enter_async_context(ready)
            page = await node.sessions.list(DEFAULT_TENANT, limit=3)
            sessions = [session.id for session in page.sessions]
            while len(sessions) < 3:
                sessions.append(await world.create(node))
        except StoreError as error:
            raise CouldNotStart from error
        is_working()
        names = [f"{name}c{number}" for number in range(3)]
        clients += [asyncio.create_task(_client(world, node, sessions, one, stop)) for one in names]
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({stopping, *clients}, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            await wait_for_answers()  # one of them has failed: this says how


async def _held(place: Place, node: str) -> list[str]:
    """What a process that had time to stop has left held. What a killed one left is not its fault."""
    sql = f"SELECT id, attempt_id FROM sessions WHERE attempt_id IS NOT NULL AND holder = '{node}'"
    return [
        f"I12 {session}: still held by {attempt} of {node}, which was stopped"
        for session, attempt in await place.rows(sql)
    ]


async def _client(
    world: World, node: Lastgood, sessions: list[SessionId], name: str, stop: asyncio.Event
) -> None:
    dice = random.Random(name)
    for number in range(10_000):
        if stop.is_set():
            return
        session, text, token = dice.choice(sessions), dice.choice(TEXTS), f"tok{name}n{number:04d}"
        after = await _earlier(node, session, dice) if dice.random() < 0.3 else None
        if dice.random() < 0.5:
            watch = dice.random() < 0.5
            await world.ask(node, session, text, token, key=f"key {token}", watch=watch, after=after)
        elif after is not None:
            await world.ask(node, session, text, token, after=after)
        else:
            model = OTHER_MODEL if dice.random() < 0.2 else None
            await world.ask(node, session, text, token, model=model)


async def _earlier(node: Lastgood, session: SessionId, dice: random.Random) -> After | None:
    """A place to go on from: before the first turn, or after one. After the last but one: a regenerate."""
    try:
        turns = (await node.sessions.read(DEFAULT_TENANT, session)).turns
    except LastgoodError:
        return None  # the database is away
    places = [None, *(turn.id for turn in turns[-5:])]
    return After(dice.choice(places))


async def _judge(place: Place, client_log: Path) -> tuple[list[str], int, int]:
    """What is wrong, how many turns were acknowledged, and how many of them were edits."""
    store = await place.open()
    world = World(store)
    ClientLog(client_log).read(world)
    found = []
    try:
        async with running(world.node("judge", limits=LIMITS)) as node:
            for session in dict.fromkeys(received.session for received in world.log):
                await eventually(partial(_is_settled, store, session))
                found += await _must_answer(world, node, session)
        found += await check(world)
    finally:
        await store.close()
    good = [received for received in world.log if received.outcome == "committed"]
    return found, len(good), sum(received.is_edit for received in good)


async def _is_settled(store: Store, session: SessionId) -> bool:
    """Nothing runs in it: neither what the dead have left there nor what is tried again."""
    kept = await store.get_session(DEFAULT_TENANT, session)
    durable = await store.interrupted_asks(1000, deaths_below=MOST_DEATHS)
    return (kept is None or kept.attempt is None) and not any(
        one.attempt.session == session for one in durable
    )


async def _must_answer(world: World, node: Lastgood, session: SessionId) -> list[str]:
    """Promised turns of the dead may still be running; when they are done, it must answer."""
    for _ in range(200):
        received = await world.ask(node, session, "\n!remember", f"last {session[-8:]}")
        if received.code != "session_busy":
            break
        world.log.remove(received)
        await asyncio.sleep(0.02)
    return [] if received.outcome == "committed" else [f"I12 {session}: does not answer: {received}"]
