"""The OpenAI SDK, unmodified, over a real socket: what it is for works."""

from __future__ import annotations

from typing import Any

import openai
import pydantic
import pytest

from tests.e2e.chat_requests import BOTH, ask, assistant, result, tool, user
from tests.e2e.command import AGENT, SECONDS
from tests.e2e.fake_model import FakeModel, says
from tests.e2e.server import LiveServer

PIXEL = "data:image/png;base64,iVBORw0KGgo="
BOTH_WAYS = pytest.mark.parametrize("stream", BOTH)
#: With a conversation the server knows what was said; without one the client sends it all again.
HELD_OR_NOT = pytest.mark.parametrize("held", [True, False])


# -- plain talk --------------------------------------------------------------------


def test_each_agent_and_each_other_member_of_its_team_is_a_model(sdk: openai.OpenAI) -> None:
    listed = sdk.models.list()
    assert [model.id for model in listed] == [AGENT, "remote", "team", "team/clerk"]
    assert {(model.object, model.owned_by) for model in listed} == {("model", "lastgood")}


@BOTH_WAYS
def test_chat_is_answered_and_the_answer_remembered(sdk: openai.OpenAI, stream: bool, word: str) -> None:
    said = ask(sdk, f"my name is {word}", stream=stream, conversation=word)
    assert (said.text, said.finish, said.calls) == (f"You said: my name is {word}", "stop", [])
    again = ask(sdk, "!remember", stream=stream, conversation=word)
    assert again.text == f"I remember: my name is {word}"
    assert again.headers["x-conversation-id"] == word
    assert again.headers["x-session-id"] == said.headers["x-session-id"]
    assert again.headers["x-turn-id"] == again.id != said.id
    assert again.headers["x-request-id"]


@pytest.mark.anyio
async def test_async_client_gets_the_same(served: LiveServer, word: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        assert AGENT in [model.id async for model in client.models.list()]
        headers = {"X-Conversation-Id": word}
        messages: Any = [user(f"I am {word}")]
        whole = await client.chat.completions.create(model=AGENT, messages=messages, extra_headers=headers)
        assert whole.choices[0].message.content == f"You said: I am {word}"
        messages = [user("!remember")]
        stream = await client.chat.completions.create(
            model=AGENT, messages=messages, extra_headers=headers, stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == f"I remember: I am {word}"


def test_raw_stream_is_read_line_by_line(sdk: openai.OpenAI, word: str) -> None:
    messages: Any = [user(word)]
    with sdk.chat.completions.with_streaming_response.create(
        model=AGENT, messages=messages, stream=True
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"


def test_the_sdks_own_accumulator_understands_the_stream(sdk: openai.OpenAI) -> None:
    messages: Any = [user('!tool weather {"city": "Rome"}')]
    tools: Any = [tool("weather")]
    with sdk.chat.completions.stream(model=AGENT, messages=messages, tools=tools) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.choices[0].message.tool_calls is not None
    assert final.choices[0].message.tool_calls[0].function.arguments == '{"city": "Rome"}'


def test_a_member_of_a_team_can_be_asked(sdk: openai.OpenAI, word: str) -> None:
    assert ask(sdk, word, model="team/clerk").text == f"You said: {word}"


# -- the client's own tools --------------------------------------------------------


@BOTH_WAYS
@HELD_OR_NOT
def test_a_call_of_the_clients_tool_stays_open_until_it_is_answered(
    served: LiveServer, sdk: openai.OpenAI, stream: bool, held: bool, word: str
) -> None:
    tools = [tool("weather")]
    asked = f'{word}\n!tool weather {{"city": "Rome"}}\n!say done'
    conversation = word if held else None
    first = ask(sdk, asked, stream=stream, conversation=conversation, tools=tools)
    assert (first.finish, first.text) == ("tool_calls", "")
    ((id, name, arguments),) = first.calls
    assert (name, arguments) == ("weather", '{"city": "Rome"}')
    body = [user(asked), assistant(None, first.calls), result(id, "rain")]
    second = ask(sdk, body, stream=stream, conversation=conversation, tools=tools)
    assert (second.finish, second.text, second.calls) == ("stop", "done", [])
    assert served.seen(word)[-1] == [("user", asked), ("assistant", ""), ("tool", "rain")]


def test_the_sdks_own_message_can_be_sent_back_as_it_is(
    served: LiveServer, sdk: openai.OpenAI, word: str
) -> None:
    """The usual loop of a client with tools."""
    messages: Any = [user(f"{word}\n!tool weather\n!tool time\n!say done")]
    tools: Any = [tool("weather"), tool("time")]
    while True:
        answer = sdk.chat.completions.create(
            model=AGENT, messages=messages, tools=tools, extra_headers={"X-Conversation-Id": word}
        )
        message = answer.choices[0].message
        if not message.tool_calls:
            break
        messages.append(message)
        messages += [result(call.id, "fine") for call in message.tool_calls]
    assert message.content == "done"
    roles = [role for role, _ in served.seen(word)[-1]]
    assert roles == ["user", "assistant", "tool", "assistant", "tool"]


@BOTH_WAYS
def test_parallel_calls_are_answered_together_in_any_order(
    served: LiveServer, sdk: openai.OpenAI, stream: bool, word: str
) -> None:
    tools = [tool("weather"), tool("time")]
    asked = f"{word}\n!tool weather\n!also time\n!say done"
    first = ask(sdk, asked, stream=stream, conversation=word, tools=tools)
    assert [name for _, name, _ in first.calls] == ["weather", "time"]
    weather, time = (id for id, _, _ in first.calls)
    body = [user(asked), assistant(None, first.calls), result(time, "noon"), result(weather, "rain")]
    assert ask(sdk, body, stream=stream, conversation=word, tools=tools).text == "done"
    assert served.seen(word)[-1] == [
        ("user", asked),
        ("assistant", ""),
        ("tool", "noon"),
        ("tool", "rain"),
    ]


@BOTH_WAYS
def test_tools_of_the_agents_file_run_here_and_never_show(
    served: LiveServer, sdk: openai.OpenAI, stream: bool, word: str
) -> None:
    """One response calls both kinds: ours is run, theirs stays open; the model sees both results."""
    tools = [tool("weather")]
    asked = f'{word}\n!tool think {{"thought": "hm"}}\n!also weather {{}}\n!say done'
    first = ask(sdk, asked, stream=stream, conversation=word, model="team", tools=tools)
    assert first.finish == "tool_calls"
    ((id, name, _),) = first.calls
    assert name == "weather"
    body = [user(asked), assistant(None, first.calls), result(id, "rain")]
    second = ask(sdk, body, stream=stream, conversation=word, model="team", tools=tools)
    assert (second.text, second.calls, second.finish) == ("done", [], "stop")
    assert served.seen(word)[-1] == [
        ("user", asked),
        ("assistant", ""),
        ("tool", "Thoughts:\nhm"),
        ("tool", "rain"),
    ]


@BOTH_WAYS
@HELD_OR_NOT
def test_a_turn_with_tools_of_ours_alone_looks_like_plain_talk(
    sdk: openai.OpenAI, stream: bool, held: bool, word: str
) -> None:
    asked = '!tool think {"thought": "hm"}\n!tool think {"thought": "so"}\n!say done'
    said = ask(sdk, asked, stream=stream, conversation=word if held else None, model="team")
    assert (said.text, said.calls, said.finish) == ("done", [], "stop")


@pytest.mark.parametrize(
    "results",
    [
        [("call-0-0", "a")],
        [("call-0-0", "a"), ("call-0-0", "b")],
        [("call-0-0", "a"), ("call-0-1", "b"), ("call-0-2", "c")],
        [("call-0-0", "a"), ("somebody-elses", "b")],
    ],
    ids=["one is missing", "one is there twice", "one too many", "an unknown one"],
)
def test_results_must_be_those_of_the_open_calls(
    served: LiveServer, sdk: openai.OpenAI, results: list[tuple[str, str]], word: str
) -> None:
    tools = [tool("weather"), tool("time")]
    asked = f"{word}\n!tool weather\n!also time"
    first = ask(sdk, asked, conversation=word, tools=tools)
    given = [result(id, text) for id, text in results]
    with pytest.raises(openai.BadRequestError, match="one result for each") as refused:
        ask(sdk, [user(asked), assistant(None, first.calls), *given], conversation=word, tools=tools)
    assert refused.value.code == "invalid_request"
    assert (served.turns(word), len(served.seen(word))) == (1, 1)  # I13


def test_a_message_instead_of_a_tool_result_is_read(
    served: LiveServer, sdk: openai.OpenAI, word: str
) -> None:
    """I4: the call gets a result all the same, for a prompt without one is refused by providers."""
    ask(sdk, f"{word}\n!tool weather", conversation=word, tools=[tool("weather")])
    assert ask(sdk, "never mind", conversation=word).text == "You said: never mind"
    roles = [role for role, _ in served.seen(word)[-1]]
    assert roles == ["user", "assistant", "tool", "user"]


# -- what is passed on to the model ------------------------------------------------


def test_parameters_reach_the_model(fake: FakeModel, sdk: openai.OpenAI, word: str) -> None:
    script = fake.on(word, says("yes"))
    asked: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.25,
        "frequency_penalty": -1,
        "presence_penalty": 1.5,
        "seed": 7,
        "stop": ["END"],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "verbosity": "high",
        "extra_body": {"top_k": 5, "min_p": 0.5, "repetition_penalty": 1.5},
    }
    ask(sdk, word, model="remote", tools=[tool("weather")], max_completion_tokens=50, **asked)
    ask(sdk, word, model="remote", max_tokens=60, stop="END")
    first, second = script.requests
    asked |= asked.pop("extra_body")
    assert {name: first[name] for name in asked} == asked
    assert (first["max_tokens"], second["max_tokens"]) == (50, 60)
    assert second["stop"] == ["END"]
    assert [one["function"]["name"] for one in first["tools"]] == ["think", "weather"]
    assert first["messages"] == [{"role": "system", "content": "Be good."}, user(word)]


class Answer(pydantic.BaseModel):
    city: str


def test_structured_output_is_requested_and_parsed(fake: FakeModel, sdk: openai.OpenAI, word: str) -> None:
    script = fake.on(word, says('{"city": ', '"Rome"}'))
    messages: Any = [user(word)]
    parsed = sdk.chat.completions.parse(model="remote", messages=messages, response_format=Answer)
    assert parsed.choices[0].message.parsed == Answer(city="Rome")
    received = script.requests[0]["response_format"]
    assert (received["type"], received["json_schema"]["name"], received["json_schema"]["strict"]) == (
        "json_schema",
        "Answer",
        True,
    )
    assert received["json_schema"]["schema"]["properties"] == {"city": {"title": "City", "type": "string"}}


@BOTH_WAYS
def test_images_and_files_reach_the_model_and_stay_in_the_history(
    fake: FakeModel, sdk: openai.OpenAI, stream: bool, word: str
) -> None:
    script = fake.on(word, says("a pixel"))
    parts = [
        {"type": "text", "text": f"What is this? {word}"},
        {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}},
    ]
    said = ask(sdk, [user(parts)], stream=stream, conversation=word, model="remote")
    assert said.text == "a pixel"
    ask(sdk, [user([{"type": "text", "text": word}])], stream=stream, conversation=word, model="remote")
    assert script.prompts == [
        [("user", parts)],
        [("user", parts), ("assistant", "a pixel"), ("user", word)],
    ]


@BOTH_WAYS
@HELD_OR_NOT
def test_usage_is_of_this_request_and_of_all_its_model_calls(
    fake: FakeModel, sdk: openai.OpenAI, stream: bool, held: bool, word: str
) -> None:
    call = ("a", "think", '{"thought": "hm"}')
    fake.on(
        word,
        says("well", calls=[call], usage=(10, 1)),
        says("yes", usage=(20, 2)),
        says("no", usage=(5, 3)),
    )
    conversation = word if held else None
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
    first = ask(sdk, word, stream=stream, conversation=conversation, model="remote", **options)
    assert (first.text, first.usage) == ("well\n\nyes", (30, 3))
    second = ask(sdk, word, stream=stream, conversation=conversation, model="remote", **options)
    assert (second.text, second.usage) == ("no", (5, 3))


@BOTH_WAYS
@HELD_OR_NOT
def test_an_answer_that_was_cut_short_says_so(
    fake: FakeModel, sdk: openai.OpenAI, stream: bool, held: bool, word: str
) -> None:
    fake.on(word, says("so much to", finish="length"))
    said = ask(sdk, word, stream=stream, conversation=word if held else None, model="remote", max_tokens=3)
    assert (said.text, said.finish) == ("so much to", "length")


def test_thoughts_are_streamed_apart_from_the_answer(sdk: openai.OpenAI) -> None:
    messages: Any = [user("!think hmm\n!say yes")]
    deltas = [
        chunk.choices[0].delta
        for chunk in sdk.chat.completions.create(model=AGENT, messages=messages, stream=True, timeout=SECONDS)
    ]
    assert "".join(delta.content or "" for delta in deltas) == "yes"
    assert [delta.model_extra for delta in deltas if delta.model_extra] == [{"reasoning_content": "hmm"}]
    whole = sdk.chat.completions.create(model=AGENT, messages=messages, timeout=SECONDS).choices[0].message
    assert (whole.content, whole.model_extra) == ("yes", {"reasoning_content": "hmm"})


@BOTH_WAYS
@HELD_OR_NOT
def test_instructions_may_be_empty_or_stand_at_the_end(
    fake: FakeModel, sdk: openai.OpenAI, stream: bool, held: bool, word: str
) -> None:
    script = fake.on(word, says("yes"))
    empty, last = {"role": "system", "content": ""}, {"role": "system", "content": "Be short."}
    body: Any = [empty, user(word), last]
    ask(sdk, body, stream=stream, conversation=word if held else None, model="remote")
    (sent,) = script.requests
    assert sent["messages"] == [{"role": "system", "content": "Be good."}, user(word), last]
