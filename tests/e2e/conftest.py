"""Servers that many tests share: each uses conversations and words of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.command import AGENT
from tests.e2e.fake_model import FakeModel
from tests.e2e.server import LiveServer

#: Its model is the fake one, which fails as it is told to: Lastgood itself asks only once.
REMOTE = """
providers:
  fake:
    base_url: {url}
models:
  fake:
    provider: fake
    model: m
agents:
  root:
    model: fake
    instruction: Be good.
    toolsets:
      - type: think
    fallback:
      retries: -1
"""
#: A team on the scripted model.
TEAM = """
agents:
  root:
    model: builtin/scripted
    toolsets:
      - type: think
      - type: todo
    sub_agents: [clerk]
  clerk:
    model: builtin/scripted
    description: Files things
"""
LITTLE_TIME = ("--disconnect-grace", "1s", "--shutdown-grace", "0.5s")
TOKEN = "a-token-for-the-tests-alone"


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="package")
def fake() -> Iterator[FakeModel]:
    with FakeModel() as model:
        yield model


@pytest.fixture(scope="package")
def agents(folder: Path, fake: FakeModel) -> tuple[str, ...]:
    (folder / "remote.yaml").write_text(REMOTE.format(url=fake.url))
    (folder / "team.yaml").write_text(TEAM)
    return AGENT, str(folder / "remote.yaml"), str(folder / "team.yaml")


@pytest.fixture(scope="package")
def served(folder: Path, agents: tuple[str, ...]) -> Iterator[LiveServer]:
    """A server with its defaults."""
    with LiveServer(folder / "patient", *agents) as server:
        yield server


@pytest.fixture(scope="package")
def impatient(folder: Path, agents: tuple[str, ...]) -> Iterator[LiveServer]:
    """Gives a turn little time, and takes small requests only."""
    options = ("--turn-idle-timeout", "1s", "--turn-timeout", "3s", "--max-request-size", "100K")
    with LiveServer(folder / "impatient", *agents, options=options) as server:
        yield server


@pytest.fixture(scope="package")
def mortal(folder: Path, agents: tuple[str, ...]) -> Iterator[LiveServer]:
    """To be killed and started again. Asks for a token, and keeps one history in memory at most."""
    with LiveServer(
        folder / "mortal",
        *agents,
        options=("--token-env", "CHAT_TEST_TOKEN", *LITTLE_TIME, "--conversations-max", "1"),
        env={"CHAT_TEST_TOKEN": TOKEN},
        api_key=TOKEN,
    ) as server:
        yield server


@pytest.fixture(scope="package")
def sdk(served: LiveServer) -> Iterator[openai.OpenAI]:
    with served.client() as client:
        yield client


_numbers = itertools.count(1)


@pytest.fixture
def word() -> str:
    """A word that no other test says; also good as the name of a conversation."""
    return f"word{next(_numbers):04}x"
