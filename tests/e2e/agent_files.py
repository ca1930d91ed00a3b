"""Agent files on a real server, with a model server that keeps every request: from a key to what it does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.api import Api, Given
from tests.e2e.fake_model import FakeModel, Reply, Script, says
from tests.e2e.server import LiveServer

_NUMBERS = count()


def calls(tool: str, /, **arguments: Any) -> Reply:
    return says(calls=[(f"call-{next(_NUMBERS)}", tool, json.dumps(arguments))])


@dataclass(frozen=True)
class Ended:
    """A turn of an agent, and the requests that it sent to models."""

    given: Given
    session: str
    requests: list[dict[str, Any]]

    @property
    def system(self) -> str:
        """What the model is told before the conversation, in the last request."""
        first = self.requests[-1]["messages"][0]
        return str(first["content"]) if first["role"] == "system" else ""

    @property
    def tools(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.requests[-1].get("tools", ())]

    @property
    def results(self) -> list[str]:
        """Of tools, as the last request shows them."""
        return [one["content"] for one in self.requests[-1]["messages"] if one["role"] == "tool"]

    @property
    def answer(self) -> str:
        assert self.given.status == 200, self.given.body
        return str(self.given.json["messages"][-1]["content"])


class AgentFiles:
    """Each test serves files of its own from the folder that the server reads."""

    def __init__(self, server: LiveServer, model: FakeModel, folder: Path) -> None:
        self.server = server
        self.model = model
        self.folder = folder
        self.api = Api(server)

    def serve(self, **file: Any) -> str:
        """Returns the key of the agent. Its model is called `m`."""
        key = f"agent{next(_NUMBERS)}"
        models = {"m": self.model_at(), **file.pop("models", {})}
        text = yaml.safe_dump({"models": models, **file}, sort_keys=False)
        (self.folder / f"{key}.yaml").write_text(text)
        return key

    def model_at(self, name: str = "first", **settings: Any) -> dict[str, Any]:
        return {"provider": "openai", "model": name, "base_url": self.model.url, **settings}

    def agent(self, **keys: Any) -> str:
        """A file with one agent that has these keys."""
        return self.serve(agents={"root": {"model": "m", **keys}})

    def turn(self, agent: str, *replies: Reply, session: str = "", text: Any = "", **more: Any) -> Ended:
        """`replies`: what the model says; "Done." at the end."""
        word = f"word{next(_NUMBERS)};"
        script = self.script(word, *replies)
        session = session or self.api.session(agent, **more.pop("made_with", {}))
        given = self.api.turn(session, text or f"{word} hello", agent=agent, **more)
        return Ended(given, session, script.requests)

    def script(self, word: str, *replies: Reply) -> Script:
        """For requests whose last user message has this word."""
        return self.model.on(word, *replies, says("Done."))


@contextmanager
def open_agent_files(folder: Path, *options: str, **env: str) -> Iterator[AgentFiles]:
    agents = folder / "agents"
    agents.mkdir(parents=True)
    (agents / "first.yaml").write_text("agents: {root: {model: builtin/scripted}}\n")
    with (
        FakeModel() as model,
        LiveServer(
            folder, str(agents), options=options, env={"OPENAI_API_KEY": "sk-canary", **env}
        ) as server,
    ):
        yield AgentFiles(server, model, agents)
