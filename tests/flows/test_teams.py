"""Agents that work together: a task given to another agent, a conversation handed over.

Whatever the others do belongs to the attempt of the turn that was asked for: all of it counts, or none.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from lastgood.model.agents import AgentSpec, Permissions, Safety, ToolsetSpec
from lastgood.model.attempts import AttemptStatus, StepKind
from lastgood.model.events import AgentSwitched, EventKind, TextStreamed
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.model.messages import HANDED_OVER, Role
from lastgood.model.sessions import Turn
from lastgood.wiring import Lastgood
from tests.engines import toolsets
from tests.faults.faults import Mode
from tests.flows.cluster import LIMITS, Cluster

pytestmark = pytest.mark.anyio


def task(agent: str, text: str, *more: str) -> str:
    """What makes the scripted model give `text` to another agent as a task."""
    arguments = json.dumps({"agent": agent, "task": text})
    return "\n".join([f"!tool transfer_task {arguments}", *more])


def team(cluster: Cluster, **of_root: Any) -> AgentSpec:
    """`root` may ask `helper`, `helper` may ask `expert`; `root` and `writer` hand over to one another."""
    plain = cluster.agent("team")
    ledger = toolsets("ledger-fail")
    helper = replace(
        plain, name="helper", description="helps", toolsets=ledger, sub_agents=("expert",), instruction="H"
    )
    expert = replace(plain, name="expert", toolsets=ledger, instruction="E")
    writer = replace(plain, name="writer", toolsets=ledger, handoffs=("root",), instruction="W")
    fields: dict[str, Any] = {
        "name": "root",
        "instruction": "R",
        "sub_agents": ("helper",),
        "handoffs": ("writer",),
        "members": {"helper": helper, "expert": expert, "writer": writer},
    }
    return replace(plain, **(fields | of_root))


async def serve(
    cluster: Cluster, agent: AgentSpec | None = None, name: str = "node", **fields: Any
) -> Lastgood:
    return await cluster.node(name, agents=[agent or team(cluster)], **fields)


def results(turn: Turn) -> list[str]:
    return [message.content for message in turn.messages if message.role is Role.TOOL]


async def test_a_sub_agent_sees_its_task_alone_and_its_answer_is_the_result(cluster: Cluster) -> None:
    node = await serve(cluster)
    session = await cluster.session(node, "team")
    await cluster.good(node, session, "my secret is 7")
    text = '!tool ledger-fail {"text": "x"}\n!say from the helper'
    turn = await cluster.good(node, session, task("helper", text, "!say all done"))
    inner = [record["prompt"] for record in cluster.world.prompts if record.get("within")]
    assert (inner[0][0]["role"], inner[0][0]["content"]) == (
        "system",
        "H\n\nYou can delegate a task to one of these agents with transfer_task:\n- expert: "
        + cluster.agent().description,
    )
    assert [message["content"] for message in inner[0]][1:] == [text]
    assert not any("secret" in str(prompt) for prompt in inner)
    assert results(turn) == ["from the helper"]
    assert turn.messages[-1].content == "all done"
    # Its steps are kept with the attempt, for people, and are no part of the conversation.
    steps = await cluster.backend.store.read_steps(DEFAULT_TENANT, turn.attempt)
    assert [step.kind for step in steps if step.within] == [StepKind.MODEL, StepKind.TOOL, StepKind.MODEL]
    assert "noted x" not in str(turn.messages)
    assert turn.usage.output_tokens > sum(step.usage.output_tokens for step in steps if not step.within)


async def test_a_sub_agent_may_ask_another(cluster: Cluster) -> None:
    node = await serve(cluster)
    session = await cluster.session(node, "team")
    turn = await cluster.good(node, session, task("helper", task("expert", "!say 42", "!say it is 42")))
    assert results(turn) == ["it is 42"]


async def test_I2_a_failing_sub_agent_fails_the_turn_and_leaves_no_trace(cluster: Cluster) -> None:
    node = await serve(cluster)
    session = await cluster.session(node, "team")
    first = await cluster.good(node, session, "hello")
    outcome = await cluster.say(node, session, task("helper", "!fail during", "!say never"))
    assert outcome.status is AttemptStatus.FAILED
    assert (await cluster.get(session)).head == first.head
    await cluster.good(node, session, "again")
    assert [text for role, text in cluster.last_prompt if role == "user"] == ["hello", "again"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"agent": "writer", "task": "x"}, "unknown agent 'writer'"),
        ({"agent": "nobody", "task": "x"}, "unknown agent 'nobody'"),
        ({"agent": "helper", "task": "  "}, "`task` must be a non-empty string"),
        ({"agent": "helper"}, "`task` must be a non-empty string"),
        (["helper"], "not a JSON object"),
    ],
)
async def test_a_task_that_cannot_be_given_is_an_error_the_model_sees(
    cluster: Cluster, call: Any, says: str
) -> None:
    node = await serve(cluster)
    session = await cluster.session(node, "team")
    turn = await cluster.good(node, session, f"!tool transfer_task {json.dumps(call)}\n!say ok")
    assert says in results(turn)[0]


async def test_tasks_of_tasks_end_somewhere(cluster: Cluster) -> None:
    agent = cluster.agent("team")
    ring = replace(agent, name="root", sub_agents=("root",))
    node = await serve(cluster, ring, limits=replace(LIMITS, input_bytes=100_000))
    session = await cluster.session(node, "team")
    text = "!say deep"
    for _ in range(6):
        text = task("root", text)
    turn = await cluster.good(node, session, text)
    steps = await cluster.backend.store.read_steps(DEFAULT_TENANT, turn.attempt)
    assert any("nested too deeply" in step.message.content for step in steps)


@pytest.mark.parametrize(
    ("restriction", "why"),
    [
        ({"permissions": Permissions(deny=("ledger-*",))}, "denies"),
        ({"readonly": True}, "read"),
        ({"safety": Safety.RESTRICTED}, "restricted"),
    ],
)
async def test_a_sub_agent_never_has_more_rights_than_who_gave_it_the_task(
    cluster: Cluster, restriction: dict[str, Any], why: str
) -> None:
    node = await serve(cluster, team(cluster, **restriction))
    session = await cluster.session(node, "team")
    turn = await cluster.good(node, session, task("helper", '!tool ledger-fail {"text": "x"}\n!say done'))
    steps = await cluster.backend.store.read_steps(DEFAULT_TENANT, turn.attempt)
    (denied,) = [step.message.content for step in steps if step.within and step.kind is StepKind.TOOL]
    assert "not allowed" in denied
    assert why in denied
    assert cluster.world.ledger == []


async def test_a_handoff_lasts_until_the_next_one(cluster: Cluster) -> None:
    node = await serve(cluster)
    session = await cluster.session(node, "team")
    first = await cluster.good(node, session, '!tool handoff {"agent": "writer"}\n!say written')
    assert results(first)[0].startswith(HANDED_OVER)
    await cluster.good(node, session, "go on")
    assert cluster.last_prompt[0][1].startswith("W")
    # The same after a restart: who speaks is read off the conversation.
    await cluster.stop(node)
    node = await serve(cluster, name="next")
    await cluster.good(node, session, '!tool handoff {"agent": "root"}\n!say back')
    assert cluster.last_prompt[0][1].startswith("R")
    await cluster.good(node, session, "hello")
    assert cluster.last_prompt[0][1].startswith("R")


async def test_I2_a_handoff_in_a_failed_turn_did_not_happen(cluster: Cluster) -> None:
    node = await serve(cluster)
    session = await cluster.session(node, "team")
    outcome = await cluster.say(node, session, '!tool handoff {"agent": "writer"}\n!fail during')
    assert outcome.status is AttemptStatus.FAILED
    await cluster.good(node, session, "hello")
    assert cluster.last_prompt[0][1].startswith("R")


async def test_a_handoff_is_reported(cluster: Cluster) -> None:
    node = await serve(cluster)
    session = await cluster.session(node, "team")
    await cluster.good(node, session, '!tool handoff {"agent": "writer"}\n!say written')
    events = await cluster.backend.store.read_events(DEFAULT_TENANT, session, after=0)
    assert [event.data for event in events if event.kind is EventKind.AGENT_SWITCHED] == [
        AgentSwitched("writer")
    ]


async def test_output_of_a_sub_agent_has_its_name(cluster: Cluster) -> None:
    node = await serve(cluster)
    session = await cluster.session(node, "team")
    await cluster.good(node, session, task("helper", "!say inner words", "!say outer words"))
    events = await cluster.backend.store.read_events(DEFAULT_TENANT, session, after=0)
    received = [event.data for event in events if event.kind is EventKind.TEXT_STREAMED]
    assert received == [TextStreamed("inner words", agent="helper"), TextStreamed("outer words")]


async def test_I33_after_a_crash_a_task_resumes_where_it_was(cluster: Cluster) -> None:
    """The helper's finished steps are adopted, its open call is decided by its tool's policy."""
    dead = await serve(cluster, name="dead")
    died = asyncio.Event()

    def on_effect(line: dict[str, Any]) -> None:
        if line["text"] == "b":
            cluster.faults(dead).dead = True
            died.set()

    cluster.world.on_effect = on_effect
    session = await cluster.session(dead, "team")
    inner = '!tool ledger-fail {"text": "a"}\n!tool ledger-fail {"text": "b"}\n!say inner'
    await cluster.submit(dead, session, task("helper", inner, "!say outer"), durable=True)
    async with asyncio.timeout(10):
        await died.wait()
    await cluster.kill(dead, lease_ends=True)
    await serve(cluster, name="next")
    await cluster.until_received(session, EventKind.TURN_COMMITTED)
    (turn,) = await cluster.turns(session)
    assert results(turn) == ["inner"]
    assert [line["text"] for line in cluster.world.ledger] == ["a", "b"]
    steps = await cluster.backend.store.read_steps(DEFAULT_TENANT, turn.attempt)
    received = [step.message.content for step in steps if step.within and step.kind is StepKind.TOOL]
    assert received[0] == "noted a"
    assert "unknown" in received[1]


# -- forced handoffs -----------------------------------------------------------------------


def chain(cluster: Cluster, **of_writer: Any) -> AgentSpec:
    """`root` always hands over to `writer`, and may ask `helper`, which is forced to hand over, too."""
    plain = cluster.agent("team")
    writer = replace(plain, name="writer", instruction="W", **of_writer)
    helper = replace(plain, name="helper", instruction="H", force_handoff="writer")
    return replace(
        plain,
        name="root",
        instruction="R",
        force_handoff="writer",
        sub_agents=("helper",),
        members={"helper": helper, "writer": writer},
    )


def asked(cluster: Cluster) -> list[str]:
    """The first letter of the system message of each prompt: who was asked."""
    return [record["prompt"][0]["content"][0] for record in cluster.world.prompts]


async def test_a_forced_handoff_lasts_for_its_turn(cluster: Cluster) -> None:
    node = await serve(cluster, chain(cluster))
    session = await cluster.session(node, "team")
    turn = await cluster.good(node, session, "!say facts")
    roles = [(message.role, message.content[: len(HANDED_OVER)]) for message in turn.messages]
    assert roles[:3] == [
        (Role.USER, "!say facts"),
        (Role.ASSISTANT, "facts"),
        (Role.USER, HANDED_OVER),
    ]
    assert [role for role, _ in roles[3:]] == [Role.ASSISTANT]
    await cluster.good(node, session, "!say more facts")
    assert asked(cluster) == ["R", "W", "R", "W"]
    events = await cluster.backend.store.read_events(DEFAULT_TENANT, session, after=0)
    switches = [event.data for event in events if event.kind is EventKind.AGENT_SWITCHED]
    assert switches == [AgentSwitched("writer")] * 2


async def test_a_handoff_of_the_model_may_be_followed_by_a_forced_one(cluster: Cluster) -> None:
    plain = cluster.agent("team")
    writer = replace(plain, name="writer", instruction="W", force_handoff="editor")
    editor = replace(plain, name="editor", instruction="E")
    members = {"writer": writer, "editor": editor}
    node = await serve(
        cluster, replace(plain, name="root", instruction="R", handoffs=("writer",), members=members)
    )
    session = await cluster.session(node, "team")
    await cluster.good(node, session, '!tool handoff {"agent": "writer"}\n!say text')
    await cluster.good(node, session, "!say again")
    assert asked(cluster) == ["R", "W", "E", "W", "E"]


async def test_I2_a_retry_goes_on_after_the_response_that_was_handed_over(cluster: Cluster) -> None:
    """The response of the first agent is in the journal, though it calls no tools; it is not asked again."""
    node = await serve(cluster, chain(cluster))
    session = await cluster.session(node, "team")
    faults = cluster.faults(node)
    faults.point, faults.mode, faults.hit = "model.call", Mode.RAISE, 2
    failed = await cluster.say(node, session, "!say facts", key="k")
    assert failed.status is AttemptStatus.FAILED
    assert (await cluster.get(session)).head is None
    turn = await cluster.good(node, session, "!say facts", key="k")
    assert asked(cluster) == ["R", "W"]
    assert [message.role for message in turn.messages] == [
        Role.USER,
        Role.ASSISTANT,
        Role.USER,
        Role.ASSISTANT,
    ]
    # Both responses are paid for, once.
    assert turn.usage.output_tokens == sum(len(one.content.split()) for one in turn.messages[1::2])


async def test_a_task_is_done_by_the_agent_it_was_given_to(cluster: Cluster) -> None:
    node = await serve(cluster, chain(cluster))
    session = await cluster.session(node, "team")
    turn = await cluster.good(node, session, task("helper", "!say helped", "!say done"))
    assert results(turn) == ["helped"]
    assert asked(cluster) == ["R", "H", "R", "W"]


async def test_handoffs_that_go_in_a_circle_end_the_turn(cluster: Cluster) -> None:
    """The file cannot say so, but a model can: it hands back to an agent that must hand over."""
    agent = chain(cluster, force_handoff="root")
    node = await serve(cluster, replace(agent, max_iterations=6))
    session = await cluster.session(node, "team")
    outcome = await cluster.say(node, session, "!say facts")
    assert outcome.status is AttemptStatus.FAILED
    assert "model calls" in str(outcome.error)


# -- a to-do list that agents share --------------------------------------------------------


def sharing(cluster: Cluster) -> AgentSpec:
    """`root` may ask `helper`, which may ask `expert`; all of them share one list."""
    shared = (ToolsetSpec("todo", options={"shared": True}),)
    root = team(cluster, toolsets=shared)
    members = {name: replace(one, toolsets=shared) for name, one in root.members.items()}
    return replace(root, members=members)


ADD = '!tool create_todo {"description": "%s"}'


async def listed(cluster: Cluster, node: Lastgood, session: SessionId) -> list[str]:
    turn = await cluster.good(node, session, "!tool list_todos {}\n!say ok")
    return [one["description"] for one in json.loads(results(turn)[0])["todos"]]


async def test_a_shared_list_is_passed_into_tasks_of_tasks_and_comes_back(cluster: Cluster) -> None:
    node = await serve(cluster, sharing(cluster))
    session = await cluster.session(node, "team")
    inner = task("expert", f"{ADD % 'c'}\n!say deep", "!say done")
    await cluster.good(node, session, f"{ADD % 'a'}\n" + task("helper", f"{ADD % 'b'}\n{inner}", "!say ok"))
    assert await listed(cluster, node, session) == ["a", "b", "c"]


async def test_I2_a_failed_turn_leaves_no_trace_in_the_shared_list(cluster: Cluster) -> None:
    node = await serve(cluster, sharing(cluster))
    session = await cluster.session(node, "team")
    await cluster.good(node, session, task("helper", ADD % "a", "!say ok"))
    failed = await cluster.say(node, session, task("helper", ADD % "b", "!say ok\n!fail during"))
    assert failed.status is AttemptStatus.FAILED
    assert await listed(cluster, node, session) == ["a"]


async def test_the_shared_list_is_whole_where_results_are_cut(cluster: Cluster) -> None:
    agent = replace(sharing(cluster), max_tool_result_tokens=20)
    node = await serve(cluster, agent)
    session = await cluster.session(node, "team")
    text = "\n".join([*(ADD % f"entry {number}" for number in range(5)), f"!say {'x' * 500}"])
    turn = await cluster.good(node, session, task("helper", text, "!say ok"))
    assert "characters omitted" in results(turn)[0]
    assert '"description": "entry 4"' in results(turn)[0]


async def test_entries_of_a_shared_list_are_short(cluster: Cluster) -> None:
    node = await serve(cluster, sharing(cluster), limits=replace(LIMITS, input_bytes=100_000))
    session = await cluster.session(node, "team")
    turn = await cluster.good(node, session, f"{ADD % ('x' * 1001)}\n!say ok")
    assert "more than 1,000 characters" in results(turn)[0]
    assert await listed(cluster, node, session) == []
