"""`a2a` toolsets on a real server, against agents that speak both versions of the protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.e2e.agent_files import AgentFiles, calls, open_agent_files
from tests.e2e.api import Api
from tests.e2e.command import until
from tests.e2e.fake_model import says
from tests.e2e.server import LiveServer

pytestmark = pytest.mark.slow


@dataclass
class Agents:
    """`cards` by path. Answers to what is posted come in order; the last one stays."""

    url: str = ""
    cards: dict[str, Any] = field(default_factory=dict)
    answers: list[Any] = field(default_factory=list)
    asked: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)

    def card(self, path: str, **card: Any) -> str:
        """The address of the agent."""
        self.cards[f"{path}/.well-known/agent-card.json"] = {
            "name": "Player",
            "description": "Plays.",
            **card,
        }
        return self.url + path

    def old(self, path: str, *answers: Any, **card: Any) -> str:
        self.answers, self.asked = list(answers), []
        return self.card(path, **{"url": f"{self.url}/rpc", **card})

    def answer(self, handler: BaseHTTPRequestHandler) -> Any:
        headers = {name.lower(): value for name, value in handler.headers.items()}
        if handler.command == "GET":
            return self.cards.get(handler.path)
        self.asked.append((headers, json.loads(handler.rfile.read(int(headers["content-length"])))))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture(scope="module")
def agents() -> Iterator[Agents]:
    agents = Agents()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            answer = agents.answer(self)
            sent = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_POST = do_GET

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=web.serve_forever, daemon=True).start()
    agents.url = f"http://127.0.0.1:{web.server_address[1]}"
    yield agents
    web.shutdown()
    web.server_close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentFiles]:
    folder = tmp_path_factory.mktemp("a2a")
    with open_agent_files(folder, "--safety", "autonomous", PLAYER_KEY="canary-77") as opened:
        yield opened


def said(text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "result": {"kind": "message", "parts": [{"kind": "text", "text": text}]}}


def state(name: str, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "result": {"kind": "task", "id": "t1", "status": {"state": name}, **more}}


def call(files: AgentFiles, tool: str, message: str = "your move", **keys: Any) -> str:
    ended = files.turn(files.agent(toolsets=[{"type": "a2a", **keys}]), calls(tool, message=message))
    return ended.results[-1]


def test_an_agent_elsewhere_is_a_tool_and_answers(files: AgentFiles, agents: Agents) -> None:
    url = agents.old("/plain", said("B2"))
    keys = {"name": "blue", "headers": {"X-Key": "${env.PLAYER_KEY}"}}
    key = files.agent(toolsets=[{"type": "a2a", "url": url, **keys}])
    ended = files.turn(key, calls("blue_player", message="your move"))
    assert (ended.tools, ended.results) == (["blue_player"], ["B2"])
    assert "Player is an agent of another server. Plays." in ended.system
    [(headers, body)] = agents.asked
    assert (headers["x-key"], body["method"]) == ("canary-77", "message/send")
    assert body["params"]["message"]["parts"] == [{"kind": "text", "text": "your move"}]
    assert headers["idempotency-key"] == body["params"]["message"]["messageId"]


def test_skills_are_tools_and_the_newer_protocol_is_preferred(files: AgentFiles, agents: Agents) -> None:
    interface = {"url": f"{agents.url}/v1", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    skills = [{"id": "move", "description": "Makes a move."}, {"id": "resign"}]
    status = {"state": "TASK_STATE_COMPLETED"}
    task = {"id": "t", "status": status, "artifacts": [{"parts": [{"text": "C3"}]}]}
    url = agents.old("/new", {"result": {"task": task}}, supportedInterfaces=[interface], skills=skills)
    key = files.agent(toolsets=[{"type": "a2a", "url": url, "tools": ["move"]}])
    ended = files.turn(key, calls("move", message="go"))
    assert (ended.tools, ended.results) == (["move"], ["C3"])
    [(headers, body)] = agents.asked
    assert (headers["a2a-version"], body["method"]) == ("1.0", "SendMessage")


def test_a_task_is_waited_for(files: AgentFiles, agents: Agents) -> None:
    done = state("completed", artifacts=[{"parts": [{"kind": "text", "text": "A1"}]}])
    url = agents.old("/slow", state("submitted"), state("working"), done)
    assert call(files, "player", url=url) == "A1"
    assert [body["method"] for _, body in agents.asked] == ["message/send", "tasks/get", "tasks/get"]
    assert len({headers["idempotency-key"] for headers, _ in agents.asked}) == 3


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (state("failed"), "error: Player failed: its task ended as failed"),
        ({"error": {"message": "no"}}, "error: Player failed: no"),
        (b"<html>", "error: Player sent no JSON: <html>"),
        (said(""), "The agent answered without text."),
    ],
)
def test_what_goes_wrong_is_an_error_for_the_model(
    files: AgentFiles, agents: Agents, answer: Any, result: str
) -> None:
    assert call(files, "player", url=agents.old("/bad", answer)) == result


def test_an_agent_that_does_not_finish_is_left_and_its_outcome_is_unknown(
    files: AgentFiles, agents: Agents
) -> None:
    key = files.agent(toolsets=[{"type": "a2a", "url": agents.old("/never", state("working")), "timeout": 1}])
    ended = files.turn(key, calls("player", message="go"))
    assert ended.results == ["error: Player did not finish within 1 s; it may still work"]
    [effect] = files.api.get(f"/api/sessions/{ended.session}/effects")
    assert effect["outcome"] == "unknown"


def test_an_agent_that_is_not_there_is_named_and_the_turn_goes_on(files: AgentFiles, agents: Agents) -> None:
    ended = files.turn(files.agent(toolsets=[{"type": "a2a", "url": f"{agents.url}/nobody"}]))
    assert ended.answer == "Done."
    assert f"The agent at {agents.url}/nobody is not available: its card was answered with 404" in (
        ended.system.replace("status ", "")
    )


def test_I41_a_card_cannot_have_the_key_sent_elsewhere(files: AgentFiles, agents: Agents) -> None:
    elsewhere = agents.url.replace("127.0.0.1", "localhost")
    url = agents.old("/thief", said("hi"), url=f"{elsewhere}/rpc")
    result = call(files, "player", url=url, headers={"X-Key": "${env.PLAYER_KEY}"})
    assert "the agent is on another host than its card" in result
    assert agents.asked == []
    assert call(files, "player", url=url) == "hi"


def test_a_person_approves_a_message_to_an_agent(files: AgentFiles, agents: Agents) -> None:
    """What it does is its own business, so it counts as destructive."""
    toolsets = [{"type": "a2a", "url": agents.old("/asks", said("ok"))}]
    key = files.serve(agents={"root": {"model": "m", "toolsets": toolsets, "safety": "balanced"}})
    running = files.turn(key, calls("player", message="go"), says("Sent."), wait=False)
    until(lambda: files.api.get(f"/api/sessions/{running.session}/pending"))
    assert agents.asked == []
    assert (
        files.api.post(f"/api/sessions/{running.session}/resume", {"confirmation": "approve"}).status == 200
    )
    files.api.until_idle(running.session)
    assert len(agents.asked) == 1


def test_a_file_from_elsewhere_reaches_no_agent_on_this_machine(tmp_path: Path, agents: Agents) -> None:
    toolset = {"type": "a2a", "url": agents.old("/near", said("hi"))}
    root = {"model": "builtin/scripted", "toolsets": [toolset]}
    agents.cards["/stranger.yaml"] = {"agents": {"root": root}}
    with LiveServer(tmp_path, f"{agents.url}/stranger.yaml") as server:
        api = Api(server)
        [listed] = api.get("/api/agents")
        api.good(api.session(listed["name"]), "hello")
        prompt = server.prompt_log.read_text()
    assert "is not available: " in prompt
    assert "blocked" in prompt
