"""What a chat request may say, and where exactly it is wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lastgood.errors import InvalidRequest, TooLarge
from lastgood.model.call_options import CallOptions
from lastgood.model.messages import (
    File,
    Image,
    Message,
    Role,
    ToolCall,
    assistant,
    tool_result,
    user,
    user_parts,
)
from lastgood.surfaces.openai import schemas
from lastgood.surfaces.openai.schemas import ChatRequest, messages_of, options_of

PLAIN: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
FUNCTION = {"type": "function", "function": {"name": "weather"}}


def parse_chat(plain: Any) -> ChatRequest:
    return asyncio.run(schemas.parse_chat(plain))


def says(content: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content, **more}]}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no model": ({"model": ""}, "model"),
    "no message": ({"messages": []}, "messages"),
    "too hot": ({"temperature": 2.1}, "temperature"),
    "below zero": ({"temperature": -0.1}, "temperature"),
    "a number as text": ({"temperature": "1"}, "temperature"),
    "more than all": ({"top_p": 1.1}, "top_p"),
    "no token at all": ({"max_tokens": 0}, "max_tokens"),
    "half a token": ({"max_tokens": 1.5}, "max_tokens"),
    "no token at all, by its new name": ({"max_completion_tokens": 0}, "max_completion_tokens"),
    "too high a penalty": ({"frequency_penalty": 3}, "frequency_penalty"),
    "too low a penalty": ({"presence_penalty": -3}, "presence_penalty"),
    "a seed out of range": ({"seed": 2**63}, "seed"),
    "two answers": ({"n": 2}, "n"),
    "stopping at nothing": ({"stop": ""}, "stop"),
    "stopping at nothing, too": ({"stop": ["a", ""]}, "stop[1]"),
    "stopping everywhere": ({"stop": ["a"] * 17}, "stop"),
    "yes is no truth": ({"stream": "yes"}, "stream"),
    "one is no truth": ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    "content is a number": (says(5), "messages[0].content"),
    "content is an object": (says({}), "messages[0].content"),
    "content is required": (says(None), "messages[0]"),
    "a text without one": (says([{"type": "text"}]), "messages[0].content[0].text"),
    "a text that is none": (says([{"type": "text", "text": 5}]), "messages[0].content[0].text"),
    "an image without one": (says([{"type": "image_url"}]), "messages[0].content[0].image_url"),
    "an image without an address": (
        says([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]),
        "messages[0].content[1].image_url.url",
    ),
    "a part of another kind": (says([{"type": "input_audio"}]), "messages[0].content[0]"),
    "a role of long ago": (says("a", "function"), "messages[0].role"),
    "a result of nothing": (says("a", "tool"), "messages[0]"),
    "half a call": (says("", "assistant", tool_calls=[{"id": "a"}]), "messages[0].tool_calls[0].function"),
    "a schema without one": ({"response_format": {"type": "json_schema"}}, "response_format"),
    "an unknown format": ({"response_format": {"type": "yaml"}}, "response_format.type"),
    "a name that is none": (
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        "tools[0].function.name",
    ),
    "two tools with one name": ({"tools": [FUNCTION, FUNCTION]}, "tools"),
    "an unknown choice": ({"tool_choice": "maybe"}, "tool_choice"),
    "a choice that is not there": ({"tool_choice": FUNCTION}, "tool_choice"),
    "functions": ({"functions": [{"name": "a"}]}, "functions"),
    "probabilities": ({"logprobs": True}, "logprobs"),
    "a bias": ({"logit_bias": {"50256": -100}}, "logit_bias"),
}


@pytest.mark.parametrize("row", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named_by_its_place(row: tuple[dict[str, Any], str]) -> None:
    change, param = row
    with pytest.raises(InvalidRequest) as refused:
        parse_chat(PLAIN | change)
    assert refused.value.detail["param"] == param


@pytest.mark.parametrize("plain", [5, None, "text", [PLAIN]])
def test_a_body_is_an_object(plain: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be a JSON object"):
        parse_chat(plain)


def test_unknown_values_are_passed_through() -> None:
    """As OpenAI does; and so is what would change nothing."""
    harmless = {"metadata": {"a": "b"}, "store": False, "logprobs": False, "logit_bias": {}, "functions": []}
    assert options_of(parse_chat(PLAIN | harmless)) == CallOptions()


def test_null_is_the_same_as_nothing() -> None:
    names = [name for name in parse_chat(PLAIN).model_dump() if name not in PLAIN]
    assert len(names) > 10
    assert options_of(parse_chat(PLAIN | dict.fromkeys(names))) == CallOptions()


def test_messages_are_understood() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    data = "data:text/plain;base64,AA"
    parts = [
        {"type": "text", "text": "what"},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "high"}},
        {"type": "text", "text": "is this?"},
        {"type": "file", "file": {"filename": "a.txt", "file_data": data}},
    ]
    said = [
        {"role": "system", "content": "be good"},
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "hi", "name": "Ada"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
    ]
    shown = ("what", Image("https://example.com/a.png", "high"), "is this?", File("a.txt", data))
    assert messages_of(parse_chat(PLAIN | {"messages": said})) == (
        Message(Role.SYSTEM, "be good"),
        Message(Role.SYSTEM, "be brief"),
        user("hi"),
        user("a\nb"),
        user_parts(*shown),
        assistant("", ToolCall("a", "weather", "{}")),
        assistant("", ToolCall("a", "weather", "{}")),
        tool_result("a", "rain"),
    )


def test_parameters_are_understood() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    asked = {
        "temperature": 1,
        "top_p": 0.5,
        "max_tokens": 10,
        "max_completion_tokens": 20,
        "frequency_penalty": -2,
        "presence_penalty": 2,
        "seed": -1,
        "stop": "END",
        "response_format": schema,
        "tools": [FUNCTION],
        "tool_choice": FUNCTION,
        "parallel_tool_calls": False,
        "n": 1,
    }
    assert options_of(parse_chat(PLAIN | asked)) == CallOptions(
        temperature=1,
        top_p=0.5,
        max_tokens=20,
        frequency_penalty=-2,
        presence_penalty=2,
        seed=-1,
        stop=("END",),
        response_format=schema,
        tools=(FUNCTION,),
        tool_choice=FUNCTION,
        parallel_tool_calls=False,
    )


@pytest.mark.parametrize("count", [3, 600], ids=["at once", "in slices"])
def test_many_messages_are_validated_like_few(count: int) -> None:
    """Many are validated one by one, so that others can run in between."""
    given = [{"role": "user", "content": [{"type": "text", "text": str(n)}]} for n in range(count)]
    assert len(messages_of(parse_chat(PLAIN | {"messages": given}))) == count
    with pytest.raises(InvalidRequest) as refused:
        parse_chat(PLAIN | {"messages": [*given, {"role": "user", "content": [{"type": "text"}]}]})
    assert refused.value.detail["param"] == f"messages[{count}].content[0].text"
    with pytest.raises(InvalidRequest) as refused:
        parse_chat(PLAIN | {"messages": [*given, 7]})
    assert refused.value.detail["param"] == f"messages[{count}]"


TEXT = {"type": "text", "text": "a"}
CALL = {"id": "a", "type": "function", "function": {"name": "a", "arguments": "{}"}}
TOO_MANY: dict[str, tuple[dict[str, Any], str]] = {
    "messages": (
        {"messages": [{"role": "user", "content": "a"}] * 10_001},
        "messages has 10,001 messages; the limit is 10,000. Send fewer",
    ),
    "parts of a message": (
        says([TEXT] * 1_001),
        "messages[0].content has 1,001 parts; the limit is 1,000. Send fewer",
    ),
    "parts": (
        {"messages": [{"role": "user", "content": [TEXT] * 1_000}] * 11},
        "messages has 11,000 parts in all; the limit is 10,000. Send fewer",
    ),
    "tool calls": (
        says(None, role="assistant", tool_calls=[CALL] * 257),
        "messages[0].tool_calls has 257 tool calls; the limit is 256. Send fewer",
    ),
    "tools": ({"tools": [FUNCTION] * 129}, "tools has 129 tools; the limit is 128. Send fewer"),
    "fields": (
        {f"field-{number}": 1 for number in range(1_000)},
        "the body has 1,003 fields; the limit is 1,000. Send fewer",
    ),
}


@pytest.mark.parametrize(("change", "message"), TOO_MANY.values(), ids=TOO_MANY)
def test_I40_counts_are_checked_before_anything_is_validated(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TooLarge) as refused:
        parse_chat(PLAIN | {"temperature": "not a number"} | change)
    assert refused.value.message == message
