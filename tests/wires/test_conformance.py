"""What every way to ask a model does, whatever is spoken on the wire."""

import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from lastgood.errors import (
    ContextOverflow,
    KeyRefused,
    ModelError,
    ModelOverloaded,
    ModelUnreachable,
    ProviderRateLimited,
    QuotaUsedUp,
)
from lastgood.model.agents import ModelSpec, StructuredOutput
from lastgood.model.call_options import CallOptions
from lastgood.model.messages import (
    File,
    Image,
    Message,
    Reasoning,
    Role,
    ToolCall,
    assistant,
    tool_result,
    user,
    user_parts,
)
from lastgood.model.sessions import Usage
from tests.wires.conftest import HELLO, Offline, Speaker, Wired
from tests.wires.dialects import KEY, Says
from tests.wires.server import End, Framing, Reply

pytestmark = pytest.mark.anyio

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "what the weather is",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CITY = StructuredOutput(
    "city",
    {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
        "additionalProperties": False,
    },
)


# -- answers ---------------------------------------------------------------------


async def test_a_plain_answer_is_what_was_said(speaker: Speaker) -> None:
    received = await speaker.ask(Says(("Hello ", "there.")))
    assert received.answer.message == Message(Role.ASSISTANT, "Hello there.")
    assert not received.answer.cut_short


async def test_what_is_streamed_adds_up_to_the_answer(speaker: Speaker) -> None:
    received = await speaker.ask(Says(tuple(f"word{n} " for n in range(50))))
    assert len(received.chunks) > 10
    assert received.text == received.answer.message.content == "".join(f"word{n} " for n in range(50))


@pytest.mark.parametrize(
    "text", ["été", "日本語", "👩‍👩‍👧 ok", "a\u2028b\u0085c", "\x00 and \x1f", "\r\n\r\n"]
)
async def test_any_text_comes_through(speaker: Speaker, text: str) -> None:
    received = await speaker.ask(Says((text, "!")))
    assert received.answer.message.content == text + "!"


async def test_a_tool_call_has_its_name_and_arguments(speaker: Speaker) -> None:
    received = await speaker.ask(Says(calls=(("c1", "weather", {"city": "Zürich"}),)), tools=[WEATHER])
    (call,) = received.answer.message.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Zürich"})
    assert call.id == "c1" or isinstance(speaker, Offline)
    assert received.chunks == []


async def test_parallel_calls_come_in_order_with_ids_of_their_own(speaker: Speaker) -> None:
    says = Says(calls=tuple((f"c{n}", "weather", {"city": str(n)}) for n in range(3)))
    calls = (await speaker.ask(says, tools=[WEATHER])).answer.message.tool_calls
    assert [json.loads(call.arguments) for call in calls] == [{"city": str(n)} for n in range(3)]
    assert len({call.id for call in calls}) == 3


async def test_thoughts_are_streamed_apart_from_the_answer(speaker: Speaker) -> None:
    received = await speaker.ask(Says(("Yes.",), ("Let me ", "see."), "signed"))
    assert (received.thoughts, received.text) == ("Let me see.", "Yes.")
    reasoning = received.answer.message.reasoning
    assert reasoning is not None
    assert (reasoning.text, reasoning.model) == ("Let me see.", speaker.spec.ref)


async def test_no_output_is_an_empty_answer(speaker: Speaker) -> None:
    received = await speaker.ask(Says())
    assert received.chunks == []
    assert received.answer.message == Message(Role.ASSISTANT, "")


async def test_usage_is_counted(speaker: Speaker) -> None:
    usage = (await speaker.ask(Says(("Hi.",), usage=(120, 34)))).answer.usage
    if isinstance(speaker, Offline):
        assert usage.input_tokens > 0
    else:
        assert usage == Usage(120, 34)


async def test_usage_has_its_price(wired: Wired) -> None:
    spec = replace(wired.spec, input_cost=2.0, output_cost=10.0)
    usage = (await wired.ask(Says(("Hi.",), usage=(1000, 500)), spec=spec)).answer.usage
    assert usage.cost == pytest.approx(0.007)


async def test_cached_input_has_a_price_of_its_own(wired: Wired) -> None:
    """Cached tokens are input tokens, whether the provider's own count includes them or not."""
    written = 0 if wired.dialect.name == "google" else 200  # Google counts no writes
    says = Says(("Hi.",), usage=(1000, 500), cached=(700, written))
    plain = replace(wired.spec, input_cost=2.0, output_cost=10.0)
    spec = replace(plain, cache_read_cost=0.2, cache_write_cost=2.5)
    usage = (await wired.ask(says, spec=spec)).answer.usage
    assert (usage.input_tokens, usage.output_tokens) == (1000, 500)
    cost = (300 - written) * 2.0 + 700 * 0.2 + written * 2.5 + 500 * 10.0
    assert usage.cost == pytest.approx(cost / 1e6)
    # A file that does not name these prices pays for them like other input.
    usage = (await wired.ask(says, spec=plain)).answer.usage
    assert usage.cost == pytest.approx((1000 * 2.0 + 500 * 10.0) / 1e6)


async def test_an_answer_that_ran_into_the_limit_says_so(wired: Wired) -> None:
    received = await wired.ask(Says(("As I was say",), too_long=True))
    assert received.answer.cut_short
    assert received.answer.message.content == "As I was say"


# -- what is asked ---------------------------------------------------------------


async def test_key_and_model_are_sent_where_they_belong(wired: Wired) -> None:
    await wired.ask(Says(("Hi.",)))
    assert (wired.seen.key, wired.seen.model) == (KEY, wired.spec.model)
    assert KEY not in json.dumps(wired.server.requests[-1].body)


async def test_the_conversation_is_sent_in_order(wired: Wired) -> None:
    said = (Message(Role.SYSTEM, "Be brief."), user("one"), assistant("two"), user("three"))
    await wired.ask(Says(("four",)), said)
    assert wired.seen.system == "Be brief."
    assert wired.seen.said == [("user", "one"), ("assistant", "two"), ("user", "three")]


async def test_several_system_messages_are_all_sent(wired: Wired) -> None:
    said = (Message(Role.SYSTEM, "Be brief."), Message(Role.SYSTEM, "Be kind."), *HELLO)
    await wired.ask(Says(("Hi.",)), said)
    assert "Be brief." in wired.seen.system
    assert "Be kind." in wired.seen.system


async def test_tool_results_go_back_to_their_calls(wired: Wired) -> None:
    calls = (ToolCall("c1", "weather", '{"city":"Bern"}'), ToolCall("c2", "weather", '{"city":"Rom"}'))
    said = (user("weather?"), assistant("", *calls), tool_result("c1", "rain"), tool_result("c2", "sun"))
    await wired.ask(Says(("Rain in Bern.",)), said, tools=[WEATHER])
    seen = wired.seen
    assert seen.calls == [("c1", "weather", {"city": "Bern"}), ("c2", "weather", {"city": "Rom"})]
    assert seen.results == [("c1", "rain"), ("c2", "sun")]
    assert seen.said == [("user", "weather?")]
    assert seen.tools == ["weather"]


async def test_an_answer_with_calls_can_be_sent_back(wired: Wired) -> None:
    says = Says(("Let me look.",), ("Hm.",), "signed", (("c1", "weather", {"city": "Bern"}),))
    message = (await wired.ask(says, tools=[WEATHER])).answer.message
    results = [tool_result(call.id, "rain") for call in message.tool_calls]
    await wired.ask(Says(("Rain.",)), (*HELLO, message, *results), tools=[WEATHER])
    assert wired.seen.results == [("c1", "rain")]
    assert wired.seen.calls == [("c1", "weather", {"city": "Bern"})]
    assert ("assistant", "Let me look.") in wired.seen.said


async def test_images_are_sent_as_they_are(wired: Wired) -> None:
    parts = user_parts("What is this?", Image(f"data:image/png;base64,{PIXEL}"))
    await wired.ask(Says(("A pixel.",)), (parts,))
    assert wired.seen.images == [PIXEL]
    assert wired.seen.said == [("user", "What is this?")]


async def test_an_image_by_address_is_read_by_the_provider_or_not_at_all(wired: Wired) -> None:
    parts = (user_parts("What is this?", Image("https://pictures.invalid/x.png")),)
    if wired.name in ("chat", "responses", "anthropic"):
        await wired.ask(Says(("A picture.",)), parts)
        assert wired.seen.images == ["https://pictures.invalid/x.png"]
    else:
        with pytest.raises(ModelError, match="send the image as a data: URL"):
            await wired.ask(Says(("A picture.",)), parts)
        assert wired.server.asked == 0


async def test_a_file_is_sent(wired: Wired) -> None:
    data = base64.b64encode(b"%PDF-1.4 ...").decode()
    await wired.ask(
        Says(("A file.",)), (user_parts("Read.", File("a.pdf", f"data:application/pdf;base64,{data}")),)
    )
    assert data in json.dumps(wired.server.requests[-1].body)


async def test_a_wanted_shape_is_requested(wired: Wired) -> None:
    received = await wired.ask(Says(('{"name":', '"Bern"}')), output=CITY)
    assert wired.seen.schema is not None
    assert wired.seen.schema["properties"] == {"name": {"type": "string"}}
    assert json.loads(received.answer.message.content) == {"name": "Bern"}


async def test_a_shape_that_the_request_asks_for_wins(wired: Wired) -> None:
    schema = {**CITY.schema, "properties": {"town": {"type": "string"}}, "required": ["town"]}
    asked = CallOptions(
        response_format={"type": "json_schema", "json_schema": {"name": "town", "schema": schema}}
    )
    await wired.ask(Says(('{"town": "Bern"}',)), output=CITY, options=asked)
    assert wired.seen.schema is not None
    assert wired.seen.schema["properties"] == {"town": {"type": "string"}}


async def test_any_json_can_be_requested(wired: Wired) -> None:
    asked = CallOptions(response_format={"type": "json_object"})
    received = await wired.ask(Says(('{"a": 1}',)), options=asked)
    assert json.loads(received.answer.message.content) == {"a": 1}
    assert "json" in json.dumps(wired.server.requests[-1].body).lower()


@pytest.mark.parametrize(
    "choice", ["required", "none", {"type": "function", "function": {"name": "weather"}}]
)
async def test_which_tool_to_call_can_be_requested(wired: Wired, choice: Any) -> None:
    await wired.ask(Says(("Hi.",)), tools=[WEATHER], options=CallOptions(tool_choice=choice))
    with_choice = wired.server.requests[-1].body
    await wired.ask(Says(("Hi.",)), tools=[WEATHER])
    assert wired.server.requests[-1].body != with_choice
    await wired.ask(Says(("Hi.",)), options=CallOptions(tool_choice=choice))
    assert "choice" not in json.dumps(wired.server.requests[-1].body).lower(), "a choice among no tools"


async def test_where_to_stop_is_sent(wired: Wired) -> None:
    options = CallOptions(stop=("STOP-HERE",), seed=77)
    if wired.name == "responses":  # which cannot stop anywhere: an answer that goes on would be wrong
        with pytest.raises(ModelError, match="no stop sequences"):
            await wired.ask(Says(("Hi.",)), options=options)
        return
    await wired.ask(Says(("Hi.",)), options=options)
    assert "STOP-HERE" in json.dumps(wired.server.requests[-1].body)
    if wired.name in ("chat", "google"):  # the others have no seed
        assert wired.seen.settings["seed"] == 77


async def test_settings_are_sent(wired: Wired) -> None:
    spec = replace(wired.spec, temperature=0.25, max_tokens=77)
    await wired.ask(Says(("Hi.",)), spec=spec)
    settings = json.dumps(wired.seen.settings)
    assert "0.25" in settings
    assert "77" in settings


# -- thoughts (I4) -----------------------------------------------------------------


async def test_I4_thoughts_go_back_to_the_model_that_had_them(wired: Wired) -> None:
    says = Says(("Yes.",), ("Let me see.",), "signed", (("c1", "weather", {"city": "Bern"}),))
    message = (await wired.ask(says, tools=[WEATHER])).answer.message
    await wired.ask(Says(("Rain.",)), (*HELLO, message, tool_result("c1", "rain")), tools=[WEATHER])
    seen = wired.seen
    if wired.name != "google":  # which wants the signature back, not the thought
        assert seen.thoughts == ["Let me see."]
    if wired.name != "chat":  # which has none
        assert seen.signatures == ["signed"]


async def test_I4_thoughts_go_to_no_other_model(wired: Wired) -> None:
    says = Says(("Yes.",), ("Let me see.",), "signed", (("c1", "weather", {"city": "Bern"}),))
    message = (await wired.ask(says, tools=[WEATHER])).answer.message
    other = replace(wired.spec, model=wired.spec.model + "-other")
    assert other.ref != wired.spec.ref
    said = (*HELLO, message, tool_result("c1", "rain"))
    await wired.ask(Says(("Rain.",)), said, tools=[WEATHER], spec=other)
    assert (wired.seen.thoughts, wired.seen.signatures) == ([], [])
    body = json.dumps(wired.server.requests[-1].body)
    assert "Let me see." not in body
    assert "signed" not in body
    assert ("assistant", "Yes.") in wired.seen.said
    assert wired.seen.calls == [("c1", "weather", {"city": "Bern"})]


async def test_I4_another_providers_thoughts_are_not_shown_to_this_one(wired: Wired) -> None:
    foreign = Reasoning("elsewhere/model", "secret thought", '[{"kind":"thinking","text":"secret thought"}]')
    message = Message(Role.ASSISTANT, "Yes.", reasoning=foreign)
    await wired.ask(Says(("Hi.",)), (*HELLO, message, user("And?")))
    assert "secret thought" not in json.dumps(wired.server.requests[-1].body)


# -- errors ------------------------------------------------------------------------

ERRORS: dict[str, list[tuple[int, str, str, type[ModelError]]]] = {
    "chat": [
        (401, "invalid_api_key", "Incorrect API key provided", KeyRefused),
        (403, "permission_denied", "no", KeyRefused),
        (402, "invalid_request_error", "Insufficient Balance", QuotaUsedUp),
        (429, "insufficient_quota", "You exceeded your current quota", QuotaUsedUp),
        (429, "rate_limit_exceeded", "Rate limit reached", ProviderRateLimited),
        (400, "context_length_exceeded", "too long", ContextOverflow),
        (400, "invalid_request_error", "This model's maximum context length is 8192 tokens", ContextOverflow),
        (413, "request_too_large", "big", ContextOverflow),
        (422, "x", "prompt is too long: 9 tokens > 8 maximum", ContextOverflow),
        (400, "invalid_request_error", "tools[0].name is wrong", ModelError),
        (404, "model_not_found", "The model does not exist", ModelError),
        (408, "timeout", "slow", ModelOverloaded),
        (409, "conflict", "locked", ModelOverloaded),
        (500, "server_error", "oops", ModelOverloaded),
        (503, "unavailable", "oops", ModelOverloaded),
        (529, "overloaded", "oops", ModelOverloaded),
    ],
    "anthropic": [
        (401, "authentication_error", "invalid x-api-key", KeyRefused),
        (403, "permission_error", "no", KeyRefused),
        (402, "billing_error", "pay", QuotaUsedUp),
        (429, "rate_limit_error", "slow down", ProviderRateLimited),
        (400, "invalid_request_error", "prompt is too long: 200001 tokens > 200000 maximum", ContextOverflow),
        (400, "invalid_request_error", "messages.0: bad", ModelError),
        (404, "not_found_error", "model: claude-9", ModelError),
        (500, "api_error", "oops", ModelOverloaded),
        (529, "overloaded_error", "Overloaded", ModelOverloaded),
    ],
    "google": [
        (401, "UNAUTHENTICATED", "no", KeyRefused),
        (403, "PERMISSION_DENIED", "no", KeyRefused),
        (429, "RESOURCE_EXHAUSTED", "slow down", ProviderRateLimited),
        (400, "INVALID_ARGUMENT", "The input token count (9) exceeds the maximum", ContextOverflow),
        (400, "INVALID_ARGUMENT", "bad", ModelError),
        (404, "NOT_FOUND", "models/gemini-9 is not found", ModelError),
        (500, "INTERNAL", "oops", ModelOverloaded),
        (503, "UNAVAILABLE", "overloaded", ModelOverloaded),
    ],
    "bedrock": [
        (403, "UnrecognizedClientException", "unknown client", KeyRefused),
        (403, "AccessDeniedException", "denied by policy", KeyRefused),
        (429, "ThrottlingException", "slow down", ProviderRateLimited),
        (400, "ValidationException", "Input is too long for requested model.", ContextOverflow),
        (400, "ValidationException", "bad", ModelError),
        (404, "ResourceNotFoundException", "no model", ModelError),
        (500, "InternalServerException", "oops", ModelOverloaded),
        (503, "ServiceUnavailableException", "oops", ModelOverloaded),
    ],
}  # fmt: skip
ERRORS["responses"] = ERRORS["chat"]


async def test_each_refusal_has_its_kind(wired: Wired) -> None:
    for status, kind, message, expected in ERRORS[wired.name]:
        with pytest.raises(ModelError) as raised:
            await wired.receive(wired.dialect.error(status, kind, message))
        assert type(raised.value) is expected, (status, kind, message, raised.value)
        text = str(raised.value)
        assert message.rstrip(".") in text
        assert wired.spec.ref in text
        assert "\n" not in text
    assert wired.server.asked == len(ERRORS[wired.name]), "a provider asks once"


async def test_retry_after_is_reported(wired: Wired) -> None:
    kind = {"chat": "rate_limit", "anthropic": "rate_limit_error", "google": "RESOURCE_EXHAUSTED"}
    reply = wired.dialect.error(429, kind.get(wired.name, "ThrottlingException"), "slow", retry_after="7")
    with pytest.raises(ProviderRateLimited) as raised:
        await wired.receive(reply)
    assert raised.value.retry_after == 7.0


async def test_a_missing_key_is_refused_before_anything_is_sent(wired: Wired) -> None:
    if wired.name == "bedrock":
        return  # Amazon's keys can come from the machine itself; that is asked first
    spec = replace(wired.spec, token_key="NO_SUCH_KEY")
    with pytest.raises(KeyRefused, match="NO_SUCH_KEY"):
        await wired.ask(Says(("Hi.",)), spec=spec)
    assert wired.server.asked == 0


async def test_a_closed_port_is_unreachable(wired: Wired) -> None:
    free = wired.server.url.rpartition(":")[0]
    spec = replace(wired.spec, base_url=f"{free}:1")
    with pytest.raises(ModelUnreachable):
        await wired.ask(Says(("Hi.",)), spec=spec)


@pytest.mark.parametrize("end", [End.CUT, End.RESET])
async def test_a_stream_that_breaks_off_is_no_answer(wired: Wired, end: End) -> None:
    whole = wired.dialect.reply(Says(("one ", "two ", "three")))
    half = Reply(whole.pieces[: len(whole.pieces) // 2], headers=whole.headers, end=end)
    with pytest.raises(ModelError):
        await wired.receive(half)


async def test_a_stream_that_ends_politely_in_the_middle_is_no_answer(wired: Wired) -> None:
    whole = wired.dialect.reply(Says(("one ", "two ", "three")))
    half = Reply(whole.pieces[: len(whole.pieces) // 2], headers=whole.headers)
    with pytest.raises(ModelError):
        await wired.receive(half)


GARBAGE = [
    b"data: {not json}\n\n",
    b'data: {"half": ',
    b"data: [1, 2, 3]\n\n",
    b'data: "text"\n\n',
    b"\xff\xfe\x00\x01" * 50,
    b"<html><body>Bad gateway</body></html>",
    b"",
]


async def test_garbage_is_no_answer(wired: Wired) -> None:
    for garbage in GARBAGE:
        for framing in Framing:
            with pytest.raises(ModelError):
                await wired.receive(Reply([garbage], headers={"Content-Type": "text/html"}, framing=framing))


async def test_an_error_page_says_nothing_of_itself(wired: Wired) -> None:
    page = Reply([b"<html>hello from the proxy</html>"], 502, {"Content-Type": "text/html"}, Framing.LENGTH)
    with pytest.raises(ModelOverloaded) as raised:
        await wired.receive(page)
    assert "hello" not in str(raised.value)


async def test_the_same_wire_is_used_again(wired: Wired) -> None:
    for _ in range(3):
        await wired.ask(Says(("Hi.",)))
    assert (wired.server.asked, wired.server.connections) == (3, 1)


def test_there_is_a_speaker_for_every_spec() -> None:
    assert ModelSpec("builtin", "scripted").ref == Offline().spec.ref
