"""The context window of a model is what its file states, or what its server works with; never a guess."""

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from lastgood.engine.providers.context_sizes import ContextSizes
from lastgood.engine.providers.provider_table import ProviderTable
from lastgood.model.agents import ModelSpec
from lastgood.outside.secrets import Secrets
from tests.wires.server import Reply, Server

pytestmark = pytest.mark.anyio

Describing = partial(Server, describes_models=True)
JSON = {"Content-Type": "application/json"}


def reply(plain: Any, status: int = 200) -> Reply:
    return Reply([json.dumps(plain).encode()], status, JSON)


def at(server: Server, provider: str = "openai", **options: Any) -> ModelSpec:
    return ModelSpec(provider, "m", base_url=f"{server.url}/v1", token_key="A_KEY", options=options)


async def learned(model: ModelSpec, server: Server, requests: int) -> int:
    """After that many requests to its server, which are all that it gets."""
    table = ProviderTable(Secrets({"A_KEY": "key-of-the-model"}))
    try:
        assert table.context_size(model) == 0
        async with asyncio.timeout(20):
            while table._sizes._tasks:
                await asyncio.sleep(0.005)
        size = table.context_size(model)
        assert len(server.requests) == requests
        return size
    finally:
        await table.close()


@pytest.mark.parametrize(
    ("entry", "size"),
    [
        ({"max_model_len": 32768}, 32768),  # vLLM
        ({"context_length": 200_000}, 200_000),  # OpenRouter
        ({"context_window": 131_072}, 131_072),  # Groq
        ({"max_context_length": 128_000}, 128_000),  # Mistral
        ({"object": "model"}, 0),
        ({"context_length": "many"}, 0),
        ({"context_length": True}, 0),
        ({"context_length": -1}, 0),
        ({"context_length": 2**60}, 0),
    ],
)
async def test_a_size_is_learned_from_the_list_of_models(entry: dict[str, Any], size: int) -> None:
    listing = {"data": [{"id": "other", "context_length": 7}, {"id": "m", **entry}]}
    async with Describing(reply(listing)) as server:
        assert await learned(at(server), server, 1) == size
        (asked,) = server.requests
        assert (asked.method, asked.path) == ("GET", "/v1/models")
        assert asked.headers["authorization"] == "Bearer key-of-the-model"


async def test_llama_cpp_counts_as_it_was_started() -> None:
    listing = {"data": [{"id": "m", "meta": {"n_ctx_train": 131_072}}]}
    async with Describing(reply(listing), reply({"default_generation_settings": {"n_ctx": 8192}})) as server:
        assert await learned(at(server), server, 2) == 8192
        assert [asked.path for asked in server.requests] == ["/v1/models", "/props"]
    async with Describing(reply(listing), reply({}, 404)) as server:
        assert await learned(at(server), server, 2) == 131_072


async def test_ollama_counts_as_it_is_loaded_else_as_it_is_configured() -> None:
    loaded = {"models": [{"name": "m:latest", "context_length": 4096}]}
    async with Describing(reply(loaded)) as server:
        assert await learned(at(server, "ollama"), server, 1) == 4096
    shown = {"parameters": "stop  x\nnum_ctx   16384", "model_info": {"llama.context_length": 131_072}}
    async with Describing(reply({"models": []}), reply(shown)) as server:
        assert await learned(at(server, "ollama"), server, 2) == 16384
        assert [(asked.method, asked.path) for asked in server.requests] == [
            ("GET", "/api/ps"),
            ("POST", "/api/show"),
        ]
    async with Describing(reply({"models": []}), reply(shown | {"parameters": ""})) as server:
        assert await learned(at(server, "ollama"), server, 2) == 0  # nobody knows what it works with


@pytest.mark.parametrize(
    "given",
    [
        reply({"error": "no"}, 404),
        Reply([b"<html>"], 200),
        reply([]),
        reply({"data": 5}),
        reply({"data": [None, {"id": "m", "meta": 5}]}),
        Reply([b"x" * 1_000_000] * 9, 200, JSON),
    ],
)
async def test_a_server_that_says_nothing_leaves_the_size_unknown(given: Reply) -> None:
    async with Describing(given) as server:
        assert await learned(at(server), server, 1) == 0


async def test_the_file_comes_first_and_nobody_is_asked() -> None:
    async with Describing(reply({})) as server:
        table = ProviderTable(Secrets({}))
        assert table.context_size(at(server, context_size=9000)) == 9000
        assert table.context_size(ModelSpec("openai", "gpt-5-mini")) == 0
        assert table.context_size(ModelSpec("anthropic", "m", options={"context_size": 7})) == 7
        assert not table._sizes._tasks
        assert server.requests == []
        await table.close()


async def test_a_size_is_requested_once_and_again_after_its_time() -> None:
    asked, now, size = list[str](), [0.0], [0]

    async def read(model: ModelSpec, path: str, body: Mapping[str, Any] | None) -> Any:
        asked.append(path)
        return {"data": [{"id": "m", "max_model_len": size[0]}]}

    sizes, model = ContextSizes(read, lambda: now[0]), ModelSpec("groq", "m")

    async def later(seconds: float) -> int:
        now[0] += seconds
        for _ in range(20):
            sizes.size(model)
        while sizes._tasks:
            await asyncio.sleep(0)
        return sizes.size(model)

    assert (await later(0), len(asked)) == (0, 1)
    size[0] = 5
    assert (await later(30), len(asked)) == (0, 1)  # unknown: asked again after a minute
    assert (await later(31), len(asked)) == (5, 2)
    assert (await later(3000), len(asked)) == (5, 2)
    size[0] = 6
    assert (await later(601), len(asked)) == (6, 3)
