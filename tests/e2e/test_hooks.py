"""Hooks on a real server: over HTTP, across kill -9 with an approval in between, and from a URL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from tests.e2e.api import Api, kinds, run_path, said
from tests.e2e.command import until
from tests.e2e.server import LiveServer

pytestmark = pytest.mark.slow

RENAME = """python3 -c '
import json, sys
cmd = json.load(sys.stdin)["tool_input"]["cmd"]
print(json.dumps({"hook_specific_output": {"updated_input": {"cmd": cmd.replace("WORD", "x")}}}))'"""


def hook(line: str, **more: Any) -> dict[str, Any]:
    return {"type": "command", "command": line, **more}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def server(tmp_path: Path, log: Path) -> Iterator[LiveServer]:
    """One agent file, served from disk and from a URL."""
    note = f"""printf '%s\\n' "$(cat)" >>{log}"""
    hooks = {
        "session_start": [hook(f"{note}; echo on the main branch")],
        "user_prompt_submit": [hook("grep -q forbidden && { echo not that >&2; exit 2; }; exit 0")],
        "tool_input_transform": [
            {"matcher": "shell", "hooks": [hook(f"{note.replace('$(cat)', 't')}; {RENAME}")]}
        ],
        "pre_tool_use": [
            {"matcher": "shell", "hooks": [hook("grep -q sudo && { echo no >&2; exit 2; }; exit 0")]}
        ],
    }
    agent = {"model": "builtin/scripted", "toolsets": [{"type": "shell"}], "hooks": hooks}
    site = tmp_path / "site"
    site.mkdir()
    for path in (tmp_path / "ops.yaml", site / "remote.yaml"):
        path.write_text(yaml.safe_dump({"agents": {"root": agent}}))
    web = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(site)))
    Thread(target=web.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{web.server_address[1]}/remote.yaml"
    with LiveServer(tmp_path, str(tmp_path / "ops.yaml"), url, options=("--safety", "balanced")) as started:
        yield started
    web.shutdown()
    web.server_close()


@pytest.fixture
def api(server: LiveServer) -> Api:
    return Api(server)


def shell(command: str) -> str:
    return f"!tool shell {json.dumps({'cmd': command})}\n!say done"


def test_I39_hooks_deny_rewrite_and_add_and_those_of_a_url_do_not_run(
    api: Api, log: Path, server: LiveServer
) -> None:
    key = next(one["name"] for one in api.get("/api/agents") if "remote" in one["name"])
    remote = api.session(key)
    assert api.turn(remote, "forbidden\n!say done").status == 200
    assert not log.exists()
    prompts = server.prompt_log.read_text()
    assert "main branch" not in prompts

    session = api.session("ops")
    refused = api.turn(session, "forbidden\n!say done")
    assert refused.refusal == (422, "hook_blocked")
    assert "not that" in refused.json["error"]["message"]
    ran = api.post(run_path(session, "ops"), {"messages": said(shell("sudo true"))})
    assert "hook_blocked" in kinds(ran.frames)
    assert ("tool", "error: a hook denied shell: no") in api.history(session)
    api.good(session, "!say second")
    last = json.loads(server.prompt_log.read_text().splitlines()[-1])["prompt"]
    assert [one["content"] for one in last if one["role"] == "system"].count("on the main branch") == 1


def test_I33_an_approval_across_kill_9_is_for_the_rewritten_arguments(
    server: LiveServer, api: Api, tmp_path: Path, log: Path
) -> None:
    out = tmp_path / "out"
    session = api.session("ops")
    assert api.turn(session, shell(f"echo WORD >> {out}"), wait=False).status == 202
    until(lambda: api.get(f"/api/sessions/{session}/pending"))
    server.kill()
    server.start()
    api = Api(server)
    (question,) = api.get(f"/api/sessions/{session}/pending")
    assert json.loads(question["arguments"]) == {"cmd": f"echo x >> {out}"}
    assert api.post(f"/api/sessions/{session}/resume", {"confirmation": "approve"}).status == 200
    until(lambda: api.brief(session)["status"] == "idle")
    assert out.read_text() == "x\n"
    lines = log.read_text().splitlines()
    assert lines.count("t") == 1  # the hook of the call ran once, and its ruling was kept
    assert len(lines) == 2
    (effect,) = api.get(f"/api/sessions/{session}/effects")
    assert (effect["outcome"], effect["rewritten"]) == ("done", True)
