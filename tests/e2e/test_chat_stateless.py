"""Without a conversation nothing is stored; and what is sent is what OpenAI would send."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import httpx2
import openai
import pydantic
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.e2e.chat_requests import BOTH, ask, ask_and_go, assistant, tool, user
from tests.e2e.command import AGENT, until
from tests.e2e.fake_model import FakeModel, Gate, breaks_off_after, says
from tests.e2e.server import LiveServer

BOTH_WAYS = pytest.mark.parametrize("stream", BOTH)
HELD_OR_NOT = pytest.mark.parametrize("held", [True, False])
TABLES = ("sessions", "turns", "requests", "attempts", "steps", "events")


def stored(server: LiveServer) -> list[int]:
    return [int(server.rows(f"SELECT count(*) FROM {table}")[0][0]) for table in TABLES]


# -- nothing is stored -------------------------------------------------------------


@BOTH_WAYS
def test_the_history_is_the_requests_and_nothing_is_stored(
    served: LiveServer, sdk: openai.OpenAI, stream: bool, word: str
) -> None:
    before = stored(served)
    system = {"role": "system", "content": "be good"}
    body = [system, user(word), assistant("hello"), user('!tool echo {"text": "a"}\n!remember')]
    assert ask(sdk, body, stream=stream).text == f"I remember: {word}"
    with pytest.raises(openai.APIError):
        ask(sdk, "lost\n!fail during", stream=stream)
    assert ask(sdk, "!remember\nalone", stream=stream).text == "I remember: alone"
    assert stored(served) == before
    assert served.seen(word)[0][:2] == [("user", word), ("assistant", "hello")]


def test_a_key_alone_is_refused_and_stores_nothing(served: LiveServer, sdk: openai.OpenAI, word: str) -> None:
    """There is no turn that it could be the key of; who trusts it must hear that."""
    before = stored(served)
    with pytest.raises(openai.BadRequestError, match="X-Conversation-Id"):
        ask(sdk, word, key=word)
    assert stored(served) == before


@BOTH_WAYS
def test_a_disconnect_ends_it(served: LiveServer, fake: FakeModel, stream: bool, word: str) -> None:
    """Nobody else could ever hear the answer, so the model is not asked any further."""
    gate = Gate()
    script = fake.on(word, says(gate))
    ask_and_go(served, gate, word, stream=stream)
    assert script.gone.wait(10), "the model is still asked"


def test_a_disconnect_in_mid_stream_ends_it(
    served: LiveServer, fake: FakeModel, sdk: openai.OpenAI, word: str
) -> None:
    gate = Gate()
    script = fake.on(word, says("one ", gate, "two"))
    messages: Any = [user(word)]
    with sdk.chat.completions.create(model="remote", messages=messages, stream=True) as stream:
        assert any(chunk.choices[0].delta.content for chunk in stream)
    assert script.gone.wait(10), "the model is still asked"


@BOTH_WAYS
def test_a_deadline_holds_for_them_too(
    impatient: LiveServer, fake: FakeModel, stream: bool, word: str
) -> None:
    fake.on(word, says(Gate()))
    with impatient.client() as client, pytest.raises(openai.InternalServerError) as failed:
        ask(client, word, stream=stream, model="remote")
    assert failed.value.code == "turn_timeout"


def test_many_at_once_do_not_meet(fake: FakeModel, sdk: openai.OpenAI, word: str) -> None:
    gates = [Gate() for _ in range(3)]
    for number, gate in enumerate(gates):
        fake.on(f"{word}-{number}-", says(f"{number}", gate))
    streams = []
    for number in range(3):
        messages: Any = [user(f"{word}-{number}-")]
        streams.append(sdk.chat.completions.create(model="remote", messages=messages, stream=True))
    for gate in reversed(gates):
        gate.until_reached()
        gate.open()
    for number, stream in enumerate(streams):
        with stream:
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == str(number)


# -- the shape ---------------------------------------------------------------------


def strictly(kind: type[pydantic.BaseModel], plain: Any) -> None:
    """As the SDK's own types say, with every field of the right type and none that they do not know."""
    read = kind.model_validate_json(json.dumps(plain), strict=True)
    unknown: list[Any] = [read]
    while unknown:
        one = unknown.pop()
        if isinstance(one, pydantic.BaseModel):
            assert not one.model_extra, one
            unknown += [getattr(one, name) for name in type(one).model_fields]
        elif isinstance(one, list):
            unknown += one


def post(server: LiveServer, body: dict[str, Any] | str, conversation: str | None) -> httpx2.Response:
    headers = {"Content-Type": "application/json"}
    if conversation is not None:
        headers["X-Conversation-Id"] = conversation
    content = body if isinstance(body, str) else json.dumps(body)
    with httpx2.Client(timeout=20) as client:
        return client.post(f"{server.url}/v1/chat/completions", content=content, headers=headers)


ANSWERS = {
    "plain": ("!say one two three", "stop"),
    "after tools of ours": ('!tool echo {"text": "a"}\n!say done', "stop"),
    "calls": ('!tool weather {"city": "Rome"}\n!also time {}', "tool_calls"),
}


@HELD_OR_NOT
@pytest.mark.parametrize("row", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_has_the_shape_of_openais(
    served: LiveServer, row: tuple[str, str], held: bool, word: str
) -> None:
    said, finish = row
    tools = [tool("weather"), tool("time")]
    body = {"model": AGENT, "messages": [user(said)], "tools": tools}
    answer = post(served, body, word if held else None)
    assert answer.headers["content-type"] == "application/json"
    plain = answer.json()
    strictly(ChatCompletion, plain)
    assert plain["object"] == "chat.completion"
    assert plain["model"] == AGENT
    choice = plain["choices"][0]
    assert (choice["index"], choice["finish_reason"]) == (0, finish)
    assert choice["message"]["role"] == "assistant"
    usage = plain["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0
    assert ("tool_calls" in choice["message"]) == (finish == "tool_calls")


@HELD_OR_NOT
@pytest.mark.parametrize("with_usage", [True, False])
@pytest.mark.parametrize("row", ANSWERS.values(), ids=ANSWERS)
def test_a_stream_has_the_shape_of_openais(
    served: LiveServer, row: tuple[str, str], with_usage: bool, held: bool, word: str
) -> None:
    said, finish = row
    body = {
        "model": AGENT,
        "messages": [user(said)],
        "tools": [tool("weather"), tool("time")],
        "stream": True,
        "stream_options": {"include_usage": with_usage},
    }
    answer = post(served, body, word if held else None)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"
    frames = answer.text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]
    for chunk in chunks:
        strictly(ChatCompletionChunk, chunk)
        assert chunk["object"] == "chat.completion.chunk"
    assert len({(chunk["id"], chunk["model"], chunk["created"]) for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    last = chunks[-1]
    if with_usage:
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] > 0
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
        last = chunks[-2]
    else:
        assert not any("usage" in chunk for chunk in chunks)
    assert last["choices"][0]["delta"] == {}
    ends = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert ends == [*[None] * (len(ends) - 1), finish]


def test_an_error_in_a_stream_has_the_shape_of_openais(
    served: LiveServer, fake: FakeModel, word: str
) -> None:
    fake.on(word, breaks_off_after("one "))
    body = {"model": "remote", "messages": [user(word)], "stream": True}
    frames = post(served, body, None).text.split("\n\n")
    error = json.loads(frames[-2].removeprefix("data: "))["error"]
    # OpenAI's fields, and whether it helps to send the request again: no status can say it any more.
    assert set(error) == {"message", "type", "param", "code", "retryable"}
    assert (error["type"], error["param"], error["code"]) == ("server_error", None, "model_error")


@pytest.mark.slow
def test_a_stream_begins_before_its_client_loses_patience(
    fake: FakeModel, sdk: openai.OpenAI, word: str
) -> None:
    """I25: a model may think for long. What fails after that is told in the stream."""
    gate = Gate()
    fake.on(word, breaks_off_after(gate))
    messages: Any = [user(word)]
    both = Barrier(2)  # the model breaks off when both have begun to listen

    def listen(headers: dict[str, str]) -> str | None:
        with sdk.chat.completions.create(
            model="remote", messages=messages, stream=True, extra_headers=headers, timeout=12
        ) as stream:
            chunks = iter(stream)
            assert next(chunks).choices[0].delta.role == "assistant"
            both.wait(timeout=20)
            gate.open()
            with pytest.raises(openai.APIError) as failed:
                next(chunks)
        return failed.value.code

    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(listen, [{}, {"X-Conversation-Id": word}]))
    assert codes == ["model_error"] * 2


# -- odd input ---------------------------------------------------------------------


@HELD_OR_NOT
@pytest.mark.parametrize("depth", [60, 200, 300, 900, 2000])
def test_nesting_is_never_an_internal_error(served: LiveServer, depth: int, held: bool, word: str) -> None:
    """I40: also not in what is passed on as it is."""
    body = json.dumps({"model": AGENT, "messages": [user("hi")], "tools": [tool("weather")]})
    deep = body.replace('"properties": {}', '"properties": ' + '{"a":' * depth + "{}" + "}" * depth)
    answer = post(served, deep, word if held else None)
    assert answer.status_code == (200 if depth < 90 else 400)


@BOTH_WAYS
@HELD_OR_NOT
def test_any_text_comes_back_as_it_was_said(sdk: openai.OpenAI, stream: bool, held: bool, word: str) -> None:
    text = "𝄞 e\u0301 \u200d\u2028 \ufeff \x7f \x01 \r\t \U0010ffff"
    asked = "!say-json " + json.dumps(text)
    said = ask(sdk, asked, stream=stream, conversation=word if held else None)
    assert said.text == text


def test_no_request_of_this_module_was_an_internal_error(served: LiveServer) -> None:
    until(lambda: served.running == 0)
    assert "Traceback" not in served.stderr.read_text()
    assert '"level":"error"' not in served.stderr.read_text()
