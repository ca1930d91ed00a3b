"""What the keys of `api` and `openapi` say of every request: its time, its length and where it may go."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from lastgood.engine.tools.api import api_toolset
from lastgood.engine.tools.command_environment import Environment
from lastgood.engine.tools.http_call import HttpCaller
from lastgood.engine.tools.tool import ToolFailed, ToolUse
from lastgood.model.agents import ToolsetSpec
from lastgood.model.ids import AttemptId, SessionId, TurnId
from lastgood.outside.network import Network
from lastgood.outside.secrets import Secrets
from tests.outside.website import website

pytestmark = pytest.mark.anyio


async def resolve(host: str, port: int) -> list[str]:
    return ["10.0.0.1"]


#: Where the private network is this machine.
NETWORK = Network(resolve, {"10.0.0.1": "127.0.0.1"})


def use(folder: Path) -> ToolUse:
    ids = SessionId("s"), TurnId("t"), AttemptId("a")
    return ToolUse({}, "key", *ids, 1, folder, (), None, lambda text: None, frozenset())


async def get(kind: str, url: str, folder: Path, options: Mapping[str, Any]) -> str:
    spec = ToolsetSpec(kind, options=options)
    caller = HttpCaller(spec, Environment({}, Secrets({})), NETWORK)
    return await caller.call(use(folder), "GET", url, {}, None)


@pytest.mark.parametrize("kind", ["a2a", "api", "openapi"])
async def test_a_file_may_open_private_networks(kind: str, tmp_path: Path) -> None:
    async with website() as site:
        site.says("/", "from inside", headers={"Content-Type": "text/plain"})
        url = site.url("/", "wiki.example.com")
        with pytest.raises(ToolFailed, match="blocked"):
            await get(kind, url, tmp_path, {})
        assert "from inside" in await get(kind, url, tmp_path, {"allow_private_ips": True})


async def test_a_file_may_say_how_much_and_how_long(tmp_path: Path) -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with website() as site:
        site.says("/", "x" * 1000, headers={"Content-Type": "text/plain"})
        site.pages["/never"] = never
        said = await get("openapi", site.url("/"), tmp_path, {"max_output_bytes": 10})
        assert said.count("x") == 10
        with pytest.raises(ToolFailed, match="1 s"):
            await get("openapi", site.url("/never"), tmp_path, {"timeout": 1})


def test_the_model_knows_the_schema_of_the_response() -> None:
    config = {
        "name": "read",
        "endpoint": "https://a.example.com",
        "method": "GET",
        "output_schema": {"type": "array"},
    }
    spec = ToolsetSpec("api", options={"api_config": config})
    [tool] = api_toolset(spec, Environment({}, Secrets({})), NETWORK)
    assert '{"type": "array"}' in tool.description
