"""Which MCP servers of an agent a CLI gets on a machine, and what is disclosed of the others."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from lastgood.model.agents import Safety
from lastgood.worker.cli_mcp_servers import Machine, line_of, passed_on, read_server
from lastgood.worker.job import ActivityType, Job, JobMcpServer, JobPermissions, SafetyMode
from lastgood.worker.runtimes.mcp_config import (
    acp_servers,
    claude_config_file,
    codex_config,
    without_servers,
)
from lastgood.worker.runtimes.tool_rules import CliToolCall, ToolGate, server_tool
from tests.worker.fake_runtime import FakeRuntime
from tests.worker.recorder import Recorder

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "TOKEN": "canary-77"}
FREE = Machine(Safety.AUTONOMOUS, (), ENVIRONMENT)
STDIO = JobMcpServer("git", "git", None, ("sh", "-c", "exit 0"), {"KEY": "Bearer ${env.TOKEN}"})
REMOTE = JobMcpServer("web", url="https://a.example/mcp", headers={"Authorization": "Bearer $TOKEN"})


def refusal(server: JobMcpServer, machine: Machine, folder: Path) -> str:
    ready, received = passed_on((server,), machine, folder)
    assert ready == ()
    return received[0]


def test_names_of_secrets_are_filled_from_what_the_owner_passes_on(tmp_path: Path) -> None:
    (stdio, remote), received = passed_on((STDIO, REMOTE), FREE, tmp_path)
    assert received == ()
    assert stdio.variables == {"KEY": "Bearer canary-77"}
    assert remote.headers == {"Authorization": "Bearer canary-77"}
    assert stdio.command == ("/usr/bin/sh", "-c", "exit 0")
    missing = replace(REMOTE, headers={"X": "${MISSING}"})
    assert "start the worker with --pass-env MISSING" in refusal(missing, FREE, tmp_path)


@pytest.mark.parametrize("ceiling", [Safety.STRICT, Safety.BALANCED, Safety.RESTRICTED])
def test_below_autonomous_only_named_servers_are_passed_on(tmp_path: Path, ceiling: Safety) -> None:
    closed = Machine(ceiling, (), ENVIRONMENT)
    line = line_of(STDIO)
    assert line == "KEY='Bearer ${env.TOKEN}' sh -c 'exit 0'"
    for server in (STDIO, REMOTE):
        why = refusal(server, closed, tmp_path)
        assert "has not allowed it" in why
        (shown,) = shlex.split(why.rpartition("--allow-mcp ")[2])
        opened = Machine(ceiling, (shown,), ENVIRONMENT)
        assert passed_on((server,), opened, tmp_path)[1] == ()
        other = replace(
            server, variables={**server.variables, "LD_PRELOAD": "x"}, url=server.url and "https://b"
        )
        assert passed_on((other,), opened, tmp_path)[0] == ()


def test_a_line_with_globs_and_commas_is_shown_so_that_it_matches(tmp_path: Path) -> None:
    odd = replace(STDIO, command=("sh", "a*[b]?,c"))
    why = refusal(odd, Machine(Safety.BALANCED, (), ENVIRONMENT), tmp_path)
    (shown,) = shlex.split(why.rpartition("--allow-mcp ")[2])
    assert "," not in shown
    assert passed_on((odd,), Machine(Safety.BALANCED, (shown,), ENVIRONMENT), tmp_path)[1] == ()
    wider = replace(odd, command=("sh", "aX[b]?,c"))
    assert passed_on((wider,), Machine(Safety.BALANCED, (shown,), ENVIRONMENT), tmp_path)[0] == ()


def test_I38_a_server_works_below_the_directory_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (ready,), _ = passed_on((replace(STDIO, working_dir="inner"),), FREE, tmp_path)
    assert ready.command[4:] == (str(tmp_path / "inner"), "/usr/bin/sh", "-c", "exit 0")
    for folder in ("../..", "/", "missing"):
        assert "not a folder below" in refusal(replace(STDIO, working_dir=folder), FREE, tmp_path)


def test_a_program_that_is_not_installed_is_disclosed(tmp_path: Path) -> None:
    assert "`no-such` is not installed" in refusal(replace(STDIO, command=("no-such",)), FREE, tmp_path)


def test_a_claim_is_read(tmp_path: Path) -> None:
    plain = {"name": "git", "prefix": "git", "tools": None, "command": list(STDIO.command)}
    assert read_server(plain | {"env": dict(STDIO.variables), "working_dir": ""}) == STDIO
    web = {"name": "web", "url": REMOTE.url, "headers": dict(REMOTE.headers), "tools": ["a"]}
    assert read_server(web) == replace(REMOTE, tools=("a",))


# --- as each CLI wants them ---------------------------------------------------------------------------------


def job(*servers: JobMcpServer, **more: object) -> Job:
    return Job("hello", Path("/w"), mcp_servers=servers, **more)  # type: ignore[arg-type]


def test_each_cli_gets_them_in_its_own_form() -> None:
    both = job(STDIO, replace(REMOTE, tools=("a",)), permissions=JobPermissions(SafetyMode.BALANCED))
    with claude_config_file(both) as file:
        assert file is not None
        assert file.parent.stat().st_mode & 0o077 == 0
        assert '"type":"stdio"' in file.read_text()
        assert '"type":"http"' in file.read_text()
    assert not file.exists()
    codex = codex_config(both)["mcp_servers"]
    assert (codex["git"]["command"], codex["git"]["args"]) == ("sh", ["-c", "exit 0"])
    assert codex["web"]["enabled_tools"] == ["a"]
    assert codex["web"]["default_tools_approval_mode"] == "prompt"
    stdio, remote = acp_servers(both)
    assert stdio["env"] == [{"name": "KEY", "value": "Bearer ${env.TOKEN}"}]
    assert (remote["type"], remote["url"]) == ("http", REMOTE.url)
    with claude_config_file(job()) as none:
        assert none is None


def test_what_a_cli_does_not_take_is_disclosed() -> None:
    kept, received = without_servers(job(STDIO, REMOTE), lambda server: "no" if server.url else None)
    assert kept.mcp_servers == (STDIO,)
    assert kept.disclosures == received == ("The MCP server web of this agent is not available here: no",)


@pytest.mark.anyio
async def test_a_command_runtime_discloses_that_it_takes_none(tmp_path: Path) -> None:
    command = FakeRuntime("command", tmp_path)
    done = {"write": {"type": "result", "output": "done"}}
    await command.run({"read": "job"}, done, mcp_servers=(STDIO,))
    (error,) = command.recorder.of(ActivityType.ERROR)
    assert "does not support MCP servers" in error.content
    assert "does not support MCP servers" in str(command.was_read()[0]["disclosures"])


@pytest.mark.anyio
async def test_an_acp_agent_gets_the_transports_that_it_says_it_takes(tmp_path: Path) -> None:
    agent = FakeRuntime("acp", tmp_path)
    hello = {"protocolVersion": 1, "agentCapabilities": {"mcpCapabilities": {"http": True}}}
    turn = (
        {"read": "session/prompt"},
        {
            "write": {
                "method": "session/update",
                "params": {
                    "update": {
                        "sessionUpdate": "agent_message_chunk",
                        "content": {"type": "text", "text": "hi"},
                    }
                },
            }
        },
        {"reply": {"stopReason": "end_turn"}},
    )
    servers = (
        STDIO,
        REMOTE,
        replace(REMOTE, name="old", transport="sse"),
        replace(STDIO, name="few", tools=()),
    )
    await agent.run(
        {"read": "initialize"},
        {"reply": hello},
        {"read": "session/new"},
        {"reply": {"sessionId": "s1"}},
        *turn,
        mcp_servers=servers,
    )
    opened = next(one for one in agent.was_read() if one.get("method") == "session/new")
    assert [one["name"] for one in opened["params"]["mcpServers"]] == ["git", "web"]
    errors = [one.content for one in agent.recorder.of(ActivityType.ERROR)]
    assert ["over sse" in errors[0], "cannot be limited to some tools" in errors[1]] == [True, True]


def test_the_line_of_a_remote_server_shows_its_headers_whatever_else_a_claim_says() -> None:
    """Headers are filled with the owner's secrets and sent away: none may be missing from what is allowed."""
    both = replace(REMOTE, variables={"HARMLESS": "1"}, headers={"X-Key": "${SECRET}"})
    assert line_of(both) == f"X-Key='${{SECRET}}' {both.url}"


# --- rules --------------------------------------------------------------------------------------------------


def test_a_tool_of_a_server_is_known_under_the_names_that_clis_use() -> None:
    assert server_tool((STDIO,), "mcp__git__git_log") == (STDIO, "git_log")
    assert server_tool((STDIO,), "git__git_log") == (STDIO, "git_log")
    assert server_tool((STDIO,), "github__merge") is None


def test_rules_and_the_list_of_tools_hold_for_a_servers_tool() -> None:
    server = replace(STDIO, tools=("log", "commit"))
    gate = ToolGate(
        job(server, permissions=JobPermissions(SafetyMode.AUTONOMOUS, deny=("git_commit",))), Recorder()
    )
    assert gate.allows(CliToolCall("1", "mcp__git__log", {}))
    assert not gate.allows(CliToolCall("2", "mcp__git__commit", {}))
    assert not gate.allows(CliToolCall("3", "mcp__git__push", {}))


@pytest.mark.anyio
async def test_a_question_about_a_servers_tool_has_its_name_in_lastgood() -> None:
    """Rules that were narrowed since the claim are matched by the server, and use that name."""
    recorder = Recorder()
    gate = ToolGate(job(STDIO, permissions=JobPermissions(SafetyMode.STRICT)), recorder)
    await gate.answer(CliToolCall("1", "mcp__git__push", {}))
    (asked,) = recorder.questions
    assert (asked.tool, asked.name, asked.effect) == ("mcp__git__push", "git_push", "unknown")
