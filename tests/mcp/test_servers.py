"""MCP servers as processes and over HTTP: started, called, broken, started again, ended."""

from __future__ import annotations

import asyncio
import http.server
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from lastgood.engine.mcp import mcp_toolset
from lastgood.engine.mcp.mcp_toolset import McpServer, McpToolset
from lastgood.engine.mcp.restart_note import STARTED_AGAIN
from lastgood.engine.mcp.server_connection import Connection
from lastgood.engine.mcp.server_spec import server_spec
from lastgood.engine.tools.command_environment import Environment
from lastgood.engine.tools.program_tools import LiveProgram
from lastgood.engine.tools.tool import NeedsInput, ToolFailed, ToolInterrupted
from lastgood.model.agents import ToolsetSpec
from lastgood.model.answers import Answer, AnswerAction
from lastgood.model.ids import TenantId
from lastgood.model.messages import ToolCall, assistant, tool_result
from lastgood.outside.network import Network
from lastgood.outside.secrets import Secrets
from tests.mcp.conftest import SERVER, Servers, alive, offered

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

EVERY_TOOL = {
    "add",
    "count",
    "environment",
    "where",
    "slow",
    "die",
    "large",
    "fail",
    "picture",
    "key",
    "book",
    "grow",
}


def connection_of(program: LiveProgram) -> Connection:
    assert isinstance(program, McpServer)
    assert program._connection is not None
    return program._connection


def pid_of(program: LiveProgram) -> int:
    process = connection_of(program)._process
    assert process is not None
    return process.pid


async def test_a_server_offers_its_tools_and_instructions(servers: Servers) -> None:
    offer = await servers.stdio().offer()
    assert {tool.name for tool in offer.tools} == EVERY_TOOL
    assert offer.instruction == "Sums are made with add."
    add = next(tool for tool in offer.tools if tool.name == "add")
    assert (add.description, sorted(add.parameters["properties"])) == ("Adds two numbers.", ["a", "b"])


async def test_a_call_returns_what_the_tool_returned(servers: Servers) -> None:
    program = servers.stdio()
    assert await servers.call(program, "add", {"a": 2, "b": 40}) == "42"
    with pytest.raises(ToolFailed, match="out of paper"):
        await servers.call(program, "fail")
    with pytest.raises(ToolFailed, match="valid integer"):
        await servers.call(program, "add", {"a": "x", "b": 1})


async def test_a_remote_server_in_either_transport(servers: Servers, remote: dict[str, Any]) -> None:
    program = servers.program(remote=remote, lifecycle={"backoff": {"initial": 0.001}})

    async def ready() -> None:
        for _ in range(200):
            servers.clock += 100
            if not (await program.offer()).problem:
                return
            await asyncio.sleep(0.1)

    await ready()
    assert await servers.call(program, "add", {"a": 2, "b": 40}) == "42"
    with pytest.raises(ToolFailed, match="out of paper"):
        await servers.call(program, "fail")
    with pytest.raises(ToolFailed, match="ended during this call"):
        await servers.call(program, "die")
    assert "is not available" in (await program.offer()).problem


async def test_an_older_server_that_asks_during_its_call_gets_an_error(servers: Servers) -> None:
    program = servers.program(command=sys.executable, args=[str(SERVER.parent / "older_server.py")])
    assert "needs a server of the revision 2026-07-28" in await servers.call(program, "ask_inline")


async def test_a_server_that_needs_input_stops_and_is_called_again_with_it(servers: Servers) -> None:
    program = servers.stdio()
    with pytest.raises(NeedsInput, match="For whom") as first:
        await servers.call(program, "book", {"city": "Rome"})
    named = Answer(AnswerAction.ACCEPT, content={"name": "Ann"}, state=first.value.state)
    with pytest.raises(NeedsInput, match="nights") as second:
        await servers.call(program, "book", {"city": "Rome"}, answer=named)
    counted = Answer(AnswerAction.ACCEPT, content={"nights": 2}, state=second.value.state)
    booked = await servers.call(program, "book", {"city": "Rome"}, answer=counted)
    assert booked == "room in Rome booked for Ann, 2 nights"


async def test_I39_a_server_sees_nothing_of_our_environment(servers: Servers) -> None:
    seen = set((await servers.call(servers.small(), "environment")).split())
    assert "CANARY" not in seen
    assert seen <= {"HOME", "PATH", "LANG", "LC_CTYPE", "TERM", "TMPDIR", "USER", "LOGNAME", "TZ"}
    given = servers.small(env={"PRINTER": "${env.TOKEN}"}, session="2")
    assert "PRINTER" in (await servers.call(given, "environment")).split()


async def test_a_variable_that_is_not_set_is_named(servers: Servers) -> None:
    offer = await servers.small(env={"A": "${env.MISSING}"}).offer()
    assert "MISSING, which is not set" in offer.problem


async def test_a_server_works_in_the_working_directory(servers: Servers) -> None:
    (servers.folder / "inner").mkdir()
    assert await servers.call(servers.small(), "where") == str(servers.folder)
    inner = servers.small(working_dir="inner")
    assert await servers.call(inner, "where") == str(servers.folder / "inner")
    assert "outside" in (await servers.small(working_dir="../..").offer()).problem


async def test_I39_an_untrusted_file_starts_no_command(servers: Servers, tmp_path: Path) -> None:
    proof = tmp_path / "started"
    offer = await servers.program(command="/bin/touch", args=[str(proof)], trusted=False).offer()
    assert "may start no command" in offer.problem
    assert not proof.exists()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/mcp",
        "https://169.254.169.254/latest",
        "https://10.0.0.1/mcp",
        "ftp://example.com/mcp",
        "http://example.com/mcp",
    ],
)
async def test_I39_an_untrusted_file_reaches_no_address_of_ours(servers: Servers, url: str) -> None:
    offer = await servers.program(remote={"url": url}, trusted=False).offer()
    assert "blocked" in offer.problem


async def test_I33_the_stable_key_goes_along_with_a_call(servers: Servers) -> None:
    assert await servers.call(servers.stdio(), "key", key="turn_7:2:call_1") == "turn_7:2:call_1"


async def test_progress_is_shown_and_a_cancelled_call_is_cancelled_there(servers: Servers) -> None:
    program, note = servers.stdio(), servers.folder / "note"
    call = asyncio.create_task(servers.call(program, "slow", {"note": str(note)}))
    async with asyncio.timeout(30):
        while not servers.said:
            await asyncio.sleep(0.01)
        assert servers.said == ["[1/3] one of three\n"]
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        while not note.exists() or not note.read_text():
            await asyncio.sleep(0.01)
    assert await servers.call(program, "add", {"a": 1, "b": 1}) == "2"


async def test_a_call_that_hangs_fails_at_its_time_limit(servers: Servers) -> None:
    program = servers.stdio(lifecycle={"call_timeout": 0.5})
    await program.offer()
    with pytest.raises(ToolInterrupted, match=r"timed out.*; whether the call took effect is unknown"):
        await servers.call(program, "slow", {"note": str(servers.folder / "n")})
    assert await servers.call(program, "add", {"a": 1, "b": 1}) == "2"


async def test_a_server_that_dies_in_a_call_is_a_tool_error_and_starts_again(servers: Servers) -> None:
    program = servers.small()
    await servers.call(program, "count")
    first = pid_of(program)
    with pytest.raises(ToolInterrupted, match="whether the call took effect is unknown"):
        await servers.call(program, "die")
    before = (assistant("", ToolCall("call_0", "add", "{}")), tool_result("call_0", "2"))
    assert await servers.call(program, "count", messages=before) == "1" + STARTED_AGAIN
    after = (*before, assistant("", ToolCall("call_1", "count", "{}")), tool_result("call_1", "1"))
    assert await servers.call(program, "count", messages=after, key="turn_1:2:call_2") == "2"
    assert pid_of(program) != first
    assert not alive(first)


async def test_a_first_call_says_nothing_of_restarts(servers: Servers) -> None:
    now = (assistant("", ToolCall("call_1", "count", "{}")),)
    assert await servers.call(servers.small(), "count", messages=now) == "1"


async def test_a_large_result_comes_whole_and_a_larger_one_is_a_tool_error(servers: Servers) -> None:
    program = servers.stdio()
    assert len(await servers.call(program, "large", {"size": 1_000_000})) == 1_000_000
    with pytest.raises(ToolFailed, match="the limit is"):
        await servers.call(program, "large", {"size": 20_000_000})
    assert await servers.call(program, "add", {"a": 1, "b": 1}) == "2"


async def test_lines_that_are_no_messages_are_skipped(servers: Servers) -> None:
    assert await servers.call(servers.stdio("noisy"), "add", {"a": 1, "b": 1}) == "2"


async def test_an_image_is_saved_in_the_working_directory(servers: Servers) -> None:
    said = await servers.call(servers.stdio(), "picture")
    assert said.startswith("[image of type image/png, 70 bytes, saved as mcp-files/")
    saved = servers.folder / said.removesuffix("]").rpartition(" ")[2]
    assert saved.read_bytes().startswith(b"\x89PNG")


async def test_a_server_that_does_not_start_is_named_with_its_last_output(servers: Servers) -> None:
    problem = (await servers.stdio("broken", name="ledger").offer()).problem
    assert "MCP server ledger is not available" in problem
    assert "cannot open the ledger" in problem
    missing = (await servers.program(command="no-such-mcp-server").offer()).problem
    assert "could not start 'no-such-mcp-server': No such file or directory" in missing


async def test_a_slow_start_has_a_time_limit(servers: Servers) -> None:
    program = servers.stdio("never", lifecycle={"startup_timeout": 0.3})
    assert "did not start within 0.3 s" in (await program.offer()).problem


async def test_a_start_that_fails_is_repeated_after_a_pause_that_grows(servers: Servers) -> None:
    marker = servers.folder / "starts"
    program = servers.program(
        command="/bin/sh",
        args=["-c", f"echo x >> {marker}; exit 1"],
        lifecycle={"backoff": {"initial": 10, "max": 60, "multiplier": 2}},
    )

    async def starts(at: float) -> int:
        servers.clock = at
        assert "is not available" in (await program.offer()).problem
        return len(marker.read_text().split())

    assert [await starts(at) for at in (0, 5, 11, 15, 30, 32, 75)] == [1, 1, 2, 2, 2, 3, 4]


async def test_a_server_that_may_not_restart_is_tried_once(servers: Servers) -> None:
    marker = servers.folder / "starts"
    program = servers.program(
        command="/bin/sh", args=["-c", f"echo x >> {marker}; exit 1"], lifecycle={"restart": "never"}
    )
    for at in (0, 1000, 2000):
        servers.clock = at
        await program.offer()
    assert len(marker.read_text().split()) == 1


async def dies(servers: Servers, program: LiveProgram, code: int = 3) -> None:
    with pytest.raises(ToolFailed, match="ended during this call"):
        await servers.call(program, "die", {"code": code})


@pytest.mark.parametrize(
    "lifecycle",
    [{"restart": "never"}, {"profile": "strict"}, {"profile": "best-effort"}, {"max_restarts": 0}],
)
async def test_a_server_that_may_not_restart_stays_dead(servers: Servers, lifecycle: dict[str, Any]) -> None:
    program = servers.small(lifecycle=lifecycle)
    assert isinstance(program, McpServer)
    await offered(program)
    await program.stop()  # idle: that is no death
    await dies(servers, program)
    for at in (0, 1000):
        servers.clock = at
        assert "it ended; its `lifecycle` does not allow a restart" in (await program.offer()).problem


async def test_max_restarts_counts_the_deaths_since_a_call_succeeded(servers: Servers) -> None:
    program = servers.small(lifecycle={"max_restarts": 1})
    for _ in range(3):
        await dies(servers, program)
        assert await servers.call(program, "add", {"a": 1, "b": 1}) == "2"
    await dies(servers, program)
    await dies(servers, program)
    servers.clock = 1000
    assert "its `lifecycle` allows 1 restarts in a row" in (await program.offer()).problem


async def test_a_server_that_dies_again_and_again_is_started_after_a_pause(servers: Servers) -> None:
    program = servers.small(lifecycle={"backoff": {"initial": 10}})
    await dies(servers, program)
    await dies(servers, program)
    assert "it ended" in (await program.offer()).problem
    servers.clock = 11
    assert await servers.call(program, "add", {"a": 1, "b": 1}) == "2"


async def test_on_failure_does_not_restart_a_server_that_exited_without_one(servers: Servers) -> None:
    program = servers.small(lifecycle={"restart": "on_failure"})
    await dies(servers, program)
    assert await servers.call(program, "add", {"a": 1, "b": 1}) == "2"
    await dies(servers, program, code=0)
    assert "it exited with code 0" in (await program.offer()).problem


def test_jitter_moves_a_pause_by_its_share() -> None:
    lifecycle = server_spec(
        ToolsetSpec("mcp", options={"command": "x", "lifecycle": {"backoff": {"initial": 10, "jitter": 0.5}}})
    ).lifecycle
    assert [lifecycle.pause(1, chance) for chance in (0.0, 0.5, 1.0)] == [5, 10, 15]


async def test_only_the_tools_that_the_file_names(servers: Servers) -> None:
    offer = await servers.small(tools=("add", "count"), name="sums").offer()
    assert [tool.name for tool in offer.tools] == ["sums_add", "sums_count"]
    assert await servers.call(servers.small(tools=("add",), name="sums"), "sums_add", {"a": 1, "b": 2}) == "3"


async def test_an_instruction_of_the_file_may_quote_the_servers(servers: Servers) -> None:
    own = await servers.small(instruction="Only small numbers.").offer()
    assert own.instruction == "Only small numbers."
    both = await servers.small(instruction="{ORIGINAL_INSTRUCTIONS} Only small ones.").offer()
    assert both.instruction == "Sums are made with add. Only small ones."


async def test_docker_references_need_docker(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    offer = await servers.program(ref="docker:duckduckgo").offer()
    assert "`docker` is not installed" in offer.problem
    docker = servers.folder / "docker"
    said = "unknown flag: --servers\\n\\nUsage:  docker [OPTIONS] COMMAND\\n\\nRun 'docker --help'\\n"
    docker.write_text(f'#!/bin/sh\nprintf "{said}" >&2\nexit 1\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{servers.folder}:/usr/bin:/bin")
    monkeypatch.setitem(servers.environment, "PATH", f"{servers.folder}:/usr/bin:/bin")
    offer = await servers.program(ref="docker:context7").offer()
    assert "`docker` has no command `mcp`; install the Docker MCP Toolkit" in offer.problem


class _Locked(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.server.__dict__.setdefault("asked", []).append(self.headers)
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(401)
        self.send_header("www-authenticate", 'Bearer resource_metadata="https://auth.example.com/x"')
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("transport", ["streamable", "sse"])
async def test_a_server_that_wants_OAuth_is_named_with_what_to_do(servers: Servers, transport: str) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Locked) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        remote = {"url": f"http://127.0.0.1:{site.server_port}/mcp", "transport_type": transport}
        problem = (await servers.program(remote=remote).offer()).problem
        site.shutdown()
    assert "it responded with 401 Unauthorized; it offers OAuth, which is not supported yet" in problem
    assert "send a valid token in `remote.headers`" in problem


async def test_a_remote_server_gets_the_headers_of_the_file(servers: Servers) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Locked) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        headers = {"Authorization": "Bearer ${env.TOKEN}", "X-Team": "blue"}
        remote = {"url": f"http://127.0.0.1:{site.server_port}/mcp", "headers": headers}
        await servers.program(remote=remote).offer()
        site.shutdown()
    asked = site.__dict__["asked"][0]
    assert (asked["Authorization"], asked["X-Team"]) == ("Bearer token-5511", "blue")


async def test_a_file_may_open_private_networks_to_its_servers(servers: Servers) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["10.0.0.1"]

    servers.toolset = McpToolset(Environment({}, Secrets({})), Network(resolve, {"10.0.0.1": "127.0.0.1"}))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Locked) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        remote = {"url": f"http://wiki.example.com:{site.server_port}/mcp"}
        closed = (await servers.program(remote=remote).offer()).problem
        opened = (await servers.program(remote=remote, allow_private_ips=True).offer()).problem
        site.shutdown()
    assert "is blocked" in closed
    assert "401" in opened


async def test_a_command_that_is_not_installed_is_named_with_its_package(servers: Servers) -> None:
    missing = "no-such-server-anywhere"
    offer = await servers.program(command=missing, version="example/notes@v1").offer()
    assert "`no-such-server-anywhere` is not installed; install example/notes@v1" in offer.problem
    offer = await servers.program(command=missing, version="false").offer()
    assert "install false" not in offer.problem
    there = await servers.small(version="example/notes@v1").offer()
    assert there.problem == ""


async def test_OAuth_is_rejected_with_a_reason(servers: Servers) -> None:
    offer = await servers.program(
        remote={"url": "http://127.0.0.1:9/mcp", "oauth": {"clientId": "a"}}
    ).offer()
    assert "OAuth for MCP servers is not supported yet; send a token in `headers`" in offer.problem


async def test_an_idle_server_is_stopped_and_starts_again_when_it_is_needed(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_toolset, "IDLE_SECONDS", 0.5)  # the clock of the servers stands still meanwhile
    idle, busy = servers.small(lifecycle={"restart": "never"}), servers.stdio(session="2")
    await offered(idle)
    call = asyncio.create_task(servers.call(busy, "slow", {"note": str(servers.folder / "note")}))
    async with asyncio.timeout(120):
        while not servers.said:
            await asyncio.sleep(0.01)
        pids = pid_of(idle), pid_of(busy)
        assert all(map(alive, pids))
        servers.clock = 1.0
        while alive(pids[0]):
            await asyncio.sleep(0.01)
    assert alive(pids[1])
    call.cancel()
    assert await servers.call(idle, "add", {"a": 1, "b": 1}) == "2"


async def test_too_many_of_one_server_in_a_tenant_close_the_idlest(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_toolset, "MOST_OF_ONE_SERVER", 2)
    programs = []
    for number in range(3):
        servers.clock = number
        programs.append(servers.small(session=str(number)))
        await offered(programs[-1])
    assert isinstance(programs[0], McpServer)
    assert programs[0]._connection is None
    other = servers.small(session="9", tenant=TenantId("other"))
    await offered(other)
    assert all(isinstance(one, McpServer) and one._connection for one in programs[1:])


async def test_a_burst_starts_no_more_of_one_server_than_may_run(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_toolset, "MOST_OF_ONE_SERVER", 2)
    programs = [servers.small(session=str(n), lifecycle={"restart": "never"}) for n in range(6)]
    offers = await asyncio.gather(*(one.offer() for one in programs))
    problems = [offer.problem for offer in offers if offer.problem]
    assert len(problems) == 4
    assert all("2 sessions use this server now, which is the limit" in problem for problem in problems)
    servers.clock = 1.0
    assert not (
        await programs[5].offer()
    ).problem  # it takes the place of an idle one, and did not fail before
    assert len([one for one in programs if isinstance(one, McpServer) and one._connection]) == 2


async def test_many_sessions_at_once(servers: Servers) -> None:
    programs = [
        servers.small(session=str(number), lifecycle={"startup_timeout": 200}) for number in range(12)
    ]
    sums = [servers.call(one, "add", {"a": number, "b": 0}) for number, one in enumerate(programs)]
    assert await asyncio.gather(*sums) == [str(number) for number in range(12)]


async def test_closing_ends_every_process(servers: Servers) -> None:
    programs = [servers.small(session=str(number)) for number in range(3)]
    await asyncio.gather(*(offered(one) for one in programs))
    pids = [pid_of(one) for one in programs]
    await servers.toolset.close()
    assert not any(map(alive, pids))
