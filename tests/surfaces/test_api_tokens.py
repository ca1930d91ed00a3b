"""What a token may do while things change: streams that outlive it, folders, and asking again."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lastgood.flows import tokens as tokens_flow
from lastgood.flows.tokens import Tokens
from lastgood.surfaces.http import responses
from lastgood.wiring import SystemClock
from tests.surfaces.asgi import Client
from tests.surfaces.in_process_server import AGENT, InProcessServer, open_inside

pytestmark = pytest.mark.anyio

TOKENS = {
    "owner": ("default", ("admin",)),
    "user": ("default", ("session",)),
    "watcher": ("default", ("read",)),
}


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[InProcessServer]:
    async with open_inside(tmp_path, tokens=TOKENS) as opened:
        yield opened


async def test_a_stream_ends_when_its_token_is_revoked(
    inside: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I37: what is said after that is not for it. It ends also if nothing happens in its session."""
    monkeypatch.setattr(responses, "TRUST_SECONDS", 0.01)
    monkeypatch.setattr(tokens_flow, "SECONDS_KEPT", 0.0)
    session = await inside.session("owner", title="named")
    headers = {"authorization": f"Bearer {inside.tokens['watcher']}"}
    stream = Client(inside.server.app, "GET", f"/api/sessions/{session}/events", headers, [b""])
    await inside.turn(session, "for you", "owner")
    await stream.until(b"stream_stopped")
    tokens = Tokens(inside.server.lastgood.deps.store, SystemClock())
    (watcher,) = [token for token in await tokens.list() if token.name == "watcher"]
    await tokens.revoke(watcher.id)
    received = await stream.end()
    assert b"for you" in received.body
    assert b"unauthorized" in received.body


async def test_only_an_operator_opens_folders(inside: InProcessServer, tmp_path: Path) -> None:
    body = {"agent": AGENT, "working_dir": str(tmp_path)}
    refused = await inside.ask("POST", "/api/sessions", body, "user")
    assert (refused.status, refused.code) == (403, "forbidden")
    assert (await inside.good("POST", "/api/sessions", body, "owner"))["working_dir"] == str(tmp_path)


async def test_a_repeat_with_a_key_may_wait(inside: InProcessServer) -> None:
    """I20: the same request, however its answer is wanted."""
    session = await inside.session("user")
    body = {"messages": [{"content": "once"}]}
    first = await inside.ask("POST", f"/api/sessions/{session}/turns", body, "user", idempotency_key="k")
    again = await inside.ask(
        "POST", f"/api/sessions/{session}/turns", {**body, "wait": True}, "user", idempotency_key="k"
    )
    assert (first.status, again.status) == (202, 200)
    assert again.json["id"] == first.json["turn"]


async def test_a_summary_keeps_nothing_that_a_reset_has_hidden(inside: InProcessServer) -> None:
    session = await inside.session("user")
    path = f"/api/sessions/{session}"
    await inside.turn(session, "secret", "user")
    await inside.good("POST", f"{path}/reset", token="user")
    await inside.turn(session, "after", "user")
    beyond = await inside.ask("POST", f"{path}/summaries", {"summary": "s", "first_kept_entry": 99}, "user")
    assert (beyond.status, beyond.code) == (400, "invalid_request")
    for _ in range(2):  # what an earlier summary has kept is not kept twice
        await inside.good("POST", f"{path}/summaries", {"summary": "s", "first_kept_entry": 0}, "user")
    received = await inside.turn(session, "!remember", "user")
    assert received["messages"][-1]["content"] == "I remember: after"


async def test_a_cancelled_turn_is_no_server_error_for_waiters(
    inside: InProcessServer,
) -> None:
    session = await inside.session("user")
    path = f"/api/sessions/{session}"
    body = {"messages": [{"content": "!slow 60\n!say one two"}]}
    await inside.ask("POST", f"{path}/turns", body, "user", idempotency_key="k")
    await inside.good("POST", f"{path}/cancel", token="user")
    received = await inside.ask("POST", f"{path}/turns", {**body, "wait": True}, "user", idempotency_key="k")
    assert (received.status, received.code) == (409, "turn_cancelled")
