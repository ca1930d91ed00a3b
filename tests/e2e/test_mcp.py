"""Agents with MCP servers on a real server: each session has its own, and none of them breaks a session."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from lastgood.engine.mcp.mcp_toolset import MOST_OF_ONE_SERVER
from tests.e2e.api import Api
from tests.e2e.command import until
from tests.e2e.server import LiveServer
from tests.mcp.conftest import SERVER, alive

pytestmark = pytest.mark.slow

SMALL = SERVER.with_name("small_server.py")
STDIO = {"type": "mcp", "command": sys.executable, "args": [str(SERVER), "stdio"]}


def write_agent(folder: Path, name: str, *toolsets: dict[str, Any], **more: Any) -> Path:
    agent = {"model": "builtin/scripted", "instruction": "Be brief.", "toolsets": list(toolsets), **more}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"agents": {"root": agent}}))
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("mcp")
    other = folder / "other"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o700)
    agents = [
        write_agent(folder, "plain", STDIO),
        write_agent(folder, "twice", STDIO, {**STDIO, "command": str(other), "tools": ["add"]}),
        write_agent(
            folder, "small", {"type": "mcp", "command": sys.executable, "args": ["-I", "-S", str(SMALL)]}
        ),
        write_agent(folder, "missing", {"type": "mcp", "command": "no-such-mcp-server"}),
        write_agent(
            folder,
            "required",
            {"type": "mcp", "command": "no-such-mcp-server", "lifecycle": {"required": True}},
        ),
    ]
    with LiveServer(folder, *map(str, agents), options=("--safety", "autonomous")) as started:
        yield started


def results(api: Api, session: str) -> list[str]:
    return [text for role, text in api.history(session) if role == "tool"]


def children(server: LiveServer, program: Path = SERVER) -> set[int]:
    assert server._process is not None
    pid = server._process.pid
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if int(fields[1]) == pid and str(program).encode() in command:
                found.add(int(entry.name))
    return found


def test_a_turn_uses_a_tool_of_an_mcp_server(server: LiveServer) -> None:
    api = Api(server)
    session = api.session("plain")
    api.turn(session, '!tool add {"a": 40, "b": 2}\n!say done')
    assert results(api, session) == ["42"]


def test_each_session_has_a_server_of_its_own_and_keeps_it(server: LiveServer) -> None:
    api = Api(server)
    one, two = api.session("plain"), api.session("plain")
    for session in (one, two, one):
        api.turn(session, "!tool count {}\n!say done")
    assert (results(api, one), results(api, two)) == (["1", "2"], ["1"])
    api.delete(f"/api/sessions/{one}")
    api.delete(f"/api/sessions/{two}")


def test_a_server_killed_in_a_call_is_a_tool_error_and_the_next_turn_works(server: LiveServer) -> None:
    api = Api(server)
    session = api.session("plain")
    died = api.turn(session, "!tool die {}\n!say went on")
    assert died.status == 200
    assert "whether the call took effect is unknown" in results(api, session)[0]
    (effect,) = api.get(f"/api/sessions/{session}/effects")
    assert (effect["tool"], effect["outcome"]) == ("die", "unknown")
    api.turn(session, "!tool count {}\n!say done")
    assert results(api, session)[1].startswith("1\n[The MCP server was started again")


def test_state_that_is_gone_is_disclosed_to_the_model(server: LiveServer) -> None:
    api = Api(server)
    session = api.session("plain")
    before = children(server)
    api.turn(session, "!tool count {}\n!say done")
    (started,) = children(server) - before
    os.kill(started, signal.SIGKILL)
    # Not only a zombie: its other threads may still be ending, and its parent is told after the last one.
    until(lambda: not Path(f"/proc/{started}").exists())
    api.turn(session, "!tool count {}\n!say done")
    first, second = results(api, session)
    assert first == "1"
    assert second.startswith("1\n[The MCP server was started again")


def test_a_result_of_ten_megabytes_breaks_nothing(server: LiveServer) -> None:
    api = Api(server)
    session = api.session("plain")
    assert api.turn(session, '!tool large {"size": 10000000}\n!say done').status == 200
    (kept,) = results(api, session)
    assert kept.startswith("xxxx")
    assert len(kept) < 1_000_000
    api.turn(session, '!tool add {"a": 1, "b": 1}\n!say done')
    assert results(api, session)[-1] == "2"


def test_fifty_sessions_at_once_and_more_have_bounded_processes(server: LiveServer) -> None:
    api = Api(server)

    def one(number: int) -> tuple[str, str]:
        session = api.session("small")
        assert api.turn(session, f'!tool add {{"a": {number}, "b": 1000}}\n!say done').status == 200
        return session, results(api, session)[-1]

    with ThreadPoolExecutor(MOST_OF_ONE_SERVER) as pool:
        found = list(pool.map(one, range(MOST_OF_ONE_SERVER)))
    assert [text for _, text in found] == [str(number + 1000) for number in range(MOST_OF_ONE_SERVER)]
    assert len(children(server, SMALL)) == MOST_OF_ONE_SERVER
    assert [one(number)[1] for number in range(3)] == ["1000", "1001", "1002"]
    until(lambda: len(children(server, SMALL)) <= MOST_OF_ONE_SERVER)
    first, _ = found[0]  # whose server was stopped to make room
    api.turn(first, '!tool add {"a": 1, "b": 1}\n!say done')
    assert results(api, first)[-1].startswith("2")
    assert len(children(server, SMALL)) <= MOST_OF_ONE_SERVER


def test_a_clash_of_names_offers_both_tools(server: LiveServer) -> None:
    api = Api(server)
    session = api.session("twice")
    api.turn(session, '!tool add {"a": 1, "b": 1}\n!say done')
    api.turn(session, '!tool other_add {"a": 2, "b": 2}\n!say done')
    assert results(api, session) == ["2", "4"]


def test_a_missing_server_is_disclosed_and_the_turn_continues(server: LiveServer) -> None:
    api = Api(server)
    session = api.session("missing")
    assert api.turn(session, "hello").status == 200
    system = server.prompts()[-1]["prompt"][0]["content"]
    assert "MCP server no-such-mcp-server is not available: could not start" in system


def test_a_required_server_that_is_missing_fails_the_turn(server: LiveServer) -> None:
    api = Api(server)
    session = api.session("required")
    failed = api.turn(session, "hello there")
    assert (failed.status, failed.code) == (500, "turn_failed")
    assert "no-such-mcp-server is not available" in failed.json["message"]
    assert api.history(session) == []


def test_stopping_the_server_ends_its_mcp_servers(tmp_path: Path) -> None:
    agent = write_agent(tmp_path, "plain", STDIO)
    with LiveServer(tmp_path, str(agent), options=("--safety", "autonomous")) as started:
        api = Api(started)
        api.turn(api.session("plain"), "!tool count {}\n!say done")
        running = children(started)
        assert len(running) == 1
        assert started.stop() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in running)


def test_an_mcp_server_does_not_outlive_a_server_that_was_killed(tmp_path: Path) -> None:
    """It notices neither the end of its input nor SIGTERM."""
    odd = SERVER.with_name("odd_server.py")
    agent = write_agent(tmp_path, "odd", {**STDIO, "args": [str(odd), "stays"]})
    with LiveServer(tmp_path, str(agent), options=("--safety", "autonomous")) as started:
        api = Api(started)
        assert api.turn(api.session("odd"), "hello").status == 200
        (pid,) = children(started, odd)
        started.kill()
        until(lambda: not alive(pid))
