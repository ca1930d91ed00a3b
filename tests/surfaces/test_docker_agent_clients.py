"""Bodies that docker-agent's clients send, and fields that they read without checking for them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lastgood.model.agents import Safety
from tests.surfaces.in_process_server import InProcessServer, open_inside

pytestmark = pytest.mark.anyio

FILE = """
agents:
  root:
    model: builtin/scripted
    welcome_message: Hello.
    toolsets:
      - type: think
      - {type: mcp, name: tickets, command: no-such-server, env: {TOKEN: canary-1}}
    commands:
      fix: {description: Fix a bug, instruction: Fix it}
"""
PIXEL = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
IMAGE = {"type": "image_url", "image_url": {"url": PIXEL}}


@pytest.fixture(scope="module")
async def inside(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessServer]:
    folder = tmp_path_factory.mktemp("docker-agent")
    (folder / "helper.yaml").write_text(FILE)
    async with open_inside(folder, str(folder / "helper.yaml")) as opened:
        yield opened


async def texts(inside: InProcessServer, session: str) -> list[Any]:
    read = await inside.good("GET", f"/api/sessions/{session}")
    return [message["content"] for message in read["messages"]]


async def test_an_empty_role_is_the_users(inside: InProcessServer) -> None:
    session = await inside.session(agent="helper")
    path = f"/api/sessions/{session}"
    body = {"messages": [{"role": "", "content": "one"}]}
    await inside.good("POST", f"{path}/turns", {**body, "wait": True})
    assert (await texts(inside, session))[0] == "one"
    await inside.good("POST", f"{path}/followup", body)


async def test_text_beside_parts_is_kept_once(inside: InProcessServer) -> None:
    session = await inside.session(agent="helper")
    path = f"/api/sessions/{session}/messages"
    text = {"type": "text", "text": "look"}
    await inside.good("POST", path, {"message": {"content": "look", "multi_content": [IMAGE]}})
    await inside.good("POST", path, {"message": {"content": "look", "multi_content": [text, IMAGE]}})
    for content in await texts(inside, session):
        assert [part["type"] for part in content] == ["text", "image_url"]
        assert content[0]["text"] == "look"


async def test_documents_are_kept(inside: InProcessServer) -> None:
    session = await inside.session(agent="helper")
    documents = [
        {"name": "a.md", "mime_type": "text/markdown", "size": 4, "source": {"inline_text": "# A\n"}},
        {"name": "a.png", "mime_type": "image/png", "source": {"inline_data": "AAAA"}},
        {"name": "a.pdf", "mime_type": "application/pdf", "source": {"inline_data": "BBBB"}},
    ]
    parts = [{"type": "document", "document": document} for document in documents]
    body = {"message": {"content": "see", "multi_content": parts}}
    await inside.good("POST", f"/api/sessions/{session}/messages", body)
    (content,) = await texts(inside, session)
    assert content == [
        {"type": "text", "text": "see"},
        {"type": "text", "text": "a.md:\n# A\n"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,BBBB"}},
    ]
    body = {
        "message": {"content": "", "multi_content": [{"type": "document", "document": {"name": "empty"}}]}
    }
    refused = await inside.ask("POST", f"/api/sessions/{session}/messages", body)
    assert (refused.status, "'document'" in refused.json["message"]) == (400, True)


async def test_an_unknown_session_has_their_code(inside: InProcessServer) -> None:
    unknown = await inside.ask("GET", "/api/sessions/nope/snapshot")
    assert (unknown.status, unknown.json["code"]) == (404, "unknown_session")
    assert "code" not in (await inside.ask("GET", "/api/nope/snapshot")).json


@pytest.mark.parametrize("ceiling", [Safety.AUTONOMOUS, Safety.RESTRICTED])
async def test_a_session_is_created_from_their_template(tmp_path: Path, ceiling: Safety) -> None:
    template = {
        "id": "theirs",
        "title": "",
        "messages": None,
        "created_at": "0001-01-01T00:00:00Z",
        "tools_approved": True,
        "hide_tool_results": False,
        "SendUserMessage": True,
        "max_iterations": 0,
        "permissions": None,
        "agent_model_overrides": {"root": "builtin/scripted"},
    }
    two = {"agent_model_overrides": {"root": "builtin/scripted", "helper": "openai/gpt"}}
    async with open_inside(tmp_path, safety=ceiling) as inside:
        made = await inside.good("POST", "/api/sessions", template)
        refused = await inside.ask("POST", "/api/sessions", two)
    mode = "autonomous" if ceiling is Safety.AUTONOMOUS else None
    assert (made["model"], made.get("safety_policy")) == ("builtin/scripted", mode)
    assert (refused.status, "agent_model_overrides" in refused.json["message"]) == (400, True)


async def test_permissions_that_are_null_are_cleared(inside: InProcessServer) -> None:
    path = f"/api/sessions/{await inside.session(agent='helper')}/permissions"
    set_ = await inside.good("PATCH", path, {"permissions": {"deny": ["shell"], "allow": None}})
    assert set_["permissions"]["deny"] == ["shell"]
    assert "permissions" not in await inside.good("PATCH", path, {"permissions": None})


async def test_the_models_of_a_session_have_names(inside: InProcessServer) -> None:
    path = f"/api/sessions/{await inside.session(agent='helper')}"
    listed = await inside.good("GET", f"{path}/models")
    assert listed["current_model_ref"] == ""
    (own,) = listed["models"]
    assert (own["name"], own["is_current"], own["is_custom"]) == ("builtin/scripted", True, False)


async def test_usage_names_the_agent(inside: InProcessServer) -> None:
    path = f"/api/sessions/{await inside.session(agent='helper')}/agent/helper"
    ran = await inside.ask("POST", path, {"messages": [{"content": "hi"}]})
    (usage,) = [line for line in ran.body.decode().splitlines() if '"token_usage"' in line]
    assert '"agent_name":"root"' in usage
    assert "sub_agent" not in usage


async def test_a_message_may_be_wrapped_once_more(inside: InProcessServer) -> None:
    session = await inside.session(agent="helper")
    body = {"message": {"agent_name": "root", "message": {"role": "user", "content": "kept"}}}
    await inside.good("POST", f"/api/sessions/{session}/messages", body)
    assert await texts(inside, session) == ["kept"]


async def test_an_agent_has_toolsets_and_commands_as_objects(inside: InProcessServer) -> None:
    read = await inside.good("GET", "/api/agents/helper")
    # At the top level, their clients expect groups of commands and then decode nothing.
    assert "commands" not in read
    (root,) = read["agents"]
    assert root["commands"] == {"fix": {"description": "Fix a bug", "instruction": "Fix it"}}
    assert root["welcome_message"] == "Hello."
    assert read["agents"][0]["toolsets"] == [{"type": "think"}, {"type": "mcp", "name": "tickets"}]
    assert "canary" not in str(read)


async def test_the_server_is_ready_under_their_path(inside: InProcessServer) -> None:
    for path in ("/ready", "/api/ready"):
        assert await inside.good("GET", path) == {"status": "ready", "ready": True, "store_connected": True}


async def test_a_tool_result_says_whether_it_is_an_error(inside: InProcessServer) -> None:
    session = await inside.session(agent="helper")
    said = '!tool think {"thought": "x"}\n!tool none {}\n!say done'
    ran = await inside.ask(
        "POST", f"/api/sessions/{session}/agent/helper", {"messages": [{"role": "", "content": said}]}
    )
    found = [line for line in ran.body.decode().splitlines() if '"tool_call_response"' in line]
    assert ['"isError":false' in line for line in found] == [True, False]
    assert all('"result":{"output":' in line for line in found)
