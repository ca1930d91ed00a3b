"""Clients that keep two nodes busy, nodes that are ended meanwhile, and the judgement of what came of it.

The clients write down what they asked for and what they were told, as those of tests/faults do; the scripted
model has logged every prompt. The checker of tests/faults judges both against what is stored in the end.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from lastgood.core.recovery import MOST_DEATHS
from lastgood.model.attempts import After
from lastgood.model.ids import DEFAULT_TENANT, AttemptId, SessionId, TurnId
from lastgood.ports import Store
from lastgood.store.postgres import open_postgres
from tests.e2e.api import Api, Given, said
from tests.e2e.command import until
from tests.e2e.nodes import Nodes
from tests.faults.checker import check
from tests.faults.outage import KINDS, LONGEST_SECONDS, Outages, outage_seconds
from tests.faults.world import ClientCall, World

#: I12: what a dead node held is free again after its lease and one sweep, and after an outage of the
#: database that comes in between. A turn takes a moment, too.
BUSY_SECONDS = 20.0 + LONGEST_SECONDS
MOMENT_SECONDS = 5.0
#: What the clients say, after a word of their own. All of it ends within a second.
TEXTS = (
    "hello",
    "\n!remember",
    "\n!slow 0.02\n!say one two three four five",
    '\n!tool echo {"text": "a"}\n!tool echo {"text": "b"}\n!say done',
    "\n!fail during 1\n!say one two three",
)
#: Nobody answered, or whoever did cannot know.
UNSURE = frozenset({"shutting_down", "store_unavailable", "outcome_unknown", "attempt_lost", "store_error"})

_serial = itertools.count(1)


@dataclass
class Log:
    """What all clients did and were told."""

    received: list[ClientCall] = field(default_factory=list)
    acknowledged: int = 0
    edits: int = 0  # of these
    overtaken: int = 0  # edits of what was replaced meanwhile
    refused: int = 0
    slowest: float = 0.0  # from the first try to the acknowledgement, in seconds
    busiest: float = 0.0  # the longest time for which one attempt kept one client waiting with 409
    found: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, received: ClientCall) -> ClientCall:
        with self._lock:
            self.received.append(received)
        return received

    def earlier(self, session: str, dice: random.Random) -> After:
        """Before the first turn, or after one that was acknowledged. It may have been replaced since."""
        with self._lock:
            known = [
                received.turn
                for received in self.received
                if received.session == session and received.turn is not None
            ]
        return After(dice.choice([None, *known[-5:]]))

    def until_acknowledged(self, more: int) -> None:
        """So many turns more than now."""
        wanted = self.acknowledged + more
        until(lambda: self.acknowledged >= wanted)

    def done(self, seconds: float, *, is_edit: bool) -> None:
        with self._lock:
            self.acknowledged += 1
            self.edits += is_edit
            self.slowest = max(self.slowest, seconds)


#: What happens to the nodes meanwhile; it returns when that is over.
Disturbance = Callable[[Log, random.Random], None]


def new_token() -> str:
    return f"tok{next(_serial):06d}x"


def ask(
    log: Log,
    api: Api,
    session: str,
    token: str,
    text: str,
    key: str | None = None,
    after: After | None = None,
) -> ClientCall:
    """One try, waited for. `after`: an edit, unless that is the head by then."""
    words = f"{token} {text}"
    received = ClientCall("ask", SessionId(session), token, (words,), key, None, key is not None, key is None)
    received.is_edit, received.after = after is not None, after.turn if after else None
    log.note(received)
    body = {"messages": said(words), "wait": True} | ({"after": after.turn} if after else {})
    headers = {"idempotency_key": key} if key is not None else {}
    path = f"/api/sessions/{session}/turns"
    try:
        given = api.post(path, body, **headers)
    except (OSError, http.client.HTTPException):
        received.outcome = "unknown"
        return received
    if given.status == 200 and given.headers["x-attempt-id"] != given.json["attempt"]:
        log.found.append(f"I14 {session}: {token} was told of an attempt that did not commit it")
    return _report(received, given)


def _report(received: ClientCall, given: Given) -> ClientCall:
    if "x-attempt-id" in given.headers:
        received.attempt = AttemptId(given.headers["x-attempt-id"])
    if given.status == 200:
        received.outcome, received.turn = "committed", TurnId(given.json["id"])
        return received
    received.code = given.code
    received.holder = given.json.get("error", {}).get("detail", {}).get("attempt", "")
    if received.code in UNSURE:
        received.outcome = "unknown"
    elif received.code == "turn_cancelled":
        received.outcome = "cancelled"
    else:
        received.outcome = "failed" if given.status == 500 else "refused"
    return received


def ask_until_answered(log: Log, nodes: Nodes, dice: random.Random, session: str) -> None:
    """Under a key, again and again, at the other node after each failure."""
    token, text = new_token(), dice.choice(TEXTS)
    after = log.earlier(session, dice) if dice.random() < 0.3 else None
    began, node = time.monotonic(), dice.choice((nodes.a, nodes.b))
    holder, busy_since = "", began
    while True:
        received = ask(log, node, session, token, text, key=f"key-{token}", after=after)
        took = time.monotonic() - began
        if received.outcome in ("committed", "cancelled"):
            log.done(took, is_edit=after is not None)
            return
        if after is not None and received.code in ("stale_head", "turn_not_found"):
            log.overtaken += 1
            return  # another turn replaced the head, or the place to go on from
        if received.outcome == "refused" and received.code != "session_busy":
            log.found.append(f"{token} was refused: {received.code}")
            return
        if received.outcome == "refused":
            # Others may take the session one after the other: only one holder's time is bounded.
            if received.holder != holder:
                holder, busy_since = received.holder, time.monotonic()
            busy = time.monotonic() - busy_since
            log.refused, log.busiest = log.refused + 1, max(log.busiest, busy)
            if busy > BUSY_SECONDS + MOMENT_SECONDS:
                log.found.append(f"I12 {session}: {token} waits {busy:.0f} s for {holder}")
                return
        if took > 4 * BUSY_SECONDS:
            log.found.append(f"I12 {session}: {token} is not answered after {took:.0f} s: {received.code}")
            return
        node = nodes.other(node)
        time.sleep(0.02 + 0.05 * dice.random())  # real time: of a client, before it tries again


# -- under load ------------------------------------------------------------------------------------


def under_load(nodes: Nodes, seed: int, disturb: Disturbance, *, sessions: int = 20, clients: int = 6) -> Log:
    """Until `disturb` has done what it does to the nodes, and every client has its last answer."""
    dice = random.Random(f"load {seed}")
    log, over = Log(), threading.Event()
    ids = [nodes.a.session() for _ in range(sessions)]

    def work(own: random.Random) -> None:
        while not over.is_set():
            ask_until_answered(log, nodes, own, own.choice(ids))

    with ThreadPoolExecutor(clients) as pool:
        working = [pool.submit(work, random.Random(dice.random())) for _ in range(clients)]
        try:
            disturb(log, dice)
        finally:
            over.set()
        for one in working:
            one.result()
    return log


def rolling_restart(nodes: Nodes, rounds: int = 1) -> Disturbance:
    def disturb(log: Log, dice: random.Random) -> None:
        for server in nodes.servers * rounds:
            log.until_acknowledged(10)
            server.stop()
            server.start()
        log.until_acknowledged(10)

    return disturb


def storm(nodes: Nodes, seconds: float, outages: Outages) -> Disturbance:
    """Everything that can happen to nodes and their database, one after the other, in any order."""

    def disturb(log: Log, dice: random.Random) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(dice.random() * 2)  # real time: a random moment
            server = dice.choice(nodes.servers)
            match dice.choice(("stop", "kill", "pause", "outage", "database")):
                case "stop":
                    server.stop()
                    server.start()
                case "kill":
                    server.kill()
                    time.sleep(dice.random() * 3)  # real time: how long the node is away
                    server.start()
                case "pause":
                    server.tell(signal.SIGSTOP)
                    time.sleep(dice.choice((1.0, 4.0, 18.0)))  # real time: the length of the pause
                    server.tell(signal.SIGCONT)
                case "outage":
                    outages.begin(dice.choice(KINDS), outage_seconds(dice))
                    outages.wait()
                case _:
                    nodes.postgres.restart(dice.choice(("fast", "immediate")))
        nodes.until_ready()

    return disturb


# -- the judgement ---------------------------------------------------------------------------------


def judge(nodes: Nodes, log: Log) -> list[str]:
    """When everything is settled: every invariant the checker knows, and each session must answer."""
    sessions = list(dict.fromkeys(received.session for received in log.received))
    found = list(log.found)
    settled = asyncio.run(_settle(nodes.dsn, sessions))
    if settled is not None:
        return [*found, settled]
    for session, node in zip(sessions, itertools.cycle((nodes.a, nodes.b))):
        last = ask(log, node, session, new_token(), "\n!remember")
        if last.outcome != "committed":
            found.append(f"I12 {session}: does not answer: {last}")
    return [*found, *asyncio.run(_check(nodes, log))]


async def _settle(dsn: str, sessions: Sequence[SessionId]) -> str | None:
    store = await open_postgres(dsn, pool_size=2)
    ends = time.monotonic() + BUSY_SECONDS + 2 * MOMENT_SECONDS
    try:
        while not await _is_settled(store, sessions):
            if time.monotonic() > ends:
                return "I12: a session is still busy, or a promised turn is still owed"
            await asyncio.sleep(0.1)
        return None
    finally:
        await store.close()


async def _is_settled(store: Store, sessions: Sequence[SessionId]) -> bool:
    for id in sessions:
        session = await store.get_session(DEFAULT_TENANT, id)
        if session is None or session.attempt is not None:
            return False
    durable = await store.interrupted_asks(1, deaths_below=MOST_DEATHS)
    return not durable and not await store.waiting_queues(1)


async def _check(nodes: Nodes, log: Log) -> list[str]:
    store = await open_postgres(nodes.dsn, pool_size=2)
    try:
        world = World(store, log=log.received, prompts=nodes.prompts())
        return await check(world)
    finally:
        await store.close()
