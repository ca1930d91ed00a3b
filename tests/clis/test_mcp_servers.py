"""A real CLI with the MCP servers of an agent: it lists their tools, calls them, and is held to the rules."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from lastgood.worker.cli_mcp_servers import line_of
from lastgood.worker.job import ActivityType, JobAnswer, JobMcpServer, JobPermissions, SafetyMode
from tests.clis.harness import AUTONOMOUS, RealCli
from tests.clis.real_worker import RealWorker
from tests.e2e.task_server import TaskServer

pytestmark = pytest.mark.anyio

SERVER = Path(__file__).parents[1] / "mcp" / "server.py"
SUMS = JobMcpServer("sums", prefix="math", command=(sys.executable, str(SERVER), "stdio"))
#: How a model calls a tool of the server `sums`.
NAMES = {"claude": "mcp__sums__{}", "codex": "mcp__sums/{}", "goose": "sums__{}"}


def call(cli: RealCli, tool: str, **arguments: Any) -> str:
    return f"MARK-{tool} RUNTOOL {NAMES[cli.name].format(tool)} {json.dumps(arguments)}"


def results(cli: RealCli, tool: str) -> str:
    """What the model received for the call."""
    return "\n".join(cli.model.about(f"MARK-{tool}")[-1].tool_results)


async def test_a_cli_calls_a_tool_of_the_agents_server(cli: RealCli) -> None:
    server = replace(SUMS, variables={"PRINTER": "laser"})
    await cli.run(call(cli, "environment"), mcp_servers=(server,))
    assert any(NAMES[cli.name].format("add") in one.tools for one in cli.model.about("MARK-environment"))
    assert "PRINTER" in results(cli, "environment")
    assert cli.recorder.questions == []


async def test_a_person_is_asked_about_a_call_of_a_servers_tool(cli: RealCli) -> None:
    cli.recorder.answer = lambda question: JobAnswer(True)
    balanced = JobPermissions(SafetyMode.BALANCED)
    await cli.run(call(cli, "add", a=40, b=2), mcp_servers=(SUMS,), permissions=balanced)
    (question,) = cli.recorder.questions
    assert question.input == {"a": 40, "b": 2}
    assert "42" in results(cli, "add")


async def test_codex_gets_the_denial_of_a_call(codex: RealCli) -> None:
    codex.recorder.answer = lambda question: JobAnswer(False, "not on a Friday")
    balanced = JobPermissions(SafetyMode.BALANCED)
    await codex.run(call(codex, "where"), mcp_servers=(SUMS,), permissions=balanced)
    assert str(codex.folder) not in results(codex, "where")
    assert any("not on a Friday" in text for one in codex.model.conversations for text in one.users)


async def test_deny_rules_name_a_servers_tool_as_in_lastgood(cli: RealCli) -> None:
    rules = JobPermissions(SafetyMode.BALANCED, allow=("*",), deny=("math_where",))
    await cli.run(call(cli, "where"), mcp_servers=(SUMS,), permissions=rules)
    assert cli.model.about("MARK-where")[-1].tool_results
    assert str(cli.folder) not in results(cli, "where")
    assert cli.recorder.questions == []


async def test_tools_that_the_agents_file_leaves_out_cannot_be_called(cli: RealCli) -> None:
    server = replace(SUMS, tools=("add",))
    free = AUTONOMOUS if cli.name != "goose" else JobPermissions(SafetyMode.BALANCED, allow=("*",))
    await cli.run(call(cli, "where"), mcp_servers=(server,), permissions=free)
    received = [text for one in cli.model.conversations for text in one.tool_results]
    assert not any(str(cli.folder) in text for text in received)
    assert cli.recorder.questions == []


async def test_a_server_that_does_not_start_is_disclosed(codex: RealCli) -> None:
    broken = replace(SUMS, command=(sys.executable, str(SERVER), "broken"))
    result = await codex.run("MARK-broken", mcp_servers=(broken,))
    assert "MARK-broken" in result.output
    assert "sums" in codex.recorder.of(ActivityType.ERROR)[0].content
    assert "is not available here" in codex.model.about("MARK-broken")[-1].users[-1]


# --- through a server and a worker --------------------------------------------------------------------------

AGENT = {
    "model": "builtin/scripted",
    "instruction": "Be good.",
    "toolsets": [
        {
            "type": "mcp",
            "name": "sums",
            "command": sys.executable,
            "args": [str(SERVER), "stdio"],
            "env": {"PRINTER": "${PRINTER_KEY}"},
        }
    ],
}
PRINT = 'MARK-env RUNTOOL mcp__sums__environment {"of": "PRINTER"}'


def test_the_worker_fills_in_secrets_and_decides_last(claude: RealCli, tmp_path: Path) -> None:
    agent = yaml.safe_dump({"agents": {"root": AGENT}})
    task_server = TaskServer(tmp_path / "task_server", agent=agent)
    line = line_of(
        JobMcpServer("x", command=(sys.executable, str(SERVER), "stdio"), variables={"PRINTER": "*"})
    )
    with task_server.server:
        refused = RealWorker(tmp_path / "a", task_server, claude, ceiling="balanced")
        with refused:
            task_server.bind()
            session = task_server.session()
            task_server.turn(session, "MARK-refused")
        assert "has not allowed it" in claude.model.about("MARK-refused")[-1].users[-1]
        assert "--allow-mcp" in claude.model.about("MARK-refused")[-1].users[-1]
        allowed = RealWorker(
            tmp_path / "a",
            task_server,
            claude,
            *("--allow-mcp", line.replace("'*'", "*"), "--pass-env", "PRINTER_KEY"),
            ceiling="balanced",
        )
        allowed.env["PRINTER_KEY"] = "canary-88f2c1"
        with allowed:
            task = task_server.begin(session, PRINT)
            task_server.until_task(task, "waiting")
            (question,) = task_server.call("GET", f"/api/tasks/{task}/questions")
            assert "mcp__sums__environment" in str(question)
            task_server.call("POST", f"/api/tasks/{task}/questions/{question['id']}", {"allowed": True})
            task_server.until_task(task, "completed")
    assert "canary-88f2c1" in claude.model.about("MARK-env")[-1].tool_results[-1]
    database = b"".join(file.read_bytes() for file in task_server.server.data_dir.glob("lastgood.db*"))
    assert b"canary-88f2c1" not in database
