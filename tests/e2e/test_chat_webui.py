"""A server with the preset for Open WebUI, and what that client really sends (see tests/webui.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests import webui
from tests.e2e.chat_requests import Said, ask, assistant, result, tool, user
from tests.e2e.fake_model import FakeModel, says
from tests.e2e.server import LiveServer

#: It offers tools of its own with every message.
TOOLS = [tool("get_current_timestamp"), tool("view_knowledge_file")]


@pytest.fixture(scope="module")
def server(folder: Path, agents: tuple[str, ...]) -> Iterator[LiveServer]:
    with LiveServer(folder / "webui", *agents, options=("--preset", "open-webui")) as server:
        yield server


class WebUi:
    def __init__(self, sdk: openai.OpenAI, chat: str) -> None:
        self.sdk = sdk
        self.headers = webui.USER_HEADERS | {webui.CHAT_ID: chat}

    def send(self, *messages: dict[str, Any]) -> Said:
        return ask(self.sdk, messages, model="remote", headers=self.headers, stream=True, tools=TOOLS)

    def background(self, about: str) -> Said:
        said = webui.TITLE.replace("hello one", about)
        return ask(self.sdk, [user(said)], model="remote", headers=self.headers, max_tokens=1000)


@pytest.fixture
def client(server: LiveServer, word: str) -> Iterator[WebUi]:
    with server.client() as sdk:
        yield WebUi(sdk, word)


def sessions(server: LiveServer) -> int:
    return int(server.rows("SELECT count(*) FROM sessions")[0][0])


def test_a_background_request_has_no_session_and_no_tools(
    server: LiveServer, client: WebUi, fake: FakeModel, word: str
) -> None:
    script = fake.on(word, says("a title"))
    before = sessions(server)
    assert client.background(word).text == "a title"
    assert (sessions(server), server.turns(word)) == (before, None)
    assert not script.requests[0].get("tools")
    client.send(user(f"{word} 1"))
    assert [one["function"]["name"] for one in script.requests[1]["tools"]] == [
        "think",
        "get_current_timestamp",
        "view_knowledge_file",
    ]


def test_a_chat_about_a_file_is_one_session(
    server: LiveServer, client: WebUi, fake: FakeModel, word: str
) -> None:
    """The sources stand in the newest message only; what the server did for the first one stays known."""
    script = fake.on(
        word,
        says("Let me see.", calls=[("a", "think", '{"thought": "hm"}')]),
        says("one"),
        says("I look.", calls=[("b", "view_knowledge_file", "{}")]),
        says("two"),
        says("three"),
    )
    before = sessions(server)
    first, second, third = webui.attached(f"{word} 1"), f"{word} 2", f"{word} 3"
    received = [user(first), assistant("Let me see.\n\none")]
    seen: list[Any] = [("user", webui.with_sources(first, "x")), ("assistant", "Let me see.")]

    client.send(user(webui.with_sources(first, "x")))
    called = client.send(*received, user(webui.with_sources(second, "x")))
    received += [user(second), assistant("I look.", called.calls), result(called.calls[0][0], "a file")]
    # By now the tool's result is a source as well.
    client.send(*received[:2], user(webui.with_sources(second, "x", "y")), *received[3:])
    client.send(*received, assistant("two"), user(webui.with_sources(third, "x")))

    prompt = script.prompts[-1]
    assert prompt[:2] == seen
    assert prompt[3:] == [
        ("assistant", "one"),
        ("user", webui.with_sources(second, "x")),
        ("assistant", "I look."),
        ("tool", "a file"),
        ("assistant", "two"),
        ("user", webui.with_sources(third, "x")),
    ]
    assert (sessions(server), server.turns(word)) == (before + 1, 4)


def test_another_answer_and_an_edited_message_are_edits_of_one_session(
    server: LiveServer, client: WebUi, fake: FakeModel, word: str
) -> None:
    script = fake.on(word, says("one"), says("two"), says("zwei"), says("else"))
    before = sessions(server)
    one = [user(f"{word} 1"), assistant("one")]
    client.send(*one[:1])
    client.send(*one, user(f"{word} 2"))
    client.send(*one, user(f"{word} 2"))
    client.send(*one, user(f"{word} 2 changed"))
    known = [("user", f"{word} 1"), ("assistant", "one")]
    assert script.prompts[2:] == [
        [*known, ("user", f"{word} 2")],
        [*known, ("user", f"{word} 2 changed")],
    ]
    assert (sessions(server), server.turns(word)) == (before + 1, 2)


def test_a_chat_that_it_does_not_keep_is_answered_from_the_request(
    server: LiveServer, client: WebUi, fake: FakeModel, word: str
) -> None:
    script = fake.on(word, says("one"), says("two"))
    before = sessions(server)
    client.headers |= {webui.CHAT_ID: f"temporary:{word}"}
    client.send(user(f"{word} 1"))
    client.send(user(f"{word} 1"), assistant("one"), user(f"{word} 2"))
    assert script.prompts[-1] == [("user", f"{word} 1"), ("assistant", "one"), ("user", f"{word} 2")]
    assert sessions(server) == before
