"""The wires that a vendor's SDK speaks on, in trouble. What all wires share is in the suite."""

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from lastgood.engine.providers.chat_limits import ChatLimits
from lastgood.engine.providers.chat_stream_parser import ParserLimits
from lastgood.engine.providers.provider import Chunk, ModelCall
from lastgood.errors import (
    ContextOverflow,
    ModelError,
    ModelGarbled,
    ModelOverloaded,
    ModelUnreachable,
    ProviderRateLimited,
)
from lastgood.model.messages import Image, Message, Reasoning, Role, ToolCall, tool_result, user, user_parts
from tests.polls import eventually
from tests.wires.conftest import HELLO, wired_to
from tests.wires.dialects import Says
from tests.wires.server import End, Reply

pytestmark = pytest.mark.anyio

MIB = 1 << 20
QUICK = ChatLimits(connect_seconds=2.0, idle_seconds=0.2)


@pytest.mark.parametrize("name", ["anthropic", "google", "bedrock"])
async def test_silence_ends(name: str) -> None:
    async with wired_to(name, QUICK) as wired:
        with pytest.raises(ModelUnreachable):
            await wired.receive(Reply([], end=End.HANG))
        chunks: list[Chunk] = []
        whole = wired.dialect.reply(Says(("one ", "two ", "three")))
        with pytest.raises(ModelUnreachable):
            await wired.receive(Reply(whole.pieces[:-3], headers=whole.headers, end=End.HANG), chunks=chunks)
        assert chunks
        assert wired.server.asked == 2, "an SDK asked again by itself"


@pytest.mark.parametrize("name", ["anthropic", "google"])
@pytest.mark.parametrize("head", [b"data: ", b""])
async def test_I40_what_is_too_much_is_not_kept(name: str, head: bytes) -> None:
    limits = ChatLimits(reading=ParserLimits(answer_bytes=MIB))
    async with wired_to(name, limits) as wired:
        with pytest.raises(ModelGarbled):
            await wired.receive(Reply([head, *[b"x" * 65536] * 1600]))
        await asyncio.wait_for(wired.server.left.wait(), 5)
        assert wired.server.sent < 16 * MIB


@pytest.mark.parametrize("name", ["anthropic", "google"])
async def test_leaving_a_stream_closes_the_connection(name: str) -> None:
    async with wired_to(name) as wired:
        whole = wired.dialect.reply(Says(("one ", "two ", "three")))
        wired.server.say(Reply(whole.pieces[:-3], headers=whole.headers, end=End.HANG))
        async with aclosing(wired.table.find(wired.spec).stream(ModelCall(wired.spec, HELLO))) as parts:
            assert await anext(parts) == Chunk("one ")
        await asyncio.wait_for(wired.server.left.wait(), 5)


@pytest.mark.parametrize("name", ["anthropic", "google"])
async def test_a_cancelled_call_closes_its_connection(name: str) -> None:
    async with wired_to(name) as wired:
        await wired.ask(Says(("warm",)))
        wired.server.say(Reply([], end=End.HANG))
        asked = asyncio.create_task(wired.receive(Reply([], end=End.HANG)))
        await eventually(lambda: wired.server.asked == 2)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert asked.cancelled()
        await asyncio.wait_for(wired.server.left.wait(), 5)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, ModelOverloaded),
        ({"type": "rate_limit_error", "message": "slow"}, ProviderRateLimited),
        ({"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"}, ContextOverflow),
        ({"type": "api_error", "message": "oops"}, ModelOverloaded),
    ],
)
async def test_an_error_in_the_stream_has_its_kind(error: dict[str, str], kind: type[ModelError]) -> None:
    async with wired_to("anthropic") as wired:
        whole = wired.dialect.reply(Says(("one ", "two")))
        event = (
            f'event: error\ndata: {{"type": "error", "error": {str(error).replace(chr(39), chr(34))}}}\n\n'
        )
        chunks: list[Chunk] = []
        with pytest.raises(ModelError) as raised:
            await wired.receive(Reply([*whole.pieces[:4], event.encode()]), chunks=chunks)
        assert type(raised.value) is kind
        assert chunks == [Chunk("one ")]


@pytest.mark.parametrize("at", range(1, 8))
async def test_characters_like_line_ends_survive_a_split_packet(at: int) -> None:
    async with wired_to("google") as wired:
        text = "a\u2028b\u0085c\u2029d"
        body = b"".join(
            piece for piece in wired.dialect.reply(Says((text,))).pieces if isinstance(piece, bytes)
        )
        first = body.index("\u2028".encode())
        pieces = [body[: first + at], body[first + at :]]
        assert (await wired.receive(Reply(pieces))).answer.message.content == text


THINKING: list[tuple[str, Any, str]] = [
    ("anthropic", 4096, '"thinking": {"type": "enabled", "budget_tokens": 4096}'),
    ("google", 512, '"thinking_budget": 512'),
    ("google", "none", '"thinking_budget": 0'),
    ("google", "low", '"thinking_budget": 2048'),
    ("bedrock", 4096, '"budget_tokens": 4096'),
]


@pytest.mark.parametrize(("name", "thinking", "expected"), THINKING)
async def test_how_much_to_think_is_requested(name: str, thinking: Any, expected: str) -> None:
    async with wired_to(name) as wired:
        spec = replace(wired.spec, thinking=thinking, max_tokens=9000)
        await wired.ask(Says(("Hi.",)), spec=spec)
        assert expected.replace(" ", "") in json.dumps(wired.server.requests[-1].body).replace(" ", "")


async def test_thoughts_of_a_message_that_was_changed_are_left_out() -> None:
    """A skeleton that no longer fits is no skeleton of this message."""
    async with wired_to("anthropic") as wired:
        says = Says(("Yes.",), ("Let me see.",), "signed", (("c1", "weather", {"city": "Bern"}),))
        made = (await wired.ask(says)).answer.message
        assert made.reasoning is not None
        for changed in (
            replace(made, content="Yes. And no."),
            replace(made, content="Y"),
            replace(made, tool_calls=(ToolCall("other", "weather", "{}"),)),
        ):
            results = [tool_result(call.id, "rain") for call in changed.tool_calls]
            await wired.ask(Says(("Rain.",)), (*HELLO, changed, *results))
            assert ("assistant", changed.content) in wired.seen.said
            assert [call[0] for call in wired.seen.calls] == [call.id for call in changed.tool_calls]


async def test_thoughts_between_calls_go_back_where_they_were() -> None:
    async with wired_to("anthropic") as wired:
        opaque = (
            '[{"kind":"thinking","text":"one","signature":"s1","provider_name":"anthropic"},'
            '{"kind":"text","length":2},'
            '{"kind":"thinking","text":"two","signature":"s2","provider_name":"anthropic"},'
            '{"kind":"text","length":1},{"kind":"call","call":"c1"}]'
        )
        reasoning = Reasoning(wired.spec.ref, "onetwo", opaque)
        made = Message(Role.ASSISTANT, "abc", (ToolCall("c1", "f", "{}"),), reasoning=reasoning)
        await wired.ask(Says(("Hi.",)), (*HELLO, made, tool_result("c1", "r")))
        content = wired.server.requests[-1].body["messages"][1]["content"]
        order = [part.get("thinking") or part.get("text") or part.get("id") for part in content]
        assert order == ["one", "ab", "two", "c", "c1"]


@pytest.mark.parametrize(
    "url", ["data:image/png,abc", "data:image/png;base64,%%%", "data:", "data:image/png;base64"]
)
async def test_an_invalid_image_is_rejected(url: str) -> None:
    async with wired_to("anthropic") as wired:
        with pytest.raises(ModelError, match="base64"):
            await wired.ask(Says(("Hi.",)), (user_parts("Look.", Image(url)),))
        assert wired.server.asked == 0


async def test_concurrent_first_requests_share_one_client() -> None:
    async with wired_to("anthropic") as wired:
        wired.server.say(wired.dialect.reply(Says(("Hi.",))))
        received = await asyncio.gather(*(wired.ask(Says(("Hi.",)), (user(str(n)),)) for n in range(4)))
        assert {one.answer.message.content for one in received} == {"Hi."}
