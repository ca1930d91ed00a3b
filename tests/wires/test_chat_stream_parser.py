"""The accents of OpenAI's dialect, fed as bytes: whole, and one at a time."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from lastgood.engine.providers.chat_stream_parser import ChatStreamParser, ParserLimits
from lastgood.engine.providers.provider import Chunk, ChunkKind, ModelAnswer
from lastgood.errors import (
    ContextOverflow,
    KeyRefused,
    ModelError,
    ModelGarbled,
    ModelOverloaded,
    ModelUnreachable,
    ProviderRateLimited,
    QuotaUsedUp,
)
from lastgood.model.agents import ModelSpec
from lastgood.model.messages import ToolCall
from lastgood.model.sessions import Usage
from lastgood.outside.secrets import Secrets

MODEL = ModelSpec("wire", "m")
DONE = b"data: [DONE]\n\n"

Feed = Callable[[bytes], list[bytes]]


def whole(body: bytes) -> list[bytes]:
    return [body]


def by_byte(body: bytes) -> list[bytes]:
    return [body[at : at + 1] for at in range(len(body))]


def by_seven(body: bytes) -> list[bytes]:
    return [body[at : at + 7] for at in range(0, len(body), 7)]


@pytest.fixture(params=[whole, by_byte, by_seven])
def feed(request: pytest.FixtureRequest) -> Feed:
    found: Feed = request.param
    return found


def read(
    body: bytes, feed: Feed = whole, limits: ParserLimits | None = None
) -> tuple[list[Chunk], ModelAnswer]:
    reading = ChatStreamParser(MODEL, Secrets({}), limits or ParserLimits())
    chunks: list[Chunk] = []
    for piece in feed(body):
        if reading.done:
            break
        chunks += reading.feed(piece)
    chunks += reading.end()
    return chunks, reading.answer()


def events(*deltas: dict[str, Any], finish: str | None = "stop", line_end: str = "\n") -> bytes:
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    texts = [json.dumps({"choices": [choice]}, ensure_ascii=False) for choice in choices]
    return "".join(f"data: {text}{line_end}{line_end}" for text in (*texts, "[DONE]")).encode()


def calls(*deltas: dict[str, Any], feed: Feed = whole) -> tuple[ToolCall, ...]:
    body = events(*({"tool_calls": [delta]} for delta in deltas), finish="tool_calls")
    return read(body, feed)[1].message.tool_calls


def call(name: str | None, arguments: Any, **rest: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {**rest, "function": {key: value for key, value in function.items() if value is not None}}


# -- lines -------------------------------------------------------------------------


def test_bytes_may_come_in_any_pieces(feed: Feed) -> None:
    chunks, answer = read(events({"content": "été "}, {"content": "👩‍👩‍👧"}), feed)
    assert "".join(chunk.text for chunk in chunks) == "été 👩‍👩‍👧"
    assert answer.message.content == "été 👩‍👩‍👧"


def test_lines_may_end_as_windows_does(feed: Feed) -> None:
    assert read(events({"content": "a"}, line_end="\r\n"), feed)[1].message.content == "a"


def test_comments_names_and_blank_lines_mean_nothing(feed: Feed) -> None:
    body = b"\n: ping\n\nevent: message\nid: 7\nretry: 10\n" + events({"content": "a"})
    assert read(body, feed)[1].message.content == "a"


def test_a_space_after_the_colon_is_not_needed(feed: Feed) -> None:
    assert read(events({"content": "a"}).replace(b"data: ", b"data:"), feed)[1].message.content == "a"


def test_an_event_may_take_several_lines(feed: Feed) -> None:
    body = (
        b'data: {"choices": [{"delta":\ndata: {"content": "a"},\ndata: "finish_reason": "stop"}]}\n\n' + DONE
    )
    assert read(body, feed)[1].message.content == "a"


def test_a_byte_order_mark_is_no_byte_of_the_stream() -> None:
    assert read(b"\xef\xbb\xbf" + events({"content": "a"}))[1].message.content == "a"


def test_the_end_may_go_without_saying(feed: Feed) -> None:
    body = events({"content": "a"})
    assert read(body.removesuffix(DONE), feed)[1].message.content == "a"
    assert read(body.removesuffix(b"\n\n"), feed)[1].message.content == "a"


def test_what_comes_after_the_end_is_not_read() -> None:
    assert read(events({"content": "a"}) + b"data: garbage\n\n")[1].message.content == "a"


def test_a_character_cut_in_two_by_the_server_is_put_together(feed: Feed) -> None:
    pair = [
        '{"choices":[{"delta":{"content":"a\\ud83d"}}]}',
        '{"choices":[{"delta":{"content":"\\ude00b"}}]}',
    ]
    body = "".join(f"data: {text}\n\n" for text in pair).encode() + events()
    chunks, answer = read(body, feed)
    assert answer.message.content == "a😀b" == "".join(chunk.text for chunk in chunks)


def test_half_a_character_without_the_other_is_replaced() -> None:
    body = b'data: {"choices":[{"delta":{"content":"a\\ud83d"},"finish_reason":"stop"}]}\n\n'
    assert read(body)[1].message.content == "a\ufffd"


# -- tool calls ----------------------------------------------------------------------

WHOLE = [ToolCall("a", "f", '{"x":1}'), ToolCall("b", "g", '{"y":2}')]


@pytest.mark.parametrize(
    "deltas",
    [
        [
            call("f", "", index=0, id="a"), call(None, '{"x"', index=0), call(None, ":1}", index=0),
            call("g", "", index=1, id="b"), call(None, '{"y":2}', index=1),
        ],
        [
            call("f", "", index=0, id="a"), call("g", "", index=1, id="b"), call(None, '{"x"', index=0),
            call(None, '{"y":', index=1), call(None, ":1}", index=0), call(None, "2}", index=1),
        ],
        [call("f", '{"x":1}', index=0, id="a"), call("g", '{"y":2}', index=1, id="b")],
        [call("f", '{"x":1}', id="a"), call("g", '{"y":2}', id="b")],
        [call("f", '{"x":1}', index=0, id="a"), call("g", '{"y":2}', index=0, id="b")],
        [call("f", {"x": 1}, id="a"), call("g", {"y": 2}, id="b")],
        [
            call("f", '{"x"', index=0, id="a"), call("f", ":1}", index=0, id="a"),
            call("g", '{"y"', index=1, id="b"), call("g", ":2}", index=1, id="b"),
        ],
        [call("f", '{"x"', id="a"), call(None, ":1}"), call("g", '{"y":', id="b"), call(None, "2}")],
        [
            call("f", '{"x"', index=0, id="a"), call("g", '{"y"', index=0, id="b"),
            call(None, ":1}", index=0, id="a"), call(None, ":2}", index=0, id="b"),
        ],
    ],
    ids=["pieces", "mixed", "whole", "no index", "one index", "not text", "name again", "id once", "ids"],
)  # fmt: skip
def test_calls_are_put_together_however_they_come(deltas: list[dict[str, Any]], feed: Feed) -> None:
    assert list(calls(*deltas, feed=feed)) == WHOLE


def test_calls_without_ids_are_distinguished_by_their_arguments() -> None:
    made = calls(call("f", '{"x":1}'), call("f", '{"x":2}'), call("g", "{}"))
    assert [(one.name, one.arguments) for one in made] == [("f", '{"x":1}'), ("f", '{"x":2}'), ("g", "{}")]


def test_a_name_may_come_in_pieces() -> None:
    assert calls(call("get_", "", index=0, id="a"), call("weather", "{}", index=0))[0].name == "get_weather"


def test_text_and_calls_may_come_together() -> None:
    delta = {"content": "Let me look.", "tool_calls": [call("f", "{}", index=0, id="a")]}
    _, answer = read(events(delta, finish="tool_calls"))
    assert answer.message.content == "Let me look."
    assert answer.message.tool_calls == (ToolCall("a", "f", "{}"),)


def test_a_call_without_a_name_is_garbled() -> None:
    with pytest.raises(ModelGarbled, match="without a name"):
        calls(call(None, "{}", index=0, id="a"))


# -- thoughts --------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_thoughts_have_two_names(key: str) -> None:
    chunks, answer = read(events({key: "hm", "content": None}, {key: None, "content": "yes"}))
    assert chunks == [Chunk("hm", ChunkKind.REASONING), Chunk("yes")]
    reasoning = answer.message.reasoning
    assert reasoning is not None
    assert reasoning.text == "hm"
    assert reasoning.opaque == ('{"reasoning_content":"hm"}' if key == "reasoning_content" else "")


def test_thoughts_may_come_in_details_that_are_put_together() -> None:
    def detail(text: str | None, **rest: Any) -> dict[str, Any]:
        return {"reasoning_details": [{"type": "reasoning.text", "text": text, "index": 0, **rest}]}

    body = events(
        {**detail("Let me "), "reasoning": "Let me "},
        {**detail("see."), "reasoning": "see."},
        detail(None, signature="s1"),
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "xyz", "index": 1}]},
        {"content": "yes"},
    )
    chunks, answer = read(body)
    assert [chunk.text for chunk in chunks] == ["Let me see.", "yes"]  # what came at once is shown at once
    reasoning = answer.message.reasoning
    assert reasoning is not None
    assert json.loads(reasoning.opaque) == {
        "reasoning_details": [
            {"type": "reasoning.text", "text": "Let me see.", "index": 0, "signature": "s1"},
            {"type": "reasoning.encrypted", "data": "xyz", "index": 1},
        ]
    }


def test_details_alone_can_be_shown() -> None:
    body = events({"reasoning_details": [{"type": "reasoning.summary", "summary": "hm", "index": 0}]})
    assert read(body)[0] == [Chunk("hm", ChunkKind.REASONING)]


def test_content_may_be_a_list_of_thoughts_and_texts() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    chunks, _ = read(events({"content": [thought, {"type": "text", "text": "yes"}, {"type": "reference"}]}))
    assert chunks == [Chunk("hm", ChunkKind.REASONING), Chunk("yes")]


def test_a_refusal_is_an_answer() -> None:
    assert read(events({"refusal": "I cannot."}))[1].message.content == "I cannot."


# -- ends --------------------------------------------------------------------------------


@pytest.mark.parametrize("finish", ["length", "max_tokens", "MAX_TOKENS"])
def test_too_long_has_several_names(finish: str) -> None:
    assert read(events({"content": "a"}, finish=finish))[1].cut_short


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "eos", "function_call"])
def test_any_other_end_is_an_end(finish: str) -> None:
    assert not read(events({"content": "a"}, finish=finish))[1].cut_short


def test_a_stream_without_an_end_was_cut(feed: Feed) -> None:
    with pytest.raises(ModelUnreachable, match="cut"):
        read(events({"content": "a"}, finish=None), feed)


@pytest.mark.parametrize(
    "half", [b"d", b"data", b"data: ", b'data: {"usa', b"data: {\ndata: }", b"data: {\n"]
)
def test_half_a_line_at_the_end_was_cut(half: bytes, feed: Feed) -> None:
    with pytest.raises(ModelUnreachable, match="cut"):
        read(events({"content": "a"}).removesuffix(DONE) + half, feed)


def test_what_the_provider_withheld_is_no_answer() -> None:
    with pytest.raises(ModelError, match="blocked") as raised:
        read(events({"content": "a"}, finish="content_filter"))
    assert type(raised.value) is ModelError


def test_a_provider_that_gave_up_failed() -> None:
    with pytest.raises(ModelOverloaded):
        read(events({"content": "a"}, finish="insufficient_system_resource"))


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 2}, Usage(5, 2)),
        ({"prompt_tokens": 5}, Usage(5, 0)),
        ({"prompt_tokens": 2**64 - 1, "completion_tokens": 2}, Usage(2**40, 2)),
        ({"prompt_tokens": -1, "completion_tokens": "many"}, Usage()),
        ({"prompt_tokens": 0, "completion_tokens": 0}, Usage()),
        (None, Usage()),
        (42, Usage()),
    ],
)
def test_usage_is_what_can_be_made_of_it(usage: Any, expected: Usage) -> None:
    last = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    body = events({"content": "a"}).removesuffix(DONE) + last + DONE
    assert read(body)[1].usage == expected


# -- a server that does not stream ---------------------------------------------------------


def answered(message: dict[str, Any], **rest: Any) -> bytes:
    return json.dumps(
        {"object": "chat.completion", "choices": [{"index": 0, "message": message, **rest}]}
    ).encode()


def test_an_answer_may_come_whole(feed: Feed) -> None:
    message = {
        "role": "assistant",
        "content": "Hi.",
        "reasoning_content": "hm",
        "tool_calls": [call("f", '{"x":1}', id="a"), call("g", '{"y":2}', id="b")],
    }
    chunks, answer = read(b"\n " + answered(message, finish_reason="tool_calls"), feed)
    assert chunks == [Chunk("hm", ChunkKind.REASONING), Chunk("Hi.")]
    assert list(answer.message.tool_calls) == WHOLE


def test_an_answer_that_came_whole_needs_no_reason_to_end() -> None:
    assert read(answered({"content": "Hi."}))[1].message.content == "Hi."


def test_an_answer_that_came_half_is_garbled() -> None:
    body = answered({"content": "Hi."}, finish_reason="stop")
    for end in range(1, len(body)):
        with pytest.raises(ModelGarbled):
            read(body[:end])


# -- errors and nonsense ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "slow down", "type": "rate_limit_error"}, ProviderRateLimited),
        ({"message": "slow down", "code": 429}, ProviderRateLimited),
        ({"message": "slow down", "code": "429"}, ProviderRateLimited),
        ({"message": "no money", "type": "insufficient_quota"}, QuotaUsedUp),
        ({"message": "no", "type": "authentication_error"}, KeyRefused),
        ({"message": "too long", "code": "context_length_exceeded"}, ContextOverflow),
        ({"message": "bad", "type": "invalid_request_error"}, ModelError),
        ({"message": "oops", "type": "server_error"}, ModelOverloaded),
        ({"message": "oops", "code": 502}, ModelOverloaded),
        ({"message": "oops"}, ModelOverloaded),
        ("oops", ModelOverloaded),
    ],
)  # fmt: skip
def test_an_error_in_the_stream_has_its_kind(error: Any, kind: type[ModelError]) -> None:
    body = b"data: " + json.dumps({"error": error}).encode() + b"\n\n"
    with pytest.raises(ModelError) as raised:
        read(body)
    assert type(raised.value) is kind
    assert (error if isinstance(error, str) else error["message"]) in str(raised.value)


def test_an_error_after_words_is_still_an_error(feed: Feed) -> None:
    body = (
        events({"content": "a"}, finish=None).removesuffix(DONE) + b'data: {"error": {"message": "oops"}}\n\n'
    )
    with pytest.raises(ModelOverloaded, match="oops"):
        read(body, feed)


NONSENSE = [
    b"data: hello\n\n",
    b"data: {'choices': []}\n\n",
    b"data: 42\n\n",
    b"data: [[]]\n\n",
    b'data: {"choices": 42}\n\n',
    b'data: {"choices": [42]}\n\n',
    b'data: {"choices": [{"delta": "x"}]}\n\n',
    b'data: {"choices": [{"delta": {"content": 42}}]}\n\n',
    b'data: {"choices": [{"delta": {"content": [42]}}]}\n\n',
    b'data: {"choices": [{"delta": {"tool_calls": [42]}}]}\n\n',
    b'data: {"choices": [{"delta": {"tool_calls": [{"function": 42}]}}]}\n\n',
    b'data: {"choices": [{"delta": {"tool_calls": {"a": 1}}}]}\n\n',
    b'data: {"choices": [{"delta": {"reasoning_content": {}, "content": null, "x": 1}}], "usage": 42}\n\n',
    b'data: {"choices": [{"finish_reason": 42}]}\n\n',
    b"data: " + b"[" * 100_000 + b"\n\n",
    b'data: {"a\\u0000":' + b"[" * 100_000 + b"\n\n",
    b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n',
    b"<!doctype html><html></html>\n",
    b"HTTP/1.1 200 OK\r\n\r\n",
    b"\x00\x01\x02\x03",
    b"",
]


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_nonsense_is_no_answer(nonsense: bytes, feed: Feed) -> None:
    with pytest.raises(ModelError):
        read(nonsense + DONE, feed)
    with pytest.raises(ModelError):
        read(nonsense, feed)


def test_garbage_between_chunks_is_no_answer() -> None:
    head = events({"content": "a"}).removesuffix(DONE)
    for nonsense in NONSENSE[:12]:
        with pytest.raises(ModelError):
            read(head + nonsense + DONE)


SMALL = ParserLimits(line_bytes=1000, answer_bytes=2000, stream_bytes=100_000)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"data: " + b"x" * 1001, "a line of more than 1000 bytes"),
        (b"x" * 1001, "a line of more than 1000 bytes"),
        (b"data: {\n" + b"data: x\n" * 400, "an incomplete event"),
        (events(*({"content": "x" * 100} for _ in range(21))), "a response above the size limit"),
        (events(*({"reasoning": "x" * 100} for _ in range(21))), "a response above the size limit"),
        (
            events(*({"tool_calls": [call("f", "", index=n)]} for n in range(40))),
            "a response above the size limit",
        ),
        (
            events(*({"reasoning_details": [{"type": str(n)}]} for n in range(40))),
            "a response above the size limit",
        ),
        (b": ping\n" * 20_000, "a response above the size limit"),
        (b"{" + b" " * 2000, "a response above the size limit"),
    ],
    ids=["line", "no line", "event", "text", "thoughts", "calls", "details", "comments", "plain"],
)
def test_I40_whatever_is_too_much_is_refused_as_it_comes(body: bytes, what: str, feed: Feed) -> None:
    with pytest.raises(ModelGarbled, match=what):
        read(body, feed, SMALL)


def test_an_answer_within_the_limits_is_none_of_their_business(feed: Feed) -> None:
    assert read(events(*({"content": "x" * 100} for _ in range(19))), feed, SMALL)[1].message.content


def test_I40_a_response_has_so_many_calls_and_names_end() -> None:
    """Every piece is compared with all calls before it."""
    many = [{"index": at, "id": f"c{at}", "function": {"name": "a", "arguments": "{}"}} for at in range(1001)]
    assert len(calls(*many[:1000])) == 1000
    with pytest.raises(ModelGarbled):
        calls(*many)
    endless = [{"index": 0, "function": {"name": "ab"[at % 2] * 100}} for at in range(20)]
    with pytest.raises(ModelGarbled):
        calls(*endless)


def test_I40_thoughts_in_pieces_cost_what_they_weigh() -> None:
    def details(number: int) -> list[dict[str, Any]]:
        return [{"reasoning_details": [{"type": "t", "index": 0, "text": "x" * 100}]} for _ in range(number)]

    def seconds(number: int) -> float:
        body = events(*details(number), {"content": "done"})
        began = time.process_time()
        answer = read(body)[1].message
        assert answer.reasoning is not None
        assert json.loads(answer.reasoning.opaque)["reasoning_details"][0]["text"] == "x" * 100 * number
        return time.process_time() - began

    seconds(100)
    assert seconds(60_000) < 30 * max(seconds(6_000), 0.02)


def test_I40_what_is_kept_of_a_thought_beside_its_text_counts() -> None:
    large = [{"reasoning_details": [{"type": "t", "index": at, "more": ["x" * 10_000]}]} for at in range(20)]
    with pytest.raises(ModelGarbled, match="above the size limit"):
        read(events(*large), limits=ParserLimits(answer_bytes=100_000))
