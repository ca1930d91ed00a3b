"""OpenAI's Responses API beyond what every wire does: its events, and how a conversation is sent."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lastgood.engine.providers.provider_aliases import chat_url
from lastgood.errors import ModelError, ModelOverloaded, ModelUnreachable, ProviderRateLimited
from lastgood.model.agents import ModelSpec
from lastgood.model.call_options import CallOptions
from lastgood.model.messages import Message, Reasoning, Role, ToolCall, assistant, tool_result, user
from lastgood.outside.secrets import Secrets
from tests.wires.conftest import HELLO, Received, Wired, wired_to
from tests.wires.dialects import Responses, Says
from tests.wires.server import Framing, Reply
from tests.wires.test_conformance import CITY, WEATHER

pytestmark = pytest.mark.anyio

THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"}
RESPONSES = {"api_type": "openai_responses"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": "{}"}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def done(*output: dict[str, Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    response = {"object": "response", "status": status, "error": None, "output": list(output), **more}
    return {"type": f"response.{status}", "response": response}


def stream(*events: Mapping[str, Any]) -> Reply:
    return Reply([f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in events])


def item(one: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.done", "item": one}


async def receive(reply: Reply) -> Received:
    async with wired_to("responses") as wired:
        return await wired.receive(reply)


async def sent(wired: Wired, *messages: Message, **more: Any) -> Any:
    await wired.ask(Says(("Hi.",)), messages or HELLO, **more)
    return wired.server.requests[-1].body


# -- answers ---------------------------------------------------------------------


async def test_a_server_that_streams_no_text_is_read_too() -> None:
    whole = done(THOUGHT, said("Hello."), CALL)
    plain = Reply([json.dumps(whole["response"]).encode()], framing=Framing.LENGTH)
    items = stream(item(THOUGHT), item(said("Hello.")), item(CALL), whole)
    for reply in (items, stream(whole), plain):
        received = await receive(reply)
        assert received.text == received.answer.message.content == "Hello."
        assert [call.id for call in received.answer.message.tool_calls] == ["c1"]
        assert received.answer.message.reasoning is not None


async def test_parts_of_a_summary_are_told_apart_and_readable_reasoning_is_shown() -> None:
    delta = {"type": "response.reasoning_summary_text.delta"}
    events: list[dict[str, Any]] = [
        {"type": "response.reasoning_summary_part.added", "summary_index": 0},
        {**delta, "delta": "one"},
        {"type": "response.reasoning_summary_part.added", "summary_index": 1},
        {**delta, "delta": "two"},
        {"type": "response.reasoning_text.delta", "delta": " three"},
    ]
    received = await receive(stream(*events, done(said("Yes."))))
    assert received.thoughts == "one\n\ntwo three"
    reasoning = received.answer.message.reasoning
    assert reasoning is not None
    assert reasoning.opaque == "", "what is not encrypted is not kept by the provider either"


async def test_a_refusal_is_text() -> None:
    received = await receive(stream({"type": "response.refusal.delta", "delta": "No."}, done()))
    assert received.answer.message.content == "No."


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ([{"type": "error", "code": "rate_limit_exceeded", "message": "slow"}], ProviderRateLimited),
        ([{"type": "error", "error": {"type": "server_error", "message": "oops"}}], ModelOverloaded),
        ([done(status="failed", error={"code": "server_error", "message": "oops"})], ModelOverloaded),
        ([done(status="failed")], ModelOverloaded),
        ([done(status="incomplete", incomplete_details={"reason": "content_filter"})], ModelError),
        ([done(status="cancelled")], ModelUnreachable),
        ([], ModelUnreachable),
        ([item(said("half"))], ModelUnreachable),
        ([item({"type": "message"})], ModelError),
    ],
)
async def test_what_is_no_answer(events: Sequence[Mapping[str, Any]], error: type[ModelError]) -> None:
    with pytest.raises(error):
        await receive(stream({"type": "response.created", "response": {}}, *events))


async def test_events_that_are_new_are_no_part_of_the_answer() -> None:
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    event = {"type": "response.web_search_call.searching", "item_id": "ws_1"}
    received = await receive(stream(event, item(searched), done(searched, said("Found."))))
    assert received.answer.message.content == "Found."


# -- the conversation ----------------------------------------------------------------


async def test_I4_reasoning_goes_back_where_it_stood() -> None:
    again = {**THOUGHT, "id": "rs_2", "encrypted_content": "sealed too"}
    other = {**CALL, "call_id": "c2"}
    async with wired_to("responses") as wired:
        output = THOUGHT, said("First"), CALL, said(", then"), again, other
        message = (await wired.receive(stream(done(*output)))).answer.message
        results = [tool_result("c1", "rain"), tool_result("c2", "sun")]
        body = await sent(wired, *HELLO, message, *results)
        kinds = [one.get("type") or one["content"] for one in body["input"]]
        order = ["First", "function_call", ", then", "reasoning", "function_call"]
        assert kinds == ["hello", "reasoning", *order, "function_call_output", "function_call_output"]
        assert [one["id"] for one in body["input"] if one.get("type") == "reasoning"] == ["rs_1", "rs_2"]
        # Not with a message that is no longer the one that was given.
        for changed in (
            Message(Role.ASSISTANT, message.content, message.tool_calls[:1], reasoning=message.reasoning),
            Message(Role.ASSISTANT, "First, then", (), reasoning=message.reasoning),
            Message(Role.ASSISTANT, f"{message.content}.", message.tool_calls, reasoning=message.reasoning),
        ):
            results = [tool_result(call.id, "rain") for call in changed.tool_calls]
            body = await sent(wired, *HELLO, changed, *results)
            assert "reasoning" not in [one.get("type") for one in body["input"]]


async def test_reasoning_of_a_chat_completion_is_not_sent() -> None:
    ref = Responses().spec("").ref
    for opaque in ('{"reasoning_content": "hm"}', "[]"):
        async with wired_to("responses") as wired:
            kept = Message(Role.ASSISTANT, "Yes.", reasoning=Reasoning(ref, "hm", opaque))
            body = await sent(wired, *HELLO, kept, user("And?"))
            assert [one["content"] for one in body["input"]] == ["hello", "Yes.", "And?"]


async def test_I4_calls_that_share_an_id_are_told_apart_in_the_whole_conversation() -> None:
    """Other providers number their calls from the start in each response, and some ids are too long."""
    long = "c" * 100
    turns: list[Message] = []
    for answer in ("rain", "sun"):
        calls = ToolCall("call-0", "weather", "{}"), ToolCall(long, "weather", "{}")
        turns += [user("?"), assistant("", *calls), tool_result("call-0", answer), tool_result(long, "x")]
    async with wired_to("responses") as wired:
        body = await sent(wired, *turns, user("and now?"))
    called = [one["call_id"] for one in body["input"] if one.get("type") == "function_call"]
    answered = [one["call_id"] for one in body["input"] if one.get("type") == "function_call_output"]
    assert called == answered
    assert len({*called}) == 4
    assert called[0] == "call-0"
    assert all(len(one) <= 64 for one in called)


async def test_what_a_request_asks_for_has_its_place() -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    options = CallOptions(tool_choice=choice, verbosity="low")
    async with wired_to("responses") as wired:
        body = await sent(wired, tools=[WEATHER], options=options, output=CITY)
    assert body["tool_choice"] == {"type": "function", "name": "weather"}
    assert body["text"]["verbosity"] == "low"
    assert (body["text"]["format"]["type"], body["text"]["format"]["name"]) == ("json_schema", "city")
    assert body["tools"][0]["parameters"] == WEATHER["function"]["parameters"]


# -- which models ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "url"),
    [
        (ModelSpec("openai", "gpt-5-codex"), "https://api.openai.com/v1/responses"),
        (ModelSpec("openai", "gpt-5.2-pro"), "https://api.openai.com/v1/responses"),
        (ModelSpec("openai", "o3-deep-research"), "https://api.openai.com/v1/responses"),
        (ModelSpec("openai", "gpt-5"), "https://api.openai.com/v1/chat/completions"),
        (ModelSpec("openai", "gpt-5-profile"), "https://api.openai.com/v1/chat/completions"),
        (ModelSpec("mine", "gpt-5-codex", "http://h/v1"), "http://h/v1/chat/completions"),
        (
            ModelSpec("openai", "gpt-5-codex", options={"api_type": "openai_chatcompletions"}),
            "https://api.openai.com/v1/chat/completions",
        ),
        (
            ModelSpec("azure", "d", "https://h", options=RESPONSES),
            "https://h/openai/v1/responses",
        ),
        (
            ModelSpec("azure", "d", "https://h", options=RESPONSES | {"api_version": "v"}),
            "https://h/openai/v1/responses?api-version=v",
        ),
    ],
)
def test_models_that_have_no_chat_completions_are_called_with_this_api(model: ModelSpec, url: str) -> None:
    assert chat_url(model, Secrets({})) == url
