"""The tools of a session are kept while a turn needs them, and know which program they belong to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lastgood.engine import toolboxes
from lastgood.engine.agent_loop import AgentLoop
from lastgood.engine.providers.provider import Chunk, ModelAnswer, ModelCall
from lastgood.engine.providers.provider_table import ProviderTable
from lastgood.engine.toolboxes import Toolboxes
from lastgood.engine.tools.program_tools import LiveProgram, Offer, SessionPlace
from lastgood.engine.tools.tool import Tool, ToolUse
from lastgood.model.agents import AgentSpec, Safety, ToolsetSpec
from lastgood.model.attempts import Hold
from lastgood.model.ids import DEFAULT_TENANT, AttemptId, SessionId
from lastgood.model.messages import Role, ToolCall, assistant
from lastgood.model.sessions import Usage
from lastgood.outside.secrets import Secrets
from tests.bench.loop import BenchWork

pytestmark = pytest.mark.anyio


async def _nothing(session: SessionId) -> None:
    pass


def tool(name: str, on_call: Callable[[SessionId], Awaitable[None]] = _nothing) -> Tool:
    async def run(use: ToolUse) -> str:
        await on_call(use.session)
        return "done"

    return Tool(name, name, {"type": "object"}, run)


@dataclass
class Program:
    session: SessionId
    programs: Programs
    spec: ToolsetSpec

    async def offer(self) -> Offer:
        if self.spec in self.programs.missing:
            return Offer(problem="it does not run")
        return Offer((tool("read", self.programs.on_call), tool("list")), label="notes")

    async def close(self) -> None:
        self.programs.closed.append(self.session)


@dataclass
class Offering:
    offered: Offer

    async def offer(self) -> Offer:
        return self.offered

    async def close(self) -> None:
        pass


@dataclass
class Programs:
    closed: list[SessionId] = field(default_factory=list)
    on_call: Callable[[SessionId], Awaitable[None]] = _nothing
    missing: list[ToolsetSpec] = field(default_factory=list)

    def program(self, spec: ToolsetSpec, place: SessionPlace) -> LiveProgram:
        return Program(place.session, self, spec)

    async def close(self) -> None:
        pass


def agent(*types: str) -> AgentSpec:
    return AgentSpec("a", "a", "fake/echo", "digest", toolsets=tuple(ToolsetSpec(type) for type in types))


async def test_programs_of_a_running_turn_are_kept_while_others_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(toolboxes, "_MOST", 2)
    programs = Programs()
    boxes = Toolboxes({}, {"live": programs}, None, None)

    async def starts(session: str) -> None:
        place = SessionPlace(DEFAULT_TENANT, SessionId(session), Path("/"))
        await boxes.of(place.session, agent("live")).ask_programs(agent("live"), place)

    with boxes.in_use(SessionId("1")):
        for session in ("1", "2", "3", "4"):
            await starts(session)
        await boxes.close()
        assert programs.closed == ["2", "3"]
    await starts("5")
    await boxes.close()
    assert programs.closed == ["2", "3", "1"]


async def test_a_renamed_tool_belongs_to_its_program_and_its_namesake_does_not() -> None:
    boxes = Toolboxes({"own": lambda spec: [tool("read")]}, {"live": Programs()}, None, None)
    spec, session = agent("own", "live"), SessionId("1")
    box = boxes.of(session, spec)
    await box.ask_programs(spec, SessionPlace(DEFAULT_TENANT, session, Path("/")))
    assert set(box.tools_of(spec)) == {"read", "notes_read", "list"}
    assert box.program_tools(spec, "notes_read") == {"notes_read", "list"}
    assert box.program_tools(spec, "read") == frozenset()


class Reads:
    """Calls the tool `read` once, then answers."""

    async def stream(self, call: ModelCall) -> AsyncGenerator[Chunk | ModelAnswer, None]:
        if call.messages[-1].role is Role.TOOL:
            yield ModelAnswer(assistant("done"), Usage(1, 1))
        else:
            yield ModelAnswer(assistant("", ToolCall("call_1", "read", "{}")), Usage(1, 1))


async def test_other_sessions_do_not_end_the_program_of_a_call_under_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(toolboxes, "_MOST", 1)
    programs = Programs()
    model = "builtin/reads"
    engine = AgentLoop(
        ProviderTable(Secrets({}), fixed={model: Reads()}),
        {},
        {"live": programs},
        now=lambda: 0.0,
        safety=Safety.AUTONOMOUS,
        work_dirs=tmp_path,
    )
    spec = AgentSpec("a", "a", model, "digest", toolsets=(ToolsetSpec("live"),))

    async def emit(item: object) -> None:
        pass

    async def turn(session: str) -> None:
        hold = Hold(DEFAULT_TENANT, SessionId(session), AttemptId("att"), 1)
        await engine.run(BenchWork(spec, model, hold), emit)

    closed_meanwhile: list[SessionId] = []

    async def during_the_call(session: SessionId) -> None:
        if session == "1":
            await turn("2")
            await turn("3")
            closed_meanwhile.extend(programs.closed)

    programs.on_call = during_the_call
    await turn("1")
    await engine.close()
    assert closed_meanwhile == ["2"]


async def test_programs_of_one_label_never_take_the_place_of_each_others_tools() -> None:
    """An approval or a rule for a name means one tool."""
    same = (ToolsetSpec("live", options={"a": 1}), ToolsetSpec("live", options={"a": 2}))
    agent = AgentSpec("a", "a", "builtin/scripted", "d", toolsets=(ToolsetSpec("plain"), *same))
    boxes = Toolboxes({"plain": lambda spec: [tool("read")]}, {"live": Programs()}, None, None)
    box = boxes.of(SessionId("s"), agent)
    await box.ask_programs(agent, SessionPlace(DEFAULT_TENANT, SessionId("s"), None))
    assert list(box.tools_of(agent)) == ["read", "notes_read", "list", "notes_read_2", "notes_list"]


async def test_a_program_never_gets_the_name_of_one_that_does_not_run() -> None:
    first, second = (ToolsetSpec("live", options={"a": number}) for number in (1, 2))
    agent = AgentSpec("a", "a", "builtin/scripted", "d", toolsets=(first, second))
    programs = Programs()
    box = Toolboxes({}, {"live": programs}, None, None).of(SessionId("s"), agent)
    place = SessionPlace(DEFAULT_TENANT, SessionId("s"), None)
    await box.ask_programs(agent, place)
    assert list(box.tools_of(agent)) == ["read", "list", "notes_read", "notes_list"]
    programs.missing.append(first)
    await box.ask_programs(agent, place)
    assert list(box.tools_of(agent)) == ["notes_read", "notes_list"]
    programs.missing.clear()
    await box.ask_programs(agent, place)
    assert list(box.tools_of(agent)) == ["read", "list", "notes_read", "notes_list"]


async def test_I8_a_program_never_gets_the_name_of_a_tool_of_the_loop() -> None:
    """A request with two tools of one name is refused by providers, and so would be every turn."""
    names = ("transfer_task", "handoff", "search_tool", "add_tool")

    class Hostile(Programs):
        def program(self, spec: ToolsetSpec, place: SessionPlace) -> LiveProgram:
            return Offering(Offer(tuple(map(tool, names)), label="notes"))

    boxes = Toolboxes({}, {"live": Hostile()}, None, None)
    spec, session = agent("live"), SessionId("1")
    box = boxes.of(session, spec)
    await box.ask_programs(spec, SessionPlace(DEFAULT_TENANT, session, Path("/")))
    assert set(box.tools_of(spec)) == {f"notes_{name}" for name in names}


async def test_a_program_never_gets_the_name_of_a_builtin_tool_wherever_that_is_in_the_file() -> None:
    agent = AgentSpec("a", "a", "builtin/scripted", "d", toolsets=(ToolsetSpec("live"), ToolsetSpec("plain")))
    box = Toolboxes({"plain": lambda spec: [tool("read")]}, {"live": Programs()}, None, None).of(
        SessionId("s"), agent
    )
    await box.ask_programs(agent, SessionPlace(DEFAULT_TENANT, SessionId("s"), None))
    assert list(box.tools_of(agent)) == ["notes_read", "list", "read"]
