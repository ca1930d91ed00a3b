"""A model that falls silent: the turn's own watchdog says so, wherever in the answer it happens."""

from pathlib import Path
from typing import Any

import pytest

from tests.surfaces.in_process_server import open_inside
from tests.wires.dialects import Chat, Says
from tests.wires.server import End, Reply, Server

pytestmark = pytest.mark.anyio

AGENT = "agents: {root: {model: p/m}}\nproviders: {p: {base_url: '%s/v1'}}\n"
WORDS = Chat().reply(Says(("one", " two")))


@pytest.mark.parametrize("stateless", [False, True], ids=["in a session", "without one"])
@pytest.mark.parametrize("pieces", [0, 1], ids=["before its first word", "in the middle"])
async def test_M2_a_model_that_falls_silent_is_a_turn_timeout(
    tmp_path: Path, pieces: int, stateless: bool
) -> None:
    async with Server() as server:
        server.say(Reply(WORDS.pieces[: 2 * pieces], end=End.HANG))
        (tmp_path / "remote.yaml").write_text(AGENT % server.url)
        async with open_inside(tmp_path, str(tmp_path / "remote.yaml"), turn_idle_timeout=0.2) as inside:
            headers: dict[str, Any] = {} if stateless else {"x_conversation_id": "c"}
            body = {"model": "remote", "messages": [{"role": "user", "content": "hello"}]}
            given = await inside.ask("POST", "/v1/chat/completions", body, **headers)
    assert (given.status, given.json["error"]["code"]) == (500, "turn_timeout")
    assert len(server.requests) == 1, "it was asked again"
