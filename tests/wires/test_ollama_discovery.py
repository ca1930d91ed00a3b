"""`auto` where no key is there: an Ollama of this machine, if one answers, and else the scripted model."""

import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lastgood.agents.sources import parse
from lastgood.cli.banner import offline_agents
from lastgood.engine.providers.model_references import OFFLINE_SPEC
from lastgood.engine.providers.ollama_discovery import OLLAMA, find_ollama
from lastgood.engine.providers.provider_aliases import ALIASES
from lastgood.model.agents import ModelSpec
from lastgood.server import open_server
from lastgood.server.server import Server as Serving
from lastgood.settings import Settings
from tests.surfaces.asgi import ask
from tests.wires.dialects import Chat, Says
from tests.wires.server import End, Framing, Reply, Server

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json", "transfer-encoding": "chunked"}
TAGS = {
    "models": [
        {"name": "nomic-EMBED-text:latest", "details": {"family": "nomic-bert"}},
        {"name": "bge-m3:latest", "details": {"family": "bert"}},
        {"name": "hf.co/some/qwen3:0.6b", "details": {"family": "qwen3"}},
        {"name": "llama3.2:latest", "details": {"family": "llama"}},
    ]
}


def received(plain: Any, status: int = 200, **headers: str) -> Reply:
    """As HTTP/1.0 is answered: the end of the connection is the end of the answer."""
    return Reply([json.dumps(plain).encode()], status, headers, Framing.CLOSE)


def at(server: Server) -> str:
    return server.url.removeprefix("http://")


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OLLAMA_HOST", *(key for alias in ALIASES.values() for key in alias.keys)):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For who must be found, also while the machine is busy with something else."""
    monkeypatch.setattr("lastgood.engine.providers.ollama_discovery._SECONDS", 10.0)


@asynccontextmanager
async def serving(folder: Path, agent: str, ollama: str) -> AsyncIterator[Serving]:
    settings = Settings(folder, f"sqlite:///{folder / 'lastgood.db'}", shutdown_grace=0.0)
    async with open_server(settings, [parse(agent, {})], "127.0.0.1", ollama=ollama) as server:
        yield server


# -- looking -----------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
async def test_the_first_model_that_can_talk_is_taken() -> None:
    async with Server() as server:
        server.say(received(TAGS))
        found = await find_ollama(at(server))
        assert found == ModelSpec("ollama", "hf.co/some/qwen3:0.6b", base_url=f"{server.url}/v1")
    assert [(request.method, request.path) for request in server.requests] == [("GET", "/api/tags")]


def _named(*names: Any) -> Reply:
    return received({"models": [{"name": name} for name in names]})


NO_OLLAMA = {
    "it has no model": _named(),
    "it has none that can talk": _named("mxbai-embed-large"),
    "its names are none": _named(None, 5, "", "a b", "\x1b[2J", "x" * 1000),
    "it is something else": received({"hello": "world"}),
    "it says no": received(TAGS, 404),
    "it leads elsewhere": received(TAGS, 307, Location="http://127.0.0.1:1/api/tags"),
    "a page": Reply([b"<html>hello</html>"], framing=Framing.CLOSE),
    "a list": received(["models"]),
    "a model that is none": received({"models": ["a", None, {}]}),
    "models that are none": received({"models": {"name": "a"}}),
    "nothing": Reply([], framing=Framing.CLOSE),
    "it breaks off": Reply([], end=End.RESET),
    "half an answer": Reply([b'{"models": [{"name": "a'], framing=Framing.CLOSE, end=End.CUT),
    "it never ends": Reply([b" " * 65536] * 40, framing=Framing.CLOSE, end=End.HANG),
    "it hangs": Reply([], end=End.HANG),
    "it hangs after its models": Reply([b'{"models": ['], framing=Framing.CLOSE, end=End.HANG),
}


@pytest.mark.parametrize("reply", NO_OLLAMA.values(), ids=NO_OLLAMA)
async def test_other_servers_are_not_taken_for_ollama(reply: Reply) -> None:
    async with Server() as server:
        server.say(reply)
        assert await find_ollama(at(server)) is None
    assert len(server.requests) == 1, "it was not asked, or asked again"


async def test_silent_servers_are_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        began = time.monotonic()
        assert await find_ollama(f"{host}:{port}") is None
    assert time.monotonic() - began < 2, "a start waits for it"


async def test_a_missing_server_is_no_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        host, port = closed.getsockname()
    assert await find_ollama(f"{host}:{port}") is None


def test_it_is_looked_for_on_this_machine_alone() -> None:
    assert OLLAMA.startswith("127.0.0.1:")


# -- serving -----------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
async def test_the_default_agent_answers_from_an_ollama_that_is_found(tmp_path: Path) -> None:
    async with Server() as ollama:
        ollama.say(received(TAGS), Chat().reply(Says(("Hi from here.",))))
        async with serving(tmp_path, "default", at(ollama)) as server:
            [line] = await offline_agents(server)
            body = {"model": "default", "messages": [{"role": "user", "content": "hello"}]}
            given = await ask(server.app, "POST", "/v1/chat/completions", JSON, json.dumps(body).encode())
    assert "default uses ollama/hf.co/some/qwen3:0.6b" in line
    assert given.json["choices"][0]["message"]["content"] == "Hi from here."
    _, asked = ollama.requests
    assert (asked.path, asked.body["model"]) == ("/v1/chat/completions", "hf.co/some/qwen3:0.6b")


@pytest.mark.parametrize("name", ["it hangs", "it is something else"])
async def test_without_one_the_start_continues_with_the_scripted_model(tmp_path: Path, name: str) -> None:
    async with Server() as other:
        other.say(NO_OLLAMA[name])
        async with serving(tmp_path, "default", at(other)) as server:
            assert server.engine.any_model == OFFLINE_SPEC
            [line] = await offline_agents(server)
    assert "default uses the offline scripted model" in line


@pytest.mark.parametrize(("name", "value"), [("MISTRAL_API_KEY", "k"), ("OLLAMA_HOST", "127.0.0.1:1")])
async def test_a_configured_address_is_not_discovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    async with Server() as ollama:
        ollama.say(received(TAGS))
        async with serving(tmp_path, "default", at(ollama)) as server:
            assert server.engine.any_model.provider == name.partition("_")[0].lower()
    assert ollama.connections == 0


@pytest.mark.parametrize(
    ("text", "connections"),
    [
        ("agents: {root: {model: builtin/scripted}}", 0),
        ("agents: {root: {modle: auto}}", 0),
        ("agents: {root: {model: builtin/scripted, sub_agents: [b]}, b: {model: auto}}", 1),
    ],
    ids=["it names its model", "it cannot be read", "one of a team takes any"],
)
async def test_it_is_looked_for_only_where_an_agent_takes_any_model(
    tmp_path: Path, text: str, connections: int
) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "agent.yaml").write_text(text)
    async with Server() as ollama:
        ollama.say(received(TAGS))
        async with serving(tmp_path, str(folder), at(ollama)):
            pass
    assert ollama.connections == connections
