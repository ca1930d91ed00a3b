"""Quotas of a real server, for two tokens of one tenant: on the session API and on /v1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.api import Api
from tests.e2e.command import Command, until
from tests.e2e.server import LiveServer

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def tokens(folder: Path) -> list[str]:
    command = Command(folder)
    made = [
        command("tokens", "create", "--name", name, "--scope", "chat,session").out.strip()
        for name in ("a", "b")
    ]
    assert all(made)
    return made


@pytest.fixture
def server(folder: Path, tokens: list[str]) -> Iterator[LiveServer]:
    limits = ("--token-sessions", "2", "--tenant-bytes", "20K")
    with LiveServer(folder, options=limits, api_key=tokens[0]) as server:
        yield server


def test_a_used_up_quota_is_413_without_retry_after_and_deleting_helps(
    server: LiveServer, tokens: list[str]
) -> None:
    ours, theirs = (Api(server, token) for token in tokens)
    first, second = ours.session(), ours.session()
    for refused in (ours.post("/api/sessions", {}), ours.post(f"/api/sessions/{first}/fork", {})):
        assert refused.refusal == (413, "quota_exceeded")
        assert "delete sessions, or ask the operator to raise --token-sessions" in refused.json["message"]
        assert "retry-after" not in refused.headers
        assert refused.headers["x-should-retry"] == "false"
    with server.client() as client, pytest.raises(openai.APIStatusError) as error:
        client.chat.completions.create(
            model="builtin/scripted",
            messages=[{"role": "user", "content": "hello"}],
            extra_headers={"X-Conversation-Id": "new"},
        )
    assert (error.value.status_code, error.value.code) == (413, "quota_exceeded")

    other = theirs.session()  # another token has its own
    theirs.good(other, "x" * 30_000)
    # What is used is read again after some seconds. What is stored until then is deleted below.
    until(lambda: theirs.turn(other, "more").status == 413)
    refused = ours.turn(first, "more")
    assert refused.refusal == (413, "quota_exceeded")
    assert "--tenant-bytes" in refused.json["message"]
    assert (
        ours.post(f"/api/sessions/{first}/messages", {"message": {"role": "user", "content": "x"}}).status
        == 413
    )

    assert theirs.delete(f"/api/sessions/{other}").status == 200
    ours.good(first, "now it fits")
    assert ours.delete(f"/api/sessions/{second}").status == 200
    assert ours.post("/api/sessions", {}).status == 200
