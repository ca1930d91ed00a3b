"""Tools that need an answer from a person: the turn waits, across restarts, and goes on with the answer."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from lastgood.cli.approval_prompt import value_of
from tests.e2e.api import Api, events_of, kinds
from tests.e2e.command import Command, until
from tests.e2e.server import LiveServer
from tests.e2e.test_cli import Terminal
from tests.forkserver import Process
from tests.mcp.conftest import SERVER

pytestmark = pytest.mark.slow

ASK = '!tool user_prompt {"message": "Which city?", "schema": {"type": "object", "properties": {"city": \
{"type": "string"}}, "required": ["city"]}}\n!say done'


@pytest.fixture(scope="module")
def mcp() -> Iterator[str]:
    """The URL of an MCP server that lives longer than ours."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(SERVER), "streamable-http", str(port)])
    try:
        until(lambda: _listens(port))
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def server(tmp_path: Path, mcp: str) -> Iterator[LiveServer]:
    toolsets = [{"type": "user_prompt"}, {"type": "mcp", "remote": {"url": mcp}}]
    agent = {"model": "builtin/scripted", "toolsets": toolsets}
    path = tmp_path / "asking.yaml"
    path.write_text(yaml.safe_dump({"agents": {"root": agent}, "permissions": {"ask": ["book:city=Rome"]}}))
    with LiveServer(tmp_path, str(path), options=("--safety", "autonomous")) as started:
        yield started


@pytest.fixture
def api(server: LiveServer) -> Api:
    return Api(server)


def asked(api: Api, session: str, kind: str = "elicitation") -> dict[str, Any]:
    """The question that the turn waits for."""
    until(lambda: any(one["kind"] == kind for one in api.get(f"/api/sessions/{session}/pending")))
    (question,) = api.get(f"/api/sessions/{session}/pending")
    return dict(question)


def begin(api: Api, session: str, text: str) -> None:
    begun = api.turn(session, text, wait=False)
    assert begun.status == 202, begun.body


def answer(api: Api, session: str, action: str, **body: Any) -> int:
    return api.post(f"/api/sessions/{session}/elicitation", {"action": action, **body}).status


def result(api: Api, session: str) -> str:
    until(lambda: api.brief(session)["status"] == "idle")
    return str([text for role, text in api.history(session) if role == "tool"][-1])


def test_the_answer_of_a_person_is_the_result_of_user_prompt(api: Api) -> None:
    session = api.session("asking")
    begin(api, session, ASK)
    question = asked(api, session)
    assert (question["message"], question["tool"]) == ("Which city?", "user_prompt")
    assert question["schema"]["required"] == ["city"]
    assert answer(api, session, "accept", content={"city": "Rome"}) == 200
    assert json.loads(result(api, session)) == {"action": "accept", "content": {"city": "Rome"}}
    assert answer(api, session, "accept", content={"city": "Oslo"}) == 409


def test_clients_see_the_question_and_the_call_once(api: Api) -> None:
    session = api.session("asking")
    begin(api, session, ASK)
    id = asked(api, session)["id"]
    assert answer(api, session, "accept", content={"city": "Rome"}, elicitation_id=id) == 200
    result(api, session)
    frames = events_of(api, session)
    (seen,) = [frame.data for frame in frames if frame.type == "elicitation_request"]
    assert (seen["message"], seen["mode"], seen["elicitation_id"]) == ("Which city?", "form", id)
    assert kinds(frames).count("tool_call") == 1


@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_the_model_learns_that_a_person_did_not_answer(api: Api, action: str) -> None:
    session = api.session("asking")
    begin(api, session, ASK)
    asked(api, session)
    assert answer(api, session, action) == 200
    assert f'"action":"{action}"' in result(api, session)


def test_an_invalid_answer_is_rejected_and_the_question_stays(api: Api) -> None:
    session = api.session("asking")
    assert answer(api, session, "decline") == 409
    begin(api, session, ASK)
    asked(api, session)
    assert answer(api, session, "accept") == 400
    assert answer(api, session, "accept", content={"city": 3}) == 400
    assert answer(api, session, "maybe") == 400
    assert answer(api, session, "decline", elicitation_id="9:other") == 409
    assert api.post(f"/api/sessions/{session}/resume", {"confirmation": "approve"}).status == 400
    assert answer(api, session, "decline") == 200


def test_I14_a_question_of_user_prompt_survives_kill_9_and_a_restart(server: LiveServer, api: Api) -> None:
    session = api.session("asking")
    begin(api, session, ASK)
    asked(api, session)
    server.kill()
    server.start()
    api = Api(server)
    assert answer(api, session, "accept", content={"city": "Rome"}) == 200
    assert json.loads(result(api, session))["content"] == {"city": "Rome"}


def test_I14_a_question_of_an_mcp_server_survives_kill_9_and_a_restart(server: LiveServer, api: Api) -> None:
    session = api.session("asking")
    begin(api, session, '!tool book {"city": "Oslo"}\n!say done')
    first = asked(api, session)
    assert "For whom?" in first["message"]
    assert answer(api, session, "accept", content={"name": "Ann"}) == 200
    until(lambda: "nights" in str(api.get(f"/api/sessions/{session}/pending")))
    server.kill()
    server.start()
    api = Api(server)
    assert "room in Oslo" not in str(api.get(f"/api/sessions/{session}/pending"))
    assert answer(api, session, "accept", content={"nights": 2}) == 200
    assert result(api, session) == "room in Oslo booked for Ann, 2 nights"


def test_a_call_that_was_approved_may_ask_for_input(api: Api) -> None:
    session = api.session("asking")
    begin(api, session, '!tool book {"city": "Rome"}\n!say done')
    asked(api, session, "approval")
    assert api.post(f"/api/sessions/{session}/resume", {"confirmation": "approve"}).status == 200
    asked(api, session)
    assert answer(api, session, "accept", content={"name": "Ann"}) == 200
    until(lambda: "nights" in str(api.get(f"/api/sessions/{session}/pending")))
    assert answer(api, session, "decline") == 200
    assert result(api, session) == "not booked"


def test_the_openai_api_cannot_ask_and_says_so_to_the_model(server: LiveServer) -> None:
    with server.client() as client:
        said = client.chat.completions.create(
            model="asking",
            messages=[{"role": "user", "content": ASK}],
            extra_headers={"x-conversation-id": "c1"},
        )
    assert said.choices[0].message.content == "done"
    results = [one["content"] for one in server.prompts()[-1]["prompt"] if one["role"] == "tool"]
    assert "needs an answer from a person, which is not available on this API" in results[0]


def test_I42_the_audit_record_names_each_answerer(api: Api) -> None:
    session = api.session("asking")
    begin(api, session, ASK)
    asked(api, session)
    assert answer(api, session, "accept", content={"city": "Rome"}) == 200
    result(api, session)
    (record,) = api.get(f"/api/audit?subject={session}")
    assert (record["detail"]["decision"], record["detail"]["content"]) == ("accept", {"city": "Rome"})


@pytest.fixture
def started() -> Iterator[list[Process]]:
    """Processes that do not outlive their test."""
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def answer_in_terminal(terminal: Terminal) -> None:
    with closing(terminal):
        terminal.expect("the agent asks: Which city?")
        terminal.expect("city [string; empty to decline]: ")
        terminal.send("Rome\n")
        terminal.expect('"content":{"city":"Rome"}')
        terminal.expect("done")


def test_the_terminal_asks_inline(tmp_path: Path, started: list[Process]) -> None:
    path = tmp_path / "asking.yaml"
    agent = {"model": "builtin/scripted", "toolsets": [{"type": "user_prompt"}]}
    path.write_text(yaml.safe_dump({"agents": {"root": agent}}))
    answer_in_terminal(Terminal(Command(tmp_path), started, "run", str(path), ASK))


def test_the_terminal_asks_inline_for_a_server(
    server: LiveServer, tmp_path: Path, started: list[Process]
) -> None:
    answer_in_terminal(Terminal(Command(tmp_path), started, "run", "--server", server.url, "asking", ASK))


@pytest.mark.parametrize(
    ("about", "line", "value"),
    [
        ({"type": "integer"}, "3", 3),
        ({"type": "integer"}, "three", None),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "boolean"}, "yes", True),
        ({"type": "boolean"}, "n", False),
        ({"type": "boolean"}, "maybe", None),
        ({"type": "array"}, "a, b", ["a", "b"]),
        ({"enum": ["a", "b"]}, "b", "b"),
        ({"enum": ["a", "b"]}, "c", None),
        ({}, "text", "text"),
    ],
)
def test_a_line_becomes_a_value_of_its_property(about: dict[str, Any], line: str, value: Any) -> None:
    assert value_of(about, line) == value
