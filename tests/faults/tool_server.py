"""A server to be killed while its tools work, and the handle of whoever kills it.

It is what a server is without its network: it serves the agent files of FOLDER/agents from the SQLite
database of FOLDER/data, recovers when it opens that, and tries promised turns again. It reads one
command per line and says one thing per line. `python -m tests.faults.tool_server FD` loads once and
forks a server for each request on the socket FD.

It knows the moments at which a session can be told to wait for its death. It judges nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn, cast

import orjson

from lastgood.agents.catalog import Catalog
from lastgood.agents.sources import DirectorySource
from lastgood.core.recovery import MOST_DEATHS
from lastgood.errors import SessionBusy
from lastgood.flows.dependencies import FlowLimits
from lastgood.flows.submission import Submission
from lastgood.flows.turn_handle import TurnHandle
from lastgood.model.attempts import Ask, Hold, Step, StepKind
from lastgood.model.events import Event, EventKind
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.model.messages import user
from lastgood.outside.secrets import Secrets
from lastgood.ports import Store
from lastgood.settings import Settings
from lastgood.store.database_url import open_store
from lastgood.wiring import Lastgood, assemble, build_engine, running
from tests.faults.tool_defects import DEFECTS

#: Everything that is waited for is waited for so long.
SECONDS = 30.0
LIMITS = FlowLimits(sweep_seconds=0.1, tick_seconds=0.01, poll_seconds=0.05)
_LOOK_AGAIN_SECONDS = 0.01

Line = dict[str, Any]


class Moment(StrEnum):
    """Where a session waits for its death."""

    CALLED = "the model's calls are written, and none has begun"
    UNWRITTEN = "a tool has ended, and its result is not written"
    WRITTEN = "a result is written, and the model is not asked yet"
    ANSWERING = "words of the last answer are stored"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is that outlives a server."""

    folder: Path

    @property
    def agents(self) -> Path:
        return self.folder / "agents"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def database(self) -> Path:
        return self.data / "lastgood.db"

    @property
    def prompts(self) -> Path:
        return self.folder / "prompts.jsonl"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def work(self, session: str) -> Path:
        return self.data / "work" / session


# -- the handles -------------------------------------------------------------------


class Servers:
    """Starts them. Loading takes far longer than living, so one process loads and its children live."""

    def __init__(self) -> None:
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with control:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(control.fileno())],
                cwd=Path(__file__).parents[2],
                pass_fds=[control.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._control.settimeout(SECONDS)

    def start(self, layout: Layout, defect: str = "") -> Server:
        stdin, commands = os.pipe()
        lines, stdout = os.pipe()
        with (layout.folder / "errors").open("ab") as errors:
            request = orjson.dumps([str(layout.folder), defect])
            socket.send_fds(self._control, [request], [stdin, stdout, errors.fileno()])
        _, (process,), _, _ = socket.recv_fds(self._control, 1, 1)
        os.close(stdin)
        os.close(stdout)
        return Server(process, commands, lines)

    def close(self) -> None:
        self._control.close()
        assert self._process.wait(SECONDS) == 0


class Server:
    """A process, held by its pidfd. It works once it is told to `open`."""

    def __init__(self, process: int, commands: int, lines: int) -> None:
        self.received: list[Line] = []  # what it said by itself
        self._process, self._commands, self._lines = process, commands, lines
        self._rest = b""
        self._is_closed = False

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._is_closed:
            self.kill()

    def do(self, what: str, **more: Any) -> Line:
        self.send(what, **more)
        while True:
            line = self._read(time.monotonic() + SECONDS)
            if line.get("to") == what:
                return line
            self.received.append(line)

    def send(self, what: str, **more: Any) -> None:
        os.write(self._commands, orjson.dumps({"do": what, **more}) + b"\n")

    def until_waits(self, session: str) -> None:
        until = time.monotonic() + SECONDS
        while not any(line.get("waits") == session for line in self.received):
            self.received.append(self._read(until))

    def kill(self) -> None:
        """kill -9. What it had said before is heard."""
        signal.pidfd_send_signal(self._process, signal.SIGKILL)
        with contextlib.suppress(EOFError):
            while True:
                self.received.append(self._read(time.monotonic() + SECONDS))
        self._close()

    def end(self) -> None:
        self.do("end")
        self._close()

    def _close(self) -> None:
        ended, _, _ = select.select([self._process], [], [], SECONDS)
        assert ended, "the server did not end"
        for file in (self._process, self._commands, self._lines):
            os.close(file)
        self._is_closed = True

    def _read(self, until: float) -> Line:
        while b"\n" not in self._rest:
            if not select.select([self._lines], [], [], max(until - time.monotonic(), 0.0))[0]:
                raise TimeoutError(f"the server said nothing in {SECONDS:g} s; before that: {self.received}")
            data = os.read(self._lines, 64 * 1024)
            if not data:
                raise EOFError("the server is gone; its last words are in the file `errors`")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return cast(Line, orjson.loads(line))


# -- the process -------------------------------------------------------------------


def say(**line: Any) -> None:
    os.write(1, orjson.dumps(line) + b"\n")


class DeadlyStore:
    """The store, except that sessions wait at their moment until the process is killed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._moments: dict[str, tuple[Moment, int]] = {}
        self._hits: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def dies_at(self, session: str, moment: Moment, hit: int) -> None:
        self._moments[session] = moment, hit

    async def _reach(self, session: str, moment: Moment) -> None:
        wanted, hit = self._moments.get(session, (None, 0))
        if wanted is not moment:
            return
        self._hits[session] += 1
        if self._hits[session] == hit:
            say(waits=session)
            await asyncio.get_running_loop().create_future()

    async def journal_if_held(
        self, hold: Hold, steps: Sequence[Step], events: Sequence[Event], **more: Any
    ) -> bool:
        results = any(step.kind is StepKind.TOOL for step in steps)
        if results:
            await self._reach(hold.session, Moment.UNWRITTEN)
        held = await self._store.journal_if_held(hold, steps, events, **more)
        await self._reach(hold.session, Moment.WRITTEN if results else Moment.CALLED)
        return held

    async def append_events_if_held(self, hold: Hold, events: Sequence[Event], **more: Any) -> int | None:
        last = await self._store.append_events_if_held(hold, events, **more)
        if any(event.kind is EventKind.TEXT_STREAMED for event in events):
            # The outbox is locked while this waits, so the turn cannot commit meanwhile.
            await self._reach(hold.session, Moment.ANSWERING)
        return last


@contextlib.asynccontextmanager
async def serving(layout: Layout) -> AsyncIterator[tuple[Lastgood, DeadlyStore]]:
    database = f"sqlite:///{layout.database}"
    settings = Settings(layout.data, database, prompt_log=layout.prompts, safety="autonomous")
    engine, agents = build_engine(settings, Secrets({})), Catalog([DirectorySource(layout.agents)])
    store = await open_store(database)
    deadly = DeadlyStore(store)
    try:
        async with running(assemble(cast(Store, deadly), engine, agents, limits=LIMITS)) as app:
            yield app, deadly
    finally:
        await store.close()
        await agents.close()
        await engine.close()


async def main(layout: Layout) -> None:
    await asyncio.to_thread(sys.stdin.readline)  # `open`
    async with serving(layout) as (app, store):
        say(to="open")
        while line := await asyncio.to_thread(sys.stdin.readline):
            command = orjson.loads(line)
            what = command.pop("do")
            if what == "end":
                break
            say(to=what, **await _COMMANDS[what](app, store, **command))
    say(to="end")


async def _create(app: Lastgood, store: DeadlyStore, agent: str) -> Line:
    session = await app.sessions.create(DEFAULT_TENANT, agent)
    return {"session": session.id}


async def _ask(
    app: Lastgood,
    store: DeadlyStore,
    session: SessionId,
    text: str,
    moment: str | None = None,
    hit: int = 1,
) -> Line:
    """Promised: whatever happens to this process, the turn is owed."""
    if moment is not None:
        store.dies_at(session, Moment(moment), hit)
    submitted = await app.submitter.submit(
        Submission(Ask(DEFAULT_TENANT, session, (user(text),), durable=True))
    )
    return {"turn": submitted.turn, "attempt": submitted.attempt}


async def _say(app: Lastgood, store: DeadlyStore, session: SessionId, text: str) -> Line:
    submitted = await app.submitter.submit(
        Submission(Ask(DEFAULT_TENANT, session, (user(text),), durable=True))
    )
    outcome = await submitted.outcome()
    return {"status": outcome.status, "turn": submitted.turn, "attempt": outcome.attempt}


async def _settle(app: Lastgood, store: DeadlyStore, sessions: Sequence[str]) -> Line:
    """Until nothing runs in them and nothing is owed to them any more."""
    for session in sessions:
        while not await _is_settled(store, SessionId(session)):
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)  # real time: the harness that waits has the deadline
    return {}


async def _is_settled(store: DeadlyStore, session: SessionId) -> bool:
    async def is_busy() -> bool:
        found = await store.get_session(DEFAULT_TENANT, session)
        return found is None or found.attempt is not None

    async def has_durable_turn() -> bool:
        durable = await store.interrupted_asks(1000, deaths_below=MOST_DEATHS)
        return any(found.attempt.session == session for found in durable)

    # Durable turns are not listed while something runs, and what runs next was listed before.
    return not (await is_busy() or await has_durable_turn() or await is_busy())


async def _work(app: Lastgood, store: DeadlyStore, clients: Sequence[Line], seed: str) -> Line:
    """Each asks in a session of its own, for ever."""
    works = (_client(app, store, name=f"{seed}c{number}", **one) for number, one in enumerate(clients))
    await asyncio.gather(*works)
    return {}


async def _client(
    app: Lastgood, store: DeadlyStore, *, name: str, session: SessionId, texts: Sequence[str], patient: bool
) -> None:
    """A patient one lets the server pay its debts first. Another gets in between, if it can."""
    dice = random.Random(name)
    if patient:
        await _settle(app, store, [session])
    for number in range(10_000):
        token = f"tok{name}n{number}"
        choice = dice.randrange(len(texts))
        text = f"{token} {texts[choice]}".replace("TOKEN", token)
        say(asks=token, session=session, choice=choice)
        submitted = await _submit(app, Ask(DEFAULT_TENANT, session, (user(text),), durable=True))
        say(promised=token, turn=submitted.turn, attempt=submitted.attempt)
        outcome = await submitted.outcome()
        say(ended=token, status=outcome.status)


async def _submit(app: Lastgood, ask: Ask) -> TurnHandle:
    while True:
        try:
            return await app.submitter.submit(Submission(ask))
        except SessionBusy:
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)  # real time: of a client, before it tries again


_COMMANDS: dict[str, Callable[..., Any]] = {
    "create": _create,
    "ask": _ask,
    "say": _say,
    "settle": _settle,
    "work": _work,
}


# -- starting ----------------------------------------------------------------------


#: What is imported only where it is used, which would be in every child anew.
_LATE_IMPORTS = (
    "lastgood.agents.agent_file",
    "lastgood.engine.providers.provider_table",
    "lastgood.engine.tools.builtin",
)


def bear(control: socket.socket) -> None:
    """A child for every request that comes with its three files, and its pidfd as the answer."""
    for name in _LATE_IMPORTS:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    while True:
        request, files, _, _ = socket.recv_fds(control, 4096, 3)
        if not request:
            return
        child = os.fork()
        if child == 0:
            control.close()
            _live(request, files)
        process = os.pidfd_open(child)
        socket.send_fds(control, [b"."], [process])
        for file in (*files, process):
            os.close(file)


def _live(request: bytes, files: Sequence[int]) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    try:
        folder, defect = orjson.loads(request)
        with DEFECTS[defect]() if defect else contextlib.nullcontext():
            asyncio.run(main(Layout(Path(folder))))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as given:
        bear(given)
