"""kill -9 at random instants: fork, work, kill, restart, and check that nothing acknowledged is lost.

Each round is a process of its own on the same database: it recovers what the one
before left, then works until it is killed. After some rounds a last process
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
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lastgood.flows.parts import Limits
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.wiring import Lastgood, running
from tests.faults.checker import check
from tests.faults.diary import Diary
from tests.faults.stores import Place
from tests.faults.world import OTHER_MODEL, World

LIMITS = Limits(
    lease_seconds=0.5,
    heartbeat_seconds=0.1,
    sweep_seconds=0.05,
    tick_seconds=0.002,
    poll_seconds=0.02,
)
#: In seconds. To reach a PostgreSQL and to open sessions there takes longer than to open a file.
LATEST_KILL = {"sqlite": 0.08, "postgres": 0.4}
TEXTS = (
    "hello",
    "\n!remember",
    "\n!fail during",
    "\n!slow 0.001\n!say one two three four five",
    '\n!tool ledger-repeat {"text": "r"}\n!say done',
    '\n!tool ledger-fail {"text": "f"}\n!tool echo {"text": "e"}\n!say done',
)


@dataclass(slots=True)
class Killed:
    kills: int = 0
    acknowledged: int = 0
    lost: int = 0
    violations: int = 0
    found: list[str] | None = None


def rounds(place: Place, diary: Path, seed: int, kills: int) -> Killed:
    """`kills` processes killed in turn on one database, then the judgement."""
    dice = random.Random(seed)
    result = Killed()
    for number in range(kills):
        # Mostly early, when recovery and the first turns happen; sometimes late.
        delay = dice.random() ** 2 * LATEST_KILL[place.kind]
        result.kills += kill_after(partial(work_for_ever, place, diary, f"{seed}x{number}"), delay)
    found, acknowledged = asyncio.run(_judge(place, diary))
    result.found = found
    result.acknowledged = acknowledged
    result.violations = len(found)
    result.lost = sum(1 for one in found if one.startswith("I16"))
    return result


def kill_after(work: Callable[[], Any], seconds: float) -> bool:
    """True: it was killed while it worked."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ready)
            os.write(tell, b".")
            asyncio.run(work())
        finally:
            os._exit(1)
    os.close(tell)
    os.read(ready, 1)  # it runs
    os.close(ready)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise RuntimeError(f"the process ended by itself: {os.waitstatus_to_exitcode(status)}")
    return True


async def work_for_ever(place: Place, diary: Path, name: str) -> None:
    store = await place.open()
    world = World(store)
    Diary(diary).keep(world)
    async with running(world.node(name, limits=LIMITS)) as node:
        sessions = [session.id for session in (await node.sessions.list(DEFAULT_TENANT, limit=3)).sessions]
        while len(sessions) < 3:
            sessions.append(await world.create(node))
        await asyncio.gather(*(_client(world, node, sessions, f"{name}c{number}") for number in range(3)))


async def _client(world: World, node: Lastgood, sessions: list[SessionId], name: str) -> None:
    dice = random.Random(name)
    for number in range(10_000):
        session, text, token = dice.choice(sessions), dice.choice(TEXTS), f"tok{name}n{number:04d}"
        if dice.random() < 0.5:
            await world.ask(node, session, text, token, key=f"key {token}", watch=dice.random() < 0.5)
        else:
            model = OTHER_MODEL if dice.random() < 0.2 else None
            await world.ask(node, session, text, token, model=model)


async def _judge(place: Place, diary: Path) -> tuple[list[str], int]:
    store = await place.open()
    world = World(store)
    Diary(diary).read(world)
    found = []
    try:
        async with running(world.node("judge", limits=LIMITS)) as node:
            await asyncio.sleep(0 if store.alone else LIMITS.lease_seconds + 2 * LIMITS.sweep_seconds)
            for session in dict.fromkeys(told.session for told in world.log):
                found += await _must_answer(world, node, session)
        found += await check(world)
    finally:
        await store.close()
    return found, sum(1 for told in world.log if told.outcome == "committed")


async def _must_answer(world: World, node: Lastgood, session: SessionId) -> list[str]:
    """Promised turns of the dead may still be running; when they are done, it must answer."""
    for _ in range(200):
        told = await world.ask(node, session, "\n!remember", f"last {session[-8:]}")
        if told.code != "session_busy":
            break
        world.log.remove(told)
        await asyncio.sleep(0.02)
    return [] if told.outcome == "committed" else [f"I12 {session}: does not answer: {told}"]
