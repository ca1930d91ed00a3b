"""Keys of toolsets, agents and models that change what the model is called with."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from lastgood.engine.providers.provider import Chunk, ModelAnswer, ModelCall
from lastgood.engine.tools.tool import Tool, ToolUse
from lastgood.errors import ModelOverloaded
from lastgood.model.agents import Fallback, ModelRoute, ModelSpec, Permissions, ToolsetSpec
from lastgood.model.events import ToolCalled
from lastgood.model.ids import DEFAULT_TENANT
from lastgood.model.messages import Image, Role, ToolCall, assistant, user_parts
from lastgood.model.sessions import Usage
from tests.agents.corpus import errors_of, parse
from tests.flows.cluster import Cluster, TitleModel

pytestmark = pytest.mark.anyio


async def test_the_model_of_a_toolset_is_called_with_its_results_and_the_agents_with_the_rest(
    cluster: Cluster,
) -> None:
    cheap = TitleModel("read by the cheap one")
    cheap_echo = ToolsetSpec("echo", options={"model": "builtin/cheap"})
    agent = cluster.agent()
    others = tuple(one for one in agent.toolsets if one.type != "echo")
    agent = replace(agent, toolsets=(cheap_echo, *others))
    node = await cluster.node(agents=[agent], providers={"builtin/cheap": cheap})
    session = await cluster.session(node)
    turn = await cluster.good(node, session, '!tool echo {"text": "a"}\n!say not said')
    assert turn.messages[-1].content == "read by the cheap one"
    assert turn.model == "builtin/cheap"
    [prompt] = cheap.prompts
    assert prompt[-1].role is Role.TOOL
    # Another toolset's result goes to the agent's own model, and so does the next turn.
    turn = await cluster.good(node, session, '!tool ledger-repeat {"text": "b"}\n!say own')
    assert (turn.messages[-1].content, turn.model) == ("own", "builtin/scripted")
    assert len(cheap.prompts) == 1


def test_the_model_of_a_toolset_must_exist() -> None:
    text = "agents:\n  root:\n    model: auto\n    toolsets:\n      - {type: shell, model: nobody}\n"
    [(line, message)] = errors_of(text)
    assert (line, "unknown model 'nobody'" in message) == (5, True)
    shared = (
        "agents: {root: {model: auto, use_toolsets: [t]}}\ntoolsets:\n  t: {type: shell, model: nobody}\n"
    )
    assert [line for line, _ in errors_of(shared)] == [3]


class Describing:
    """Calls `note` once and says what for; keeps the tools that it was offered."""

    def __init__(self) -> None:
        self.tools: tuple[dict[str, Any], ...] = ()

    async def stream(self, call: ModelCall) -> AsyncGenerator[Chunk | ModelAnswer, None]:
        if call.messages[-1].role is Role.TOOL:
            yield ModelAnswer(assistant("done"), Usage(1, 1))
            return
        self.tools = call.tools
        arguments = json.dumps({"text": "a", "description": "to remember it"})
        yield ModelAnswer(assistant("", ToolCall("c1", "note", arguments)), Usage(1, 1))


async def test_every_call_says_what_it_is_for_and_the_tool_is_not_bothered_with_it(cluster: Cluster) -> None:
    got: list[dict[str, Any]] = []

    async def run(use: ToolUse) -> str:
        got.append(use.arguments)
        return "noted"

    text = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    own = {"type": "object", "properties": {"description": {"type": "integer"}}}
    tools = [Tool("note", "Notes.", text, run), Tool("own", "Has one itself.", own, run)]
    model = Describing()
    agent = cluster.agent(
        tools=("note", "own"),
        model="builtin/describing",
        add_description_parameter=True,
        permissions=Permissions(deny=("note:description=*",)),
    )
    node = await cluster.node(agents=[agent], tools=tools, providers={"builtin/describing": model})
    session = await cluster.session(node)
    await cluster.good(node, session, "go")
    offered = {one["function"]["name"]: one["function"]["parameters"] for one in model.tools}
    assert offered["note"]["required"] == ["text", "description"]
    assert offered["note"]["properties"]["description"]["type"] == "string"
    assert offered["own"] == own
    assert got == [{"text": "a"}]
    events = await cluster.backend.store.read_events(DEFAULT_TENANT, session, after=0)
    [called] = [one.data for one in events if isinstance(one.data, ToolCalled)]
    assert "to remember it" in called.arguments


def test_an_agent_file_asks_for_it() -> None:
    text = "agents: {root: {model: auto, add_description_parameter: true}}"
    assert parse(text).agents["root"].add_description_parameter


async def test_each_model_of_a_chain_gets_the_attachments_that_it_accepts(cluster: Cluster) -> None:
    """The first one fails, so that the second is asked, which accepts images."""
    blind, seeing = TitleModel(ModelOverloaded("busy")), TitleModel("a cat")
    models = {
        "blind": ModelSpec("builtin", "blind", accepts=frozenset()),
        "seeing": ModelSpec("builtin", "seeing", accepts=frozenset({"image"})),
    }
    fallback = Fallback(("seeing",), retries=0)
    agent = cluster.agent(model="blind", models=models, fallback=fallback)
    node = await cluster.node(agents=[agent], providers={"builtin/blind": blind, "builtin/seeing": seeing})
    session, picture = await cluster.session(node), Image("data:image/png;base64,AA")
    turn = await cluster.good(node, session, messages=(user_parts("what is it?", picture),))
    assert turn.messages[0].parts == ("what is it?", picture)  # the history keeps all of it
    assert turn.messages[-1].content == "a cat"
    [[*_, dark]], [[*_, light]] = blind.prompts, seeing.prompts
    assert dark.parts == ("what is it?", "[image left out: this model does not accept it]")
    assert light.parts == ("what is it?", picture)


def test_what_a_model_accepts_is_in_its_file() -> None:
    text = "models: {m: {provider: openai, model: x, capabilities: {image: true, pdf: false}}}\n"
    specs = parse(text + "agents: {root: {model: m}}").agents["root"].models
    assert specs["m"].accepts == frozenset({"image"})


async def test_a_request_goes_to_the_model_whose_examples_are_like_it(cluster: Cluster) -> None:
    fast, careful = TitleModel("hi"), TitleModel("proved")
    routes = (ModelRoute("fast", ("hello there",)), ModelRoute("builtin/careful", ("prove a theorem",)))
    models = {
        "router": ModelSpec("builtin", "scripted", routes=routes),
        "fast": ModelSpec("builtin", "fast"),
    }
    agent = cluster.agent(model="router", models=models)
    node = await cluster.node(agents=[agent], providers={"builtin/fast": fast, "builtin/careful": careful})
    session = await cluster.session(node)
    said = []
    for text in ("Hello!", "Prove this theorem", "!say something else"):
        turn = await cluster.good(node, session, text)
        said.append((turn.messages[-1].content, turn.model))
    assert said == [
        ("hi", "builtin/fast"),
        ("proved", "builtin/careful"),
        ("something else", "builtin/scripted"),
    ]


def test_the_models_of_routes_must_exist() -> None:
    text = "models:\n  m: {provider: openai, model: x, routing: [{model: nobody, examples: [a]}]}\n"
    [(line, message)] = errors_of(text + "agents: {root: {model: m}}")
    assert (line, "unknown model 'nobody'" in message) == (2, True)
