"""`GET /api/usage` against the scripted model's own log: every request is counted, and none twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.api import Api, said
from tests.e2e.command import until
from tests.e2e.server import LiveServer

TOOLS = """
agents:
  root:
    model: builtin/scripted
    toolsets: [{type: think}]
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    (tmp_path / "thinker.yaml").write_text(TOOLS)
    with LiveServer(tmp_path, "builtin/scripted", str(tmp_path / "thinker.yaml")) as started:
        yield started


def asked(server: LiveServer) -> list[dict[str, Any]]:
    lines = server.prompt_log.read_text().splitlines()
    return [line for line in map(json.loads, lines) if line.get("purpose") != "title"]


def turn(api: Api, session: str, text: str, user: str) -> int:
    body = {"messages": said(text), "wait": True, "user": user}
    return api.ask("POST", f"/api/sessions/{session}/turns", body).status


def test_sums_equal_what_the_model_was_asked(server: LiveServer) -> None:
    api = Api(server)
    session = api.session("thinker")
    assert turn(api, session, "hello there", "ann") == 200
    assert (
        turn(api, session, '!tool think {"thought": "a"}\n!tool think {"thought": "b"}\n!say ok', "ann")
        == 200
    )
    assert turn(api, session, "!fail during", "bob") == 500
    assert turn(api, session, '!tool think {"thought": "c"}\n!fail during 1\n!say at last', "bob") == 500
    failed = api.get(f"/api/sessions/{session}/attempts")[-1]["id"]
    assert api.post(f"/api/sessions/{session}/attempts/{failed}/continue").status == 202
    api.until_idle(session)
    api.begun(session, "!slow 0.2\n!say " + "word " * 500)
    api.post(f"/api/sessions/{session}/cancel")
    chat = {"model": "builtin/scripted", "messages": said("without a session"), "user": "cat"}
    assert api.post("/v1/chat/completions", chat).status == 200

    def counted() -> bool:
        return bool(api.get("/api/usage?by=user&user=cat")["total"]["turns"])

    until(counted)  # after its answer, so that nobody waits for it
    total = api.get("/api/usage")["total"]
    assert total["model_requests"] == len(asked(server)) >= 9
    assert (total["attempts"], total["turns"], total["failures"]) == (7, 4, 2)
    by_user = {row["user"]: row for row in api.get("/api/usage?by=user")["rows"]}
    assert {user: row["turns"] for user, row in by_user.items() if row["turns"]} == {
        "ann": 2,
        "bob": 1,
        "cat": 1,
    }
    session_tokens = api.get(f"/api/sessions/{session}?messages=0")
    by_agent = {row["agent"]: row for row in api.get("/api/usage?by=agent&step=hour")["rows"]}
    # The failed attempt's finished step is part of the turn that adopted it, and is counted once.
    for name in ("input_tokens", "output_tokens"):
        assert by_agent["thinker"][name] == session_tokens[name]
    server.restart()
    assert Api(server).get("/api/usage")["total"] == total


@pytest.mark.parametrize(
    "query",
    ["step=week", "by=colour", "since=yesterday", "since=2020-01-01", "since=2030-01-01&until=2029-01-01"],
)
def test_a_wrong_range_is_refused(server: LiveServer, query: str) -> None:
    assert Api(server).ask("GET", f"/api/usage?{query}").refusal == (400, "invalid_request")
