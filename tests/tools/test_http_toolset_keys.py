"""What the keys of `api` and `openapi` say of every request: its time, its length and where it may go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from lastgood.engine.tools.api import api_toolset
from lastgood.engine.tools.command_environment import Environment
from lastgood.engine.tools.http_call import HttpCaller
from lastgood.engine.tools.openapi_toolset import OpenApiToolset, read_document
from lastgood.engine.tools.program_tools import SessionPlace
from lastgood.engine.tools.tool import Tool, ToolFailed, ToolUse
from lastgood.flows.dependencies import FlowLimits
from lastgood.model.agents import ToolsetSpec
from lastgood.model.ids import DEFAULT_TENANT, AttemptId, SessionId, TurnId
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


async def described(url: str, folder: Path) -> Tool:
    """The tool of a document of a file that may reach private networks."""
    toolset = OpenApiToolset(Environment({}, Secrets({})), NETWORK)
    spec = ToolsetSpec("openapi", options={"url": url, "allow_private_ips": True})
    offer = await toolset.program(spec, SessionPlace(DEFAULT_TENANT, SessionId("s"), folder)).offer()
    [tool] = offer.tools
    return tool


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "other.example.com"])
async def test_I39_a_document_leads_to_no_address_inside_that_is_not_its_own(
    host: str, tmp_path: Path
) -> None:
    async with website() as site:
        site.says("/read", "from inside", headers={"Content-Type": "text/plain"})
        for server, is_own in ((host, False), ("wiki.example.com", True)):
            document = {"servers": [{"url": site.url("", server)}], "paths": {"/read": {"get": {}}}}
            site.says("/openapi.json", json.dumps(document), headers={"Content-Type": "application/json"})
            tool = await described(site.url("/openapi.json", "wiki.example.com"), tmp_path)
            if is_own:
                assert await tool.run(use(tmp_path)) == "from inside"
            else:
                with pytest.raises(ToolFailed, match=r"not allowed|blocked"):
                    await tool.run(use(tmp_path))


async def test_a_document_of_this_machine_may_name_another_port_of_it(tmp_path: Path) -> None:
    async with website() as site, website() as other:
        other.says("/read", "from the API", headers={"Content-Type": "text/plain"})
        document = {"servers": [{"url": other.url("", "127.0.0.1")}], "paths": {"/read": {"get": {}}}}
        site.says("/openapi.json", json.dumps(document), headers={"Content-Type": "application/json"})
        tool = await described(site.url("/openapi.json", "127.0.0.1"), tmp_path)
        assert await tool.run(use(tmp_path)) == "from the API"


async def test_an_approval_is_for_the_request_that_the_document_described(tmp_path: Path) -> None:
    """The name of the tool stays."""
    async with website() as site:
        definitions = set()
        for method, path in (("post", "/archive"), ("delete", "/archive"), ("post", "/erase")):
            document = {"paths": {path: {method: {"operationId": "archive"}}}}
            site.says("/openapi.json", json.dumps(document), headers={"Content-Type": "application/json"})
            tool = await described(site.url("/openapi.json", "127.0.0.1"), tmp_path)
            assert tool.name == "archive"
            definitions.add(tool.definition)
        assert len(definitions) == 3


async def test_I39_an_argument_is_no_part_of_the_host_that_a_variable_holds(tmp_path: Path) -> None:
    async with website() as site:
        site.says("/x", "the API", headers={"Content-Type": "text/plain"})
        config = {"endpoint": "${env.BASE}${id}", "method": "GET", "args": {"id": {}}}
        secrets = Secrets({"BASE": site.url("/x", "127.0.0.1")})
        spec = ToolsetSpec("api", options={"api_config": {"name": "read", **config}})
        [tool] = api_toolset(spec, Environment({}, secrets), NETWORK)
        assert await tool.run(use(tmp_path)) == "the API"
        secrets = Secrets({"BASE": site.url("", "127.0.0.1").rpartition(":")[0]})
        [tool] = api_toolset(spec, Environment({}, secrets), NETWORK)
        with pytest.raises(ToolFailed, match="part of the host"):
            await tool.run(replace(use(tmp_path), arguments={"id": ".evil.example"}))


def test_I40_yaml_that_merges_itself_very_often_is_refused() -> None:
    levels = [f"a{at}: &a{at} {{<<: [{', '.join([f'*a{at - 1}'] * 10)}]}}" for at in range(1, 10)]
    bomb = "\n".join(["a0: &a0 {k: v}", *levels, "paths: *a9"])
    with pytest.raises(ToolFailed, match="neither JSON nor YAML"):
        read_document(bomb.encode(), "https://a.example/x", is_local=False)
    shared = "get: &get {operationId: one}\npaths: {/a: {get: {<<: *get, summary: Reads}}}"
    [operation] = read_document(shared.encode(), "https://a.example/x", is_local=False).operations
    assert (operation.tool, operation.about) == ("one", "Reads")


def test_I8_yaml_that_is_not_json_makes_tools_all_the_same() -> None:
    body = "paths: {/a: {post: {requestBody: {content: {application/json: {schema: {default: 2026-01-01,"
    body += " enum: [!!binary aGk=, {1: 2}, !!set {x}]}}}}}}}"
    [operation] = read_document(body.encode(), "https://a.example/x", is_local=False).operations
    assert json.loads(json.dumps(operation.parameters))["properties"]["body"]["default"] is None


def test_a_request_times_out_before_its_turn_does() -> None:
    """The model reads that it took too long; a turn that ends loses everything."""
    for asked, seconds in ((None, 30), (100, 100), (10_000, 240)):
        spec = ToolsetSpec("api", options={} if asked is None else {"timeout": asked})
        assert HttpCaller(spec, Environment({}, Secrets({})), NETWORK).seconds == seconds
        assert seconds < FlowLimits().idle_seconds


async def test_a_required_argument_in_the_path_is_not_empty(tmp_path: Path) -> None:
    """`DELETE /tasks/` could mean all of them."""
    endpoint = "http://127.0.0.1:9/tasks/${id}/${more}?q=${q}"
    config = {"name": "remove", "endpoint": endpoint, "method": "DELETE", "required": ["id", "q"]}
    spec = ToolsetSpec("api", options={"api_config": {**config, "args": {"id": {}, "more": {}, "q": {}}}})
    [tool] = api_toolset(spec, Environment({}, Secrets({})), NETWORK)
    with pytest.raises(ToolFailed, match="`id` is empty"):
        await tool.run(replace(use(tmp_path), arguments={"id": "", "q": ""}))
    with pytest.raises(ToolFailed, match="cannot connect"):
        await tool.run(replace(use(tmp_path), arguments={"id": "7", "q": ""}))
