"""Bodies that docker-agent's clients send, and fields that they read without checking for them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.surfaces.in_process_server import InProcessServer, open_inside

pytestmark = pytest.mark.anyio

FILE = """
agents:
  root:
    model: builtin/scripted
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


async def test_a_message_may_be_wrapped_once_more(inside: InProcessServer) -> None:
    session = await inside.session(agent="helper")
    body = {"message": {"agent_name": "root", "message": {"role": "user", "content": "kept"}}}
    await inside.good("POST", f"/api/sessions/{session}/messages", body)
    assert await texts(inside, session) == ["kept"]


async def test_an_agent_has_toolsets_and_commands_as_objects(inside: InProcessServer) -> None:
    read = await inside.good("GET", "/api/agents/helper")
    assert read["commands"] == {"fix": {"description": "Fix a bug"}}
    assert read["agents"][0]["toolsets"] == [{"type": "think"}, {"type": "mcp", "name": "tickets"}]
    assert "canary" not in str(read)


async def test_the_server_is_ready_under_their_path(inside: InProcessServer) -> None:
    assert await inside.good("GET", "/api/ready") == {"status": "ready"}


async def test_a_tool_result_says_whether_it_is_an_error(inside: InProcessServer) -> None:
    session = await inside.session(agent="helper")
    said = '!tool think {"thought": "x"}\n!tool none {}\n!say done'
    ran = await inside.ask(
        "POST", f"/api/sessions/{session}/agent/helper", {"messages": [{"role": "", "content": said}]}
    )
    found = [line for line in ran.body.decode().splitlines() if '"tool_call_response"' in line]
    assert ['"isError":false' in line for line in found] == [True, False]
    assert all('"result":{"output":' in line for line in found)
