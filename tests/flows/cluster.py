"""One real database, the nodes on it, and a world that writes down what the model saw.

Nothing here sleeps to be right: a turn is held by a gate that a tool or a model
waits at, a node is killed by cutting it off from its store, and what only the
database can tell is asked for until it is so, with a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lastgood.agents.catalog import Catalog
from lastgood.engine.agent_loop import AgentLoop
from lastgood.engine.providers.provider import Chunk, ModelAnswer, ModelCall, Provider
from lastgood.engine.tools.tool import Tool, ToolUse
from lastgood.flows.attempt_run import Run
from lastgood.flows.dependencies import FlowLimits
from lastgood.flows.history_cache import HistoryCache
from lastgood.flows.running_attempts import RunningAttempts
from lastgood.flows.submission import Submission
from lastgood.flows.turn_handle import LocalTurnHandle, TurnHandle
from lastgood.flows.turn_outcome import Outcome
from lastgood.flows.work.work_limits import WorkLimits
from lastgood.model.agents import AgentSpec
from lastgood.model.attempts import Ask, Attempt
from lastgood.model.events import EventKind
from lastgood.model.ids import DEFAULT_TENANT, AttemptId, SessionId, TenantId
from lastgood.model.messages import Message, assistant, user
from lastgood.model.sessions import Session, Turn, Usage
from lastgood.ports.engine import Agents
from lastgood.store.postgres import open_postgres
from lastgood.store.sqlite import open_sqlite
from lastgood.wiring import Lastgood, assemble, flows_of
from tests.contract.conftest import Backend
from tests.engines import toolsets
from tests.faults.faults import Faults, FaultyStore, Mode, faulty_engine
from tests.faults.world import World

Plain = dict[str, Any]

#: Everything that is waited for comes in milliseconds; this only ends a test that hangs.
PATIENCE_SECONDS = 60.0
#: How long a stalled call of the store takes.
STALL_SECONDS = 15.0

#: A lease that no slow machine loses, and short times for all that a test waits for.
LIMITS = FlowLimits(
    lease_seconds=20.0,
    heartbeat_seconds=0.1,
    sweep_seconds=0.05,
    grace_seconds=0.2,
    stop_seconds=0.1,
    title_seconds=10.0,
    tick_seconds=0.002,
    poll_seconds=0.02,
    input_bytes=1000,
)


class Gate:
    """Where work waits until a test lets it go on. `reached` tells that it is there."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await self.opened.wait()

    async def until_reached(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.reached.wait()

    def open(self) -> None:
        self.opened.set()


def gate_tool(gate: Gate, name: str = "gate") -> Tool:
    async def run(use: ToolUse) -> str:
        await gate()
        return "went through"

    return Tool(name, "Waits at a gate.", {"type": "object"}, run)


class TitleModel:
    """Answers after its gate; an exception instead of a text is raised."""

    def __init__(self, says: str | Exception, gate: Gate | None = None) -> None:
        self.says = says
        self.gate = gate
        self.prompts: list[tuple[Message, ...]] = []

    async def stream(self, call: ModelCall) -> AsyncGenerator[Chunk | ModelAnswer, None]:
        self.prompts.append(call.messages)
        if self.gate is not None:
            await self.gate()
        if isinstance(self.says, Exception):
            raise self.says
        yield ModelAnswer(assistant(self.says), Usage())


async def eventually(check: Callable[[], Awaitable[Any]]) -> Any:
    """What `check` returns once that is true: for what only the database can tell."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (found := await check()):
            await asyncio.sleep(0.005)
    return found


@dataclass(slots=True)
class Cluster:
    backend: Backend
    where: Path | str
    world: World
    _faults: dict[str, Faults] = field(default_factory=dict)
    _nodes: dict[str, tuple[Lastgood, list[asyncio.Task[None]]]] = field(default_factory=dict)
    _alone: set[str] = field(default_factory=set)
    _prompted: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_sqlite(self) -> bool:
        return isinstance(self.where, Path)

    # -- nodes -------------------------------------------------------------------

    def agent(self, key: str = "builtin/scripted", **fields: Any) -> AgentSpec:
        agent = self.world.agent()
        more = toolsets(*fields.pop("tools", ()))
        return replace(agent, key=key, toolsets=(*agent.toolsets, *more), **fields)

    async def node(
        self,
        name: str = "node",
        *,
        agents: Iterable[AgentSpec] | None = None,
        served: Agents | None = None,
        tools: Sequence[Tool] = (),
        providers: Mapping[str, Provider] | None = None,
        engine: AgentLoop | None = None,
        limits: FlowLimits = LIMITS,
        kept_histories: int = 256,
        alone: bool = False,
        alive: bool = True,
        work_limits: WorkLimits | None = None,
        **of_kit: Any,
    ) -> Lastgood:
        """A node with faults of its own. `alone`: started on the bare store, as the one process there is.

        Not `alive`: it neither renews its leases nor sweeps, like a process that is paused.
        """
        self._alone |= {name} if alone and alive and self.is_sqlite else set()
        living = self._nodes.keys() | {name}
        assert len(living) == 1 or not self._alone & living, "a node alone ends what others run"
        faults = Faults(stall_seconds=STALL_SECONDS)
        store: Any = self.backend.store if alone else FaultyStore(self.backend.store, faults)
        kit = replace(self.world.kit().plus(providers or {}, tools), **of_kit)
        engine = engine or faulty_engine(kit, faults)
        if agents is None:
            agents = [self.agent(tools=tuple(tool.name for tool in tools))]
        plain = assemble(store, engine, served or Catalog(agents), limits=limits, node=name)
        deps = replace(plain.deps, histories=HistoryCache(store, kept_histories))
        live = RunningAttempts(deps)
        node = flows_of(deps, live, work_limits=work_limits)
        # What `running` does, in pieces: a killed node must not be closed by leaving a block.
        tasks = []
        if alive:
            await node.recovery.at_start()
            tasks = [
                asyncio.create_task(node.live.keep_alive()),
                asyncio.create_task(node.recovery.keep_sweeping()),
            ]
        self._faults[name], self._nodes[name] = faults, (node, tasks)
        return node

    def faults(self, node: Lastgood) -> Faults:
        return self._faults[node.deps.node]

    def strike(self, node: Lastgood, point: str, mode: Mode, *, always: bool = False) -> None:
        """The next call of this point fails, or each of them until `heal`."""
        faults = self.faults(node)
        if not always:
            faults.point, faults.mode, faults.hit = point, mode, faults.hits[point] + 1
            return

        async def jitter(at: str) -> Mode | None:
            return mode if at == point else None

        faults.jitter = jitter

    def heal(self, node: Lastgood) -> None:
        faults = self.faults(node)
        faults.jitter, faults.point = None, ""

    async def kill(self, node: Lastgood, *, lease_ends: bool = False) -> None:
        """Cuts the node off from the store and ends its tasks: nothing is closed or ended.

        `lease_ends`: at once, in the database. A test then neither waits for it nor gives a living node a
        lease that a slow machine loses.
        """
        self.faults(node).dead = True
        _, tasks = self._nodes.pop(node.deps.node)
        runs = list(node.live._runs.values())
        left: list[asyncio.Task[Any] | None] = [*tasks, *node.live._tasks]
        left += [task for run in runs for task in (run.worker, run.outbox._flusher)]
        await _cancel(left)
        if lease_ends:
            mine = f"holder = '{node.deps.node}' AND lease_until IS NOT NULL"
            await self.backend.execute(f"UPDATE sessions SET lease_until = 0 WHERE {mine}")

    async def stop(self, node: Lastgood) -> None:
        _, tasks = self._nodes.pop(node.deps.node)
        await node.live.close(0.0)
        await _cancel(tasks)

    async def reopen(self) -> None:
        """What the next process finds. Closing the store object is what a death does to the lock."""
        await self.backend.store.close()
        if isinstance(self.where, Path):
            self.backend.store = open_sqlite(self.where)
        else:
            self.backend.store = await open_postgres(self.where)
        self.world.store = self.backend.store

    async def close(self) -> None:
        for name in list(self._nodes):
            await self.stop(self._nodes[name][0])

    # -- asking ------------------------------------------------------------------

    async def session(self, node: Lastgood, key: str = "builtin/scripted", **fields: Any) -> SessionId:
        """A session whose turns the test judges itself; those of `world.create` are judged by the checker."""
        tenant = fields.pop("tenant", DEFAULT_TENANT)
        return (await node.sessions.create(tenant, key, **fields)).id

    def asked(self, session: SessionId, *texts: str, tenant: TenantId = DEFAULT_TENANT, **fields: Any) -> Ask:
        fields.setdefault("fingerprint", repr((session, texts)))
        fields.setdefault("messages", tuple(map(user, texts)))
        return Ask(tenant, session, **fields)

    async def submit(self, node: Lastgood, session: SessionId, *texts: str, **fields: Any) -> TurnHandle:
        return await node.submitter.submit(Submission(self.asked(session, *texts, **fields)))

    async def say(self, node: Lastgood, session: SessionId, *texts: str, **fields: Any) -> Outcome:
        """A turn to its end."""
        return await self.outcome(node, await self.submit(node, session, *texts, **fields))

    async def outcome(self, node: Lastgood, submitted: TurnHandle) -> Outcome:
        """As this node tells it, whichever node began it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await replace(submitted, _deps=node.deps).outcome()

    def run_of(self, submitted: TurnHandle) -> Run:
        """Of an attempt in this process. Only tests look behind a handle."""
        assert isinstance(submitted, LocalTurnHandle)
        return submitted._run

    async def good(self, node: Lastgood, session: SessionId, *texts: str, **fields: Any) -> Turn:
        outcome = await self.say(node, session, *texts, **fields)
        assert outcome.turn is not None, outcome.error
        return outcome.turn

    # -- seeing ------------------------------------------------------------------

    def saw(self, _record: Plain) -> None:
        self._prompted.set()

    async def until_prompted(self, times: int = 1) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.world.prompts) < times:
                self._prompted.clear()
                await self._prompted.wait()

    @property
    def last_prompt(self) -> list[tuple[str, str]]:
        return said(self.world.prompts[-1]["prompt"])

    async def get(self, session: SessionId, tenant: TenantId = DEFAULT_TENANT) -> Session:
        found = await self.backend.store.get_session(tenant, session)
        assert found is not None
        return found

    async def turns(self, session: SessionId) -> tuple[Turn, ...]:
        head = (await self.get(session)).head
        return await self.backend.store.read_turns(DEFAULT_TENANT, head.turn) if head else ()

    async def attempts(self, session: SessionId) -> tuple[Attempt, ...]:
        return await self.backend.store.list_attempts(DEFAULT_TENANT, session)

    async def attempt(self, attempt: AttemptId | None) -> Attempt:
        assert attempt is not None
        found = await self.backend.store.get_attempt(DEFAULT_TENANT, attempt)
        assert found is not None
        return found

    async def until_free(self, session: SessionId) -> Session:
        async def free() -> Session | None:
            found = await self.get(session)
            return found if found.attempt is None else None

        found: Session = await eventually(free)
        return found

    async def until_received(self, session: SessionId, kind: EventKind, times: int = 1) -> None:
        """So many events of this kind are stored, so nothing before them is still on its way."""

        async def received() -> bool:
            events = await self.backend.store.read_events(DEFAULT_TENANT, session, after=0)
            return sum(event.kind is kind for event in events) >= times

        await eventually(received)

    async def quiet(self, node: Lastgood) -> None:
        """All that the node does beside its turns is done, titles among it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while tasks := set(node.live._tasks):
                await asyncio.wait(tasks)


def said(prompt: Iterable[Plain]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in prompt]


async def _cancel(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    left = [task for task in tasks if task is not None]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
