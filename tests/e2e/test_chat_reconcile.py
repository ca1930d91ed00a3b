"""X-Conversation-Mode: reconcile. A client resends its history, and where it goes on, the server goes on."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.e2e.chat_requests import BOTH, Said, ask, asking, assistant, result, tool, user
from tests.e2e.command import until
from tests.e2e.fake_model import FakeModel, Gate, breaks_off_after, refuses, says
from tests.e2e.server import LiveServer

BOTH_WAYS = pytest.mark.parametrize("stream", BOTH)
MODE = {"X-Conversation-Mode": "reconcile"}
AGAIN = {"x-stainless-retry-count": "1"}
ORPHANED = "SELECT orphaned FROM attempts JOIN sessions ON attempt_id = attempts.id WHERE conversation = ?"


class Client:
    """One that keeps its own history, and may change its mind about it."""

    def __init__(self, sdk: openai.OpenAI, name: str, stream: bool) -> None:
        self.sdk = sdk
        self.name = name
        self.options: dict[str, Any] = {"stream": stream, "conversation": name, "model": "remote"}
        self.history: list[dict[str, Any]] = []

    def say(self, text: str) -> Said:
        said = self.send(text)
        self.history += [user(text), assistant(said.text)]
        return said

    def send(self, text: str, headers: dict[str, str] | None = None, **options: Any) -> Said:
        body = [*self.history, user(text)]
        return ask(self.sdk, body, headers=MODE | (headers or {}), **self.options, **options)


@pytest.fixture(params=BOTH, ids=["not streamed", "streamed"])
def client(request: pytest.FixtureRequest, sdk: openai.OpenAI, fake: FakeModel, word: str) -> Client:
    """After two turns."""
    fake.on(word, says("one"), says("two"))
    client = Client(sdk, word, bool(request.param))
    client.say(f"{word} 1")
    client.say(f"{word} 2")
    return client


def received(word: str, *answers: str) -> list[tuple[str, Any]]:
    pairs = [[("user", f"{word} {number}"), ("assistant", text)] for number, text in enumerate(answers, 1)]
    return [one for pair in pairs for one in pair]


def test_it_continues_from_the_head(served: LiveServer, client: Client, fake: FakeModel, word: str) -> None:
    script = fake.on(word, says("three"))
    client.say(f"{word} 3")
    assert script.prompts == [[*received(word, "one", "two"), ("user", f"{word} 3")]]
    assert served.turns(word) == 3


def test_another_answer_replaces_the_last_one(
    served: LiveServer, client: Client, fake: FakeModel, word: str
) -> None:
    script = fake.on(word, says("zwei"), says("three"))
    del client.history[2:]
    client.say(f"{word} 2")
    client.say(f"{word} 3")
    assert script.prompts == [
        [*received(word, "one"), ("user", f"{word} 2")],
        [*received(word, "one", "zwei"), ("user", f"{word} 3")],
    ]
    assert served.turns(word) == 3


def test_M2_another_answer_that_fails_leaves_everything_as_it_was(
    served: LiveServer, client: Client, fake: FakeModel, word: str
) -> None:
    script = fake.on(word, breaks_off_after("lost"), says("three"))
    kept = client.history
    client.history = kept[:2]
    with pytest.raises(openai.APIError):
        client.send(f"{word} 2!")
    client.history = kept
    client.say(f"{word} 3")
    assert script.prompts[-1] == [*received(word, "one", "two"), ("user", f"{word} 3")]
    assert served.turns(word) == 3
    forks = """SELECT fork.id FROM sessions AS fork JOIN sessions AS here ON fork.forked_session = here.id
               WHERE here.conversation = ?"""
    assert served.rows(forks, word) == []


@pytest.mark.parametrize("at", [2, 4], ids=["done anew", "at the head"])
def test_after_a_repeatable_tool_a_client_may_retry(
    client: Client, fake: FakeModel, at: int, word: str
) -> None:
    fake.on(word, says("", calls=[("a", "think", '{"thought": "hm"}')]), refuses(500))
    client.history = client.history[:at]
    with pytest.raises(openai.InternalServerError) as failed:
        client.send(f"{word} again")
    assert failed.value.response.headers["x-should-retry"] == "true"


@pytest.mark.parametrize("at", [2, 4], ids=["done anew", "at the head"])
def test_I20_a_key_belongs_to_one_turn_on_every_node(
    client: Client, fake: FakeModel, at: int, word: str
) -> None:
    script = fake.on(word, says("yes"), says("no"))
    client.history = client.history[:at]
    first = client.send(f"{word} again", key=word)
    again = client.send(f"{word} again", key=word)
    assert (again.id, again.text, again.replayed) == (first.id, "yes", True)
    assert len(script.requests) == 1


@pytest.mark.parametrize("at", [2, 4], ids=["done anew", "at the head"])
def test_I20_the_same_key_attaches_to_a_running_turn_on_every_node(
    client: Client, fake: FakeModel, at: int, word: str
) -> None:
    gate = Gate()
    script = fake.on(word, says("y", gate, "es"), says("no"))
    client.history = client.history[:at]
    body = [*client.history, user(f"{word} again")]
    options: dict[str, Any] = {**client.options, "headers": MODE, "key": word}
    with asking(client.sdk, body, **options) as first:
        gate.until_reached()
        with asking(client.sdk, body, **options) as second:
            until(lambda: second.running())
            gate.open()
            assert (first.result().text, second.result().text) == ("yes", "yes")
    assert len(script.requests) == 1


@pytest.mark.parametrize("at", [2, 4], ids=["done anew", "at the head"])
def test_I21_a_retry_does_not_request_another_answer(
    client: Client, fake: FakeModel, at: int, word: str
) -> None:
    script = fake.on(word, says("yes"), says("no"))
    client.history = client.history[:at]
    first = client.send(f"{word} again")
    again = client.send(f"{word} again", AGAIN)
    assert (again.id, again.text, len(script.requests)) == (first.id, "yes", 1)


@pytest.mark.parametrize("at", [2, 4], ids=["an earlier word changed", "a new word"])
def test_a_client_that_stopped_may_speak_again_at_once(
    served: LiveServer, client: Client, fake: FakeModel, at: int, word: str
) -> None:
    """What it stopped stands in nobody's way; what it heard of it is part of its history."""
    gate = Gate()
    script = fake.on(word, says("lo", gate, "st"), says("yes"))
    messages: Any = [*client.history, user(f"{word} 3")]
    headers = {**MODE, "X-Conversation-Id": word}
    with client.sdk.chat.completions.create(
        model="remote", messages=messages, stream=True, extra_headers=headers
    ) as stream:
        assert any(chunk.choices[0].delta.content for chunk in stream)
    until(lambda: served.rows(ORPHANED, word) == [(1,)])
    if at == 4:
        client.history += [user(f"{word} 3"), assistant("lo")]
        expected = [*received(word, "one", "two", "lo"), ("user", f"{word} next")]
    else:
        client.history = client.history[:2]
        expected = [*received(word, "one"), ("user", f"{word} next")]
    assert client.send(f"{word} next").text == "yes"
    assert script.prompts[-1] == expected


def test_a_busy_conversation_is_not_created_again(client: Client, fake: FakeModel, word: str) -> None:
    gate = Gate()
    fake.on(word, says("thr", gate, "ee"))
    body = [*client.history, user(f"{word} 3")]
    with asking(client.sdk, body, headers=MODE, **client.options) as third:
        gate.until_reached()
        for at in (2, 4):
            client.history = client.history[:at]
            with pytest.raises(openai.ConflictError):
                client.send(f"{word} other")
        gate.open()
        assert third.result().text == "three"


@BOTH_WAYS
def test_calls_of_the_clients_tools_are_answered(
    served: LiveServer, sdk: openai.OpenAI, stream: bool, word: str
) -> None:
    options: dict[str, Any] = {"stream": stream, "conversation": word, "tools": [tool("weather")]}
    asked = f"{word}\n!tool weather\n!say done"
    first = ask(sdk, asked, headers=MODE, **options)
    body = [user(asked), assistant(None, first.calls), result(first.calls[0][0], "rain")]
    for _ in range(2):  # the second time, another answer is wanted
        assert ask(sdk, body, headers=MODE, **options).text == "done"
        assert served.seen(word)[-1] == [("user", asked), ("assistant", ""), ("tool", "rain")]
        assert served.turns(word) == 2
