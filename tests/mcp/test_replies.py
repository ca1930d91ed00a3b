"""Replies that do not fit the protocol, or are too large: each fails its request and nothing else."""

from __future__ import annotations

import asyncio
import gzip
import http.server
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lastgood.engine.mcp import call_progress, http_transport, results
from lastgood.engine.tools.program_tools import LiveProgram
from lastgood.engine.tools.tool import ToolFailed
from tests.mcp.conftest import SERVER, Servers
from tests.mcp.test_servers import pid_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ODD = SERVER.parent / "odd_server.py"


def odd(servers: Servers, how: str, **options: Any) -> LiveProgram:
    return servers.program(command=sys.executable, args=[str(ODD), how], name="ledger", **options)


async def goes_on(servers: Servers, program: LiveProgram, count: int) -> None:
    """The same process answers: what it kept in memory is there."""
    assert await servers.call(program, "ledger_plain") == f"call {count}"


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (
            "bad-item",
            "MCP server ledger is not available: it sent an invalid list of tools: tools.3.inputSchema",
        ),
        ("not-a-list", "it sent an invalid list of tools: tools"),
        ("repeats-cursor", "it sent an invalid list of tools: it repeats the cursor 'again'"),
        ("endless", "it sent an invalid list of tools: it has more than 100 pages"),
    ],
)
async def test_an_invalid_list_of_tools_is_a_problem_of_its_server(
    servers: Servers, how: str, why: str
) -> None:
    program = odd(servers, how)
    assert why in (await program.offer()).problem
    pid = pid_of(program)
    assert why in (await program.offer()).problem
    assert pid_of(program) == pid


async def test_a_tool_without_a_name_is_left_out(servers: Servers) -> None:
    offer = await odd(servers, "blank-name").offer()
    assert [tool.name for tool in offer.tools] == ["ledger_plain", "ledger_odd", "ledger_add"]


async def test_a_tool_with_an_enormous_schema_is_left_out_and_named(servers: Servers) -> None:
    offer = await odd(servers, "large-schema").offer()
    assert [tool.name for tool in offer.tools] == ["ledger_plain", "ledger_odd", "ledger_add"]
    assert "large (its schema has more than 65,536 bytes)" in offer.instruction


async def test_I8_a_tool_whose_schema_cannot_be_sent_is_left_out(servers: Servers) -> None:
    """Every request would fail with it."""
    offer = await odd(servers, "deep-schema").offer()
    assert offer.problem == ""
    assert [tool.name for tool in offer.tools][:3] == ["ledger_plain", "ledger_odd", "ledger_add"]
    assert "ledger_deep" not in [tool.name for tool in offer.tools]
    assert "deep (its schema is nested too deeply" in offer.instruction
    for tool in offer.tools:
        assert tool.as_json()["function"]["name"] == tool.name


async def test_all_tools_of_a_server_together_have_a_limit(servers: Servers) -> None:
    offer = await odd(servers, "much").offer()
    assert 0 < len(offer.tools) < 40
    assert sum(len(str(tool.parameters)) for tool in offer.tools) <= 1024 * 1024
    assert "tool_17 (the tools before it have 1,048,576 bytes, the limit)" in offer.instruction


async def test_a_list_of_tools_has_the_time_limit_of_the_start(servers: Servers) -> None:
    program = odd(servers, "silent", lifecycle={"startup_timeout": 5, "call_timeout": 600})
    async with asyncio.timeout(120):
        assert "it did not respond in time" in (await program.offer()).problem


async def test_structured_content_that_does_not_fit_its_schema_is_no_error(servers: Servers) -> None:
    program = odd(servers, "schema")
    await goes_on(servers, program, 1)
    await goes_on(servers, program, 2)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("bad-content", "MCP server ledger sent an invalid result: .*text: Field required"),
        ("no-object", "MCP server ledger sent an invalid result: not a JSON-RPC message"),
        ("own-error", "MCP server ledger: the ledger is locked"),
        ("id-last", r"MCP server ledger: its reply has 34,000,\d\d\d bytes; the limit is 33,554,432"),
        ("id-between", r"MCP server ledger: its reply has 36,000,\d\d\d bytes; the limit is 33,554,432"),
    ],
)
async def test_a_reply_that_cannot_be_used_fails_its_call_at_once(
    servers: Servers, how: str, why: str
) -> None:
    program = odd(servers, how, lifecycle={"call_timeout": 600})
    async with asyncio.timeout(120):
        with pytest.raises(ToolFailed, match=why):
            await servers.call(program, "ledger_odd")
    await goes_on(servers, program, 2)


async def test_progress_is_shown_up_to_a_limit(servers: Servers) -> None:
    assert await servers.call(odd(servers, "progress"), "ledger_odd") == "call 1"
    shown = "".join(servers.said)
    assert len(shown) < call_progress.MOST_CHARACTERS + 2 * call_progress.MOST_NOTICE_CHARACTERS
    assert max(map(len, servers.said)) <= call_progress.MOST_NOTICE_CHARACTERS + 1
    assert servers.said[-1] == "[the server reports more progress than is shown]\n"


async def test_a_changed_list_of_tools_is_read_again(servers: Servers) -> None:
    program = odd(servers, "changes")
    assert len((await program.offer()).tools) == 3
    await servers.call(program, "ledger_odd")
    for _ in range(100):  # the notification was read before the result: a few rounds of the loop are enough
        await asyncio.sleep(0)
    assert "ledger_new_1" in {tool.name for tool in (await program.offer()).tools}


async def test_a_changed_list_of_tools_is_read_again_in_the_newest_revision(servers: Servers) -> None:
    program = servers.stdio()
    assert "extra" not in {tool.name for tool in (await program.offer()).tools}
    await servers.call(program, "grow")
    async with asyncio.timeout(60):  # the notification comes on a stream of its own
        while "extra" not in {tool.name for tool in (await program.offer()).tools}:
            await asyncio.sleep(0.01)


async def test_of_a_long_text_both_ends_are_kept(servers: Servers) -> None:
    said = await servers.call(servers.stdio(), "large", {"size": 7_000_000})
    assert results.MOST_CHARACTERS <= len(said) < results.MOST_CHARACTERS + 100
    assert "characters omitted" in said


def test_a_long_text_is_cut_between_words() -> None:
    text = "head " * 133_331 + "SECRET-" * 100 + " tail" * 200_000
    cut = results._cut(text)
    assert cut.count("SECRET-") in (0, 100)


async def test_I38_a_file_is_not_written_through_a_link(servers: Servers) -> None:
    program = servers.stdio()
    first = await servers.call(program, "picture")
    saved = servers.folder / first.removesuffix("]").rpartition(" ")[2]
    outside = servers.folder.parent / f"{servers.folder.name}-outside"
    outside.write_bytes(b"kept")
    saved.unlink()
    saved.symlink_to(outside)
    assert "could not be saved" in await servers.call(program, "picture")
    assert outside.read_bytes() == b"kept"


class _Site(http.server.BaseHTTPRequestHandler):
    """A server of the revision 2025-06-18 over HTTP that answers in JSON."""

    how = ""
    accepted = ""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        request = json.loads(body)
        type(self).accepted = self.headers.get("accept-encoding", "")
        if "id" not in request:
            self._answer(202, b"")
            return
        result = self._result(request["method"])
        answer = {"error": {"code": -32601, "message": "unknown"}} if result is None else {"result": result}
        text = json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}).encode()
        if self.how == "not-json" and request["method"] == "tools/call":
            text = b"<html>"
        if self.how == "own-error" and request["method"] == "tools/call":
            error = {"code": -32000, "message": "the ledger is locked"}
            text = json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}).encode()
        coding = {}
        if self.how == "compressed" and request["method"] == "tools/call":
            text, coding = gzip.compress(text), {"content-encoding": "gzip"}
        self._answer(200, text, **coding)

    def _result(self, method: str) -> Any:
        match method:
            case "initialize":
                about = {"name": "site", "version": "1"}
                return {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": about,
                }
            case "tools/list":
                return {"tools": [{"name": "read", "inputSchema": {"type": "object"}}]}
            case "tools/call":
                size = 200_000 if self.how == "large" else 10
                return {"content": [{"type": "text", "text": "x" * size}]}
            case _:
                return None

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._answer(405, b"")

    do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def site(how: str) -> Iterator[tuple[dict[str, str], type[_Site]]]:
    handler = type("_OneSite", (_Site,), {"how": how})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield {"url": f"http://127.0.0.1:{server.server_port}/mcp"}, handler
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("large", "MCP server far: its reply has more than 100,000 bytes, which is the limit"),
        ("compressed", r"MCP server far: its reply is compressed \(gzip\)"),
        ("not-json", "MCP server far sent an invalid result: not a JSON-RPC message"),
        ("own-error", "MCP server far: the ledger is locked"),
    ],
)
async def test_a_body_that_cannot_be_used_fails_its_call(
    servers: Servers, how: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_transport, "MAX_REPLY_BYTES", 100_000)
    with site(how) as (remote, handler):
        program = servers.program(remote=remote, name="far")
        with pytest.raises(ToolFailed, match=why):
            await servers.call(program, "far_read")
        assert handler.accepted == "identity"
        handler.how = ""
        assert await servers.call(program, "far_read") == "x" * 10
