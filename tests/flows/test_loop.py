"""The agent loop: what the model is shown, what its tools may do, and where it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from lastgood.core.context import RESULT_CHARACTERS
from lastgood.engine.agent_loop import AgentLoop
from lastgood.engine.providers.provider import Chunk, ModelAnswer, ModelCall
from lastgood.engine.tools.tool import Tool, ToolUse
from lastgood.errors import ContextOverflow, InvalidRequest
from lastgood.model.agents import AgentOrigin, AgentSpec, Effect, Permissions, Safety, ToolsetSpec
from lastgood.model.answers import Answer, AnswerAction
from lastgood.model.attempts import AttemptStatus, StepKind
from lastgood.model.call_options import CallOptions
from lastgood.model.events import AgentChanged, EventKind, HistoryShortened, ToolStreamed
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.model.messages import Message, Role, assistant, tool_result
from lastgood.model.sessions import Usage
from lastgood.outside.secrets import Secrets
from lastgood.wiring import Lastgood
from tests.engines import Kit
from tests.flows.cluster import Cluster, Gate

pytestmark = pytest.mark.anyio

SMALL = "builtin/small"


class Small:
    """A model that takes few messages, and answers with how many it was shown."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.seen: list[tuple[Message, ...]] = []

    async def stream(self, call: ModelCall) -> AsyncGenerator[Chunk | ModelAnswer, None]:
        self.seen.append(call.messages)
        if len(call.messages) > self.most:
            raise ContextOverflow()
        yield Chunk("saw ")
        yield ModelAnswer(assistant(f"saw {len(call.messages)}"), Usage(1, 1))


def big_tool(size: int) -> Tool:
    async def run(use: ToolUse) -> str:
        return "begin" + "x" * size + "end"

    return Tool("big", "Says a lot.", {"type": "object"}, run)


def tool(name: str, effect: Effect = Effect.UNKNOWN, uses: list[ToolUse] | None = None) -> Tool:
    async def run(use: ToolUse) -> str:
        if uses is not None:
            uses.append(use)
        return "ran"

    return Tool(name, "Runs.", {"type": "object"}, run, effect=effect)


Data = TypeVar("Data")


async def events(cluster: Cluster, session: SessionId, kind: type[Data]) -> list[Data]:
    stored = await cluster.backend.store.read_events(DEFAULT_TENANT, session, after=0)
    return [event.data for event in stored if isinstance(event.data, kind)]


# -- what the model is shown --------------------------------------------------------


async def test_I8_a_history_that_is_too_long_is_shown_without_its_oldest_turns(cluster: Cluster) -> None:
    model = Small(5)
    node = await cluster.node(agents=[cluster.agent(model=SMALL)], providers={SMALL: model})
    session = await cluster.session(node)
    for number in range(6):
        turn = await cluster.good(node, session, f"q{number}")
    shown = model.seen[-1]
    assert shown[0].role is Role.USER
    assert len(shown) <= 5
    assert shown[-1].content == "q5"
    # Nothing is lost: only this view of it was shorter, and the turn says by how much.
    assert len(await cluster.turns(session)) == 6
    assert turn.decision["left_out"] + len(shown) == 11
    shortened = await events(cluster, session, HistoryShortened)
    assert shortened[-1] == HistoryShortened(turn.decision["left_out"], of=10)


async def test_I8_input_that_no_model_takes_fails_alone(cluster: Cluster) -> None:
    model = Small(2)
    node = await cluster.node(agents=[cluster.agent(model=SMALL)], providers={SMALL: model})
    session = await cluster.session(node)
    await cluster.good(node, session, "q0")
    outcome = await cluster.say(node, session, "a", "b", "c")
    assert outcome.error is not None
    assert outcome.error.code == "context_overflow"
    await cluster.good(node, session, "q1")


async def test_num_history_items_leaves_out_old_answers_and_no_question(cluster: Cluster) -> None:
    node = await cluster.node(agents=[cluster.agent(num_history_items=3)])
    session = await cluster.session(node)
    for number in range(3):
        await cluster.good(node, session, f"q{number}")
    assert cluster.last_prompt == [
        ("user", "q0"),
        ("user", "q1"),
        ("assistant", "You said: q1"),
        ("user", "q2"),
    ]


async def test_a_long_result_is_capped_in_the_prompt_and_kept_whole_beside(cluster: Cluster) -> None:
    node = await cluster.node(tools=[big_tool(2 * RESULT_CHARACTERS)])
    session = await cluster.session(node)
    turn = await cluster.good(node, session, "!tool big {}\n!say done")
    result = next(message.content for message in turn.messages if message.role is Role.TOOL)
    assert len(result) < RESULT_CHARACTERS + 100
    assert result.startswith("begin")
    assert result.endswith("end")
    (step,) = [
        step
        for step in await cluster.backend.store.read_steps(DEFAULT_TENANT, turn.attempt)
        if step.kind is StepKind.TOOL
    ]
    assert step.full == "begin" + "x" * 2 * RESULT_CHARACTERS + "end"


async def test_old_results_fade_from_the_prompt_alone(cluster: Cluster) -> None:
    agent = cluster.agent(tools=("big",), max_old_tool_call_tokens=100)
    node = await cluster.node(agents=[agent], tools=[big_tool(300)])
    session = await cluster.session(node)
    await cluster.good(node, session, "!tool big {}\n!say one")
    turn = await cluster.good(node, session, "!tool big {}\n!say two")
    shown = [text for role, text in cluster.last_prompt if role == "tool"]
    assert shown == ["[content truncated]", "begin" + "x" * 300 + "end"]
    first, _ = await cluster.turns(session)
    assert "x" * 300 in str(first.messages)
    assert turn.seq == 2


async def test_the_system_message_is_what_the_agent_requested(cluster: Cluster) -> None:
    agent = replace(
        cluster.agent(instruction="Be brief.", add_date=True, add_environment_info=True),
        toolsets=(
            ToolsetSpec("echo", instruction="Echo is loud."),
            ToolsetSpec("telepathy", instruction="Read minds."),
        ),
    )
    node = await cluster.node(agents=[agent])
    session = await cluster.session(node)
    await cluster.good(node, session, "hi")
    role, text = cluster.last_prompt[0]
    assert role == "system"
    assert text.startswith("Be brief.\n\nEcho is loud.\n\nToday's date: 20")
    assert "Operating system: " in text


# -- where it ends ------------------------------------------------------------------


async def test_the_same_call_again_and_again_ends_the_turn(cluster: Cluster) -> None:
    agent = cluster.agent(max_consecutive_tool_calls=3)
    node = await cluster.node(agents=[agent])
    session = await cluster.session(node)
    calls = '!tool ledger-repeat {"text": "x"}\n'
    outcome = await cluster.say(node, session, calls * 9 + "!say never")
    assert outcome.error is not None
    assert outcome.error.code == "loop_detected"
    assert len(cluster.world.ledger) == 2
    await cluster.good(node, session, calls * 2 + "!say fine")


async def test_max_iterations_ends_the_turn(cluster: Cluster) -> None:
    node = await cluster.node(agents=[cluster.agent(max_iterations=3)])
    session = await cluster.session(node)
    text = "\n".join(f'!tool echo {{"text": "{number}"}}' for number in range(4)) + "\n!say never"
    outcome = await cluster.say(node, session, text)
    assert outcome.status is AttemptStatus.FAILED
    assert outcome.error is not None
    assert "more than 3 model calls" in outcome.error.message


# -- what tools may do --------------------------------------------------------------


@pytest.mark.parametrize(
    ("safety", "effect", "permissions", "ran"),
    [
        (Safety.RESTRICTED, Effect.SAFE, Permissions(), True),
        (Safety.RESTRICTED, Effect.UNKNOWN, Permissions(), False),
        (Safety.RESTRICTED, Effect.DESTRUCTIVE, Permissions(), False),
        (Safety.RESTRICTED, Effect.UNKNOWN, Permissions(allow=("act",)), True),
        (Safety.AUTONOMOUS, Effect.DESTRUCTIVE, Permissions(), True),
        (Safety.AUTONOMOUS, Effect.SAFE, Permissions(allow=("*",), deny=("act",)), False),
    ],
)
async def test_a_tool_runs_only_where_rules_and_safety_let_it(
    cluster: Cluster, safety: Safety, effect: Effect, permissions: Permissions, ran: bool
) -> None:
    uses: list[ToolUse] = []
    agent = cluster.agent(tools=("act",), permissions=permissions)
    node = await cluster.node(agents=[agent], tools=[tool("act", effect, uses)], safety=safety)
    session = await cluster.session(node)
    turn = await cluster.good(node, session, '!tool act {"x": 1}\n!say done')
    result = next(message.content for message in turn.messages if message.role is Role.TOOL)
    assert (len(uses) == 1) is ran
    assert result.startswith("error: ") is not ran


@pytest.mark.parametrize(
    ("safety", "permissions"),
    [(Safety.BALANCED, Permissions()), (Safety.AUTONOMOUS, Permissions(ask=("act",)))],
)
@pytest.mark.parametrize("approves", [True, False])
async def test_a_call_that_needs_approval_waits_for_a_person(
    cluster: Cluster, safety: Safety, permissions: Permissions, approves: bool
) -> None:
    uses: list[ToolUse] = []
    agent = cluster.agent(tools=("act",), permissions=permissions)
    act = tool("act", Effect.DESTRUCTIVE, uses)
    node = await cluster.node(agents=[agent], tools=[act], safety=safety)
    session = await cluster.session(node)
    outcome = await cluster.say(node, session, '!tool act {"x": 1}\n!say done')
    assert (outcome.status, uses) == (AttemptStatus.WAITING, [])
    said = Answer(AnswerAction.APPROVE if approves else AnswerAction.REJECT, "too risky")
    assert outcome.attempt is not None
    taken_up = await node.turns.answer(DEFAULT_TENANT, session, outcome.attempt, said)
    ended = await cluster.outcome(node, taken_up)
    assert ended.turn is not None
    result = next(message.content for message in ended.turn.messages if message.role is Role.TOOL)
    assert (len(uses), result == "ran") == (approves, approves)
    assert ("too risky" in result) is not approves


async def test_tool_output_is_streamed_while_it_runs(cluster: Cluster) -> None:
    gate = Gate()

    async def run(use: ToolUse) -> str:
        use.say("half ")
        use.say("way")
        await gate()
        return "all the way"

    node = await cluster.node(tools=[Tool("talker", "", {"type": "object"}, run)])
    session = await cluster.session(node)
    submitted = await cluster.submit(node, session, "!tool talker {}\n!say done")
    await gate.until_reached()
    await cluster.until_received(session, EventKind.TOOL_STREAMED)
    gate.open()
    await cluster.outcome(node, submitted)
    received = await events(cluster, session, ToolStreamed)
    assert "".join(data.content for data in received) == "half way"


async def test_I41_a_key_in_a_result_is_neither_shown_nor_kept(cluster: Cluster) -> None:
    secrets = Secrets({"API_KEY": "canary-4711"})
    secrets.get("API_KEY")

    async def run(use: ToolUse) -> str:
        return "the file says canary-4711"

    node = await cluster.node(tools=[Tool("reader", "", {"type": "object"}, run)], secrets=secrets)
    session = await cluster.session(node)
    turn = await cluster.good(node, session, "!tool reader {}\n!say done")
    assert "[API_KEY]" in str(turn.messages)
    received = await cluster.backend.store.read_events(DEFAULT_TENANT, session, after=0)
    assert "canary" not in str((turn.messages, received, cluster.world.prompts))


async def test_a_cancelled_turn_stops_its_tool_before_it_ends(cluster: Cluster) -> None:
    gate, stopped = Gate(), asyncio.Event()

    async def run(use: ToolUse) -> str:
        try:
            await gate()
        finally:
            stopped.set()
        return "never"

    node = await cluster.node(tools=[Tool("waiter", "", {"type": "object"}, run)])
    session = await cluster.session(node)
    await cluster.submit(node, session, "!tool waiter {}\n!say done")
    await gate.until_reached()
    outcome = await node.turns.cancel(DEFAULT_TENANT, session)
    assert outcome.status is AttemptStatus.CANCELLED
    assert stopped.is_set()


# -- what is built once --------------------------------------------------------------


def counting(kit: Kit, built: list[str]) -> AgentLoop:
    engine = kit.engine()
    factory = engine._toolboxes._toolsets["echo"]

    def count(spec: ToolsetSpec) -> Sequence[Tool]:
        built.append(spec.type)
        return factory(spec)

    engine._toolboxes._toolsets = {"echo": count}
    return engine


async def test_M3_8_what_is_built_for_a_session_is_reused_until_its_agent_changes(cluster: Cluster) -> None:
    built: list[str] = []
    agent = replace(cluster.agent(), toolsets=(ToolsetSpec("echo"),))
    served = Served(agent)
    node = await cluster.node(served=served, engine=counting(cluster.world.kit(), built))
    session = await cluster.session(node)
    for _ in range(3):
        await cluster.good(node, session, '!tool echo {"text": "x"}\n!say ok')
    assert built == ["echo"]
    served.agent = replace(agent, digest="sha256:changed")
    await cluster.good(node, session, "hi")
    assert built == ["echo", "echo"]
    changed = await events(cluster, session, AgentChanged)
    assert changed == [AgentChanged(agent.key, agent.digest, "sha256:changed")]
    await node.sessions.delete(DEFAULT_TENANT, session)
    assert session not in counting_runtimes(node)


class Served:
    """One agent, whatever it is at the moment."""

    def __init__(self, agent: AgentSpec) -> None:
        self.agent = agent

    def served(self) -> Sequence[str]:
        return (self.agent.key,)

    def origin(self, key: str) -> AgentOrigin:
        return AgentOrigin("built-in", key)

    async def load(self, key: str, name: str | None = None) -> AgentSpec:
        return self.agent


def counting_runtimes(node: Lastgood) -> set[SessionId]:
    engine = node.deps.engine
    assert isinstance(engine, AgentLoop)
    return set(engine._toolboxes._kept)


async def test_why_an_old_definition_serves_is_stored_with_the_attempt(cluster: Cluster) -> None:
    stale = replace(cluster.agent(), stale="the file cannot be read")
    node = await cluster.node(served=Served(stale))
    session = await cluster.session(node)
    turn = await cluster.good(node, session, "hi")
    assert (await cluster.attempt(turn.attempt)).decision["stale"] == "the file cannot be read"


# -- where they work ----------------------------------------------------------------


async def test_M3_6_the_sessions_working_directory_is_the_runs(cluster: Cluster, tmp_path: Path) -> None:
    uses: list[ToolUse] = []
    node = await cluster.node(tools=[tool("act", uses=uses)])
    session = await cluster.session(node, working_dir=str(tmp_path))
    await cluster.good(node, session, "!tool act {}\n!say ok")
    assert [use.working_dir for use in uses] == [tmp_path]


async def test_a_session_without_a_working_directory_has_one_of_its_own_as_long_as_it_lives(
    cluster: Cluster, tmp_path: Path
) -> None:
    uses: list[ToolUse] = []
    node = await cluster.node(tools=[tool("act", uses=uses)], work_dirs=tmp_path / "work")
    one, two = [await cluster.session(node) for _ in range(2)]
    for session in (one, two):
        await cluster.good(node, session, "!tool act {}\n!say ok")
    folders = [use.working_dir for use in uses]
    assert folders == [tmp_path / "work" / one, tmp_path / "work" / two]
    assert all(folder is not None and folder.is_dir() for folder in folders)
    await node.sessions.delete(DEFAULT_TENANT, one)
    assert not (tmp_path / "work" / one).exists()
    assert (tmp_path / "work" / two).is_dir()


@pytest.mark.parametrize(
    "path", ["relative", "/nowhere/at/all", "{root}/../out", "{root}/file", "{root}/link", "/"]
)
async def test_I38_a_working_directory_outside_of_the_root_is_refused(
    cluster: Cluster, tmp_path: Path, path: str
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "out").mkdir()
    (root / "file").write_text("")
    (root / "link").symlink_to(tmp_path / "out")
    node = await cluster.node(working_dir_root=root)
    with pytest.raises(InvalidRequest):
        await cluster.session(node, working_dir=path.format(root=root))
    (root / "inside").mkdir()
    await cluster.session(node, working_dir=str(root / "inside"))


async def test_I38_a_working_directory_that_became_a_way_out_is_refused_when_it_is_used(
    cluster: Cluster, tmp_path: Path
) -> None:
    root, out = tmp_path / "root", tmp_path / "out"
    (root / "inside").mkdir(parents=True)
    out.mkdir()
    uses: list[ToolUse] = []
    node = await cluster.node(tools=[tool("act", uses=uses)], working_dir_root=root)
    session = await cluster.session(node, working_dir=str(root / "inside"))
    (root / "inside").rmdir()
    (root / "inside").symlink_to(out)
    outcome = await cluster.say(node, session, "!tool act {}\n!say ok")
    assert outcome.status is AttemptStatus.FAILED
    assert uses == []


# -- what a request asks for ---------------------------------------------------------


def client_tool(name: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


async def test_a_turn_ends_with_calls_to_the_callers_tools_open_and_the_next_one_answers_them(
    cluster: Cluster,
) -> None:
    node = await cluster.node()
    session = await cluster.session(node)
    options = CallOptions(tools=(client_tool("weather"),))
    text = '!tool echo {"text": "x"}\n!also weather {"city": "Oslo"}\n!say it rains'
    turn = await cluster.good(node, session, text, options=options)
    asked = turn.messages[1].tool_calls
    assert [call.name for call in asked] == ["echo", "weather"]
    assert [message.content for message in turn.messages[2:]] == ["x"]
    answer = tool_result(asked[1].id, "rain")
    done = await cluster.good(node, session, messages=(answer,), options=options)
    assert done.messages == (answer, assistant("it rains"))
    assert [message["role"] for message in cluster.world.prompts[-1]["prompt"]] == [
        "user",
        "assistant",
        "tool",
        "tool",
    ]


async def test_what_a_request_asks_for_reaches_the_model_and_no_later_turn(cluster: Cluster) -> None:
    model = Asked()
    node = await cluster.node(agents=[cluster.agent(model=SMALL)], providers={SMALL: model})
    session = await cluster.session(node)
    options = CallOptions(temperature=0.3, stop=("END",), seed=7, tools=(client_tool("weather"),))
    await cluster.good(node, session, "hi", options=options)
    await cluster.good(node, session, "hi again")
    with_options, without = model.calls
    assert (with_options.model.temperature, with_options.options.stop) == (0.3, ("END",))
    assert [tool["function"]["name"] for tool in with_options.tools][-1] == "weather"
    assert (without.model.temperature, without.options) == (None, CallOptions())


class Asked:
    def __init__(self) -> None:
        self.calls: list[ModelCall] = []

    async def stream(self, call: ModelCall) -> AsyncGenerator[Chunk | ModelAnswer, None]:
        self.calls.append(call)
        yield ModelAnswer(assistant("yes"), Usage(1, 1))
