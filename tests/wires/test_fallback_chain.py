"""The same model again, then the next: counted where it counts, on the servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import Any

import pytest

from lastgood.engine.providers.fallback_chain import FallbackChain, FellBack, Requested, Retried
from lastgood.engine.providers.provider import Chunk, ModelAnswer, ModelCall
from lastgood.engine.providers.provider_table import ProviderTable
from lastgood.errors import (
    ContextOverflow,
    KeyRefused,
    ModelError,
    ModelOverloaded,
    ModelUnknown,
    ModelUnreachable,
    ProviderRateLimited,
)
from lastgood.model.agents import Fallback, ModelSpec
from lastgood.model.messages import Message, Reasoning, Role, user
from lastgood.outside.secrets import Secrets
from tests.wires.conftest import HELLO
from tests.wires.dialects import KEYS, Chat, Says
from tests.wires.server import End, Framing, Reply, Server

pytestmark = pytest.mark.anyio

CHAT = Chat()
OK = CHAT.reply(Says(("Hel", "lo.")))
DOWN = CHAT.error(503, "unavailable", "try later")
LIMITED = CHAT.error(429, "rate_limit_exceeded", "slow down")
REFUSED = CHAT.error(401, "invalid_api_key", "no")
BAD = CHAT.error(400, "invalid_request_error", "bad")
TOO_LONG = CHAT.error(400, "context_length_exceeded", "too long")
GARBLED = Reply([b"data: what?\n\n"])
CUT_LATER = Reply(OK.pieces[:2], end=End.CUT)
CUT_AT_ONCE = Reply(OK.pieces[:1], end=End.CUT)


class TwoModels:
    """Two servers with a model each, a clock moved by hand, and sleeps that are only written down."""

    def __init__(self, first: Server, second: Server, table: ProviderTable) -> None:
        self.servers = [first, second]
        self.models = [
            ModelSpec(name, "m", f"{server.url}/v1", "WIRE_KEY")
            for name, server in zip(("first", "second"), self.servers, strict=True)
        ]
        self.now = 1000.0
        self.slept: list[float] = []
        self.announced: list[str] = []  # requests that are about to be sent
        self.asking = FallbackChain(table, sleep=self._sleep, clock=lambda: self.now, jitter=lambda: 0.0)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def say(self, first: Sequence[Reply], second: Sequence[Reply] = (OK,)) -> None:
        for server, replies in zip(self.servers, (first, second), strict=True):
            server.say(*replies)

    @property
    def asked(self) -> list[int]:
        return [server.asked for server in self.servers]

    async def ask(
        self,
        models: Sequence[ModelSpec] | None = None,
        messages: Sequence[Message] = HELLO,
        into: list[Any] | None = None,
        **fallback: Any,
    ) -> list[Any]:
        parts = [] if into is None else into
        chain = self.models if models is None else models
        call = ModelCall(chain[0], tuple(messages))
        async with aclosing(self.asking.ask(chain, call, Fallback(**fallback))) as asked:
            async for part in asked:
                if isinstance(part, Requested):
                    self.announced.append(part.model.provider)
                else:
                    parts.append(part)
        return parts


@pytest.fixture
async def two() -> AsyncIterator[TwoModels]:
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(Server(OK)) for _ in range(2)]
        table = ProviderTable(Secrets(KEYS))
        stack.push_async_callback(table.close)
        yield TwoModels(first, second, table)


def received(parts: Sequence[Any]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Chunk))


# -- the same model again ---------------------------------------------------------------


async def test_an_answer_is_requested_once(two: TwoModels) -> None:
    parts = await two.ask()
    assert two.asked == [1, 0]
    assert received(parts) == "Hello."
    assert isinstance(parts[-1], ModelAnswer)
    assert two.slept == []


@pytest.mark.parametrize("reply", [DOWN, CUT_AT_ONCE, Reply([b""], end=End.RESET)])
async def test_what_passes_is_tried_again(two: TwoModels, reply: Reply) -> None:
    two.say([reply, reply, OK])
    parts = await two.ask(two.models[:1])
    assert two.asked == [3, 0]
    assert received(parts) == "Hello."
    assert two.slept == [0.5, 1.0]
    retried = [part for part in parts if isinstance(part, Retried)]
    assert [part.as_event().attempt for part in retried] == [2, 3]
    assert retried[0].as_event().model == "first/m"


async def test_one_model_without_a_chain_is_tried_three_times(two: TwoModels) -> None:
    two.say([LIMITED])
    with pytest.raises(ProviderRateLimited, match="slow down"):
        await two.ask(two.models[:1])
    assert two.asked == [3, 0]


async def test_how_long_the_provider_asks_to_wait_is_waited(two: TwoModels) -> None:
    two.say([CHAT.error(429, "rate_limit_exceeded", "slow", retry_after="7"), OK])
    await two.ask(two.models[:1])
    assert two.slept == [7.0]


async def test_a_provider_that_asks_for_an_hour_is_not_waited_for(two: TwoModels) -> None:
    two.say([CHAT.error(429, "rate_limit_exceeded", "slow", retry_after="3600")])
    with pytest.raises(ProviderRateLimited) as raised:
        await two.ask(two.models[:1])
    assert (two.asked, two.slept) == ([1, 0], [])
    assert raised.value.retry_after == 3600.0


@pytest.mark.parametrize("reply", [REFUSED, BAD, GARBLED])
async def test_what_does_not_pass_is_not_tried_again(two: TwoModels, reply: Reply) -> None:
    two.say([reply])
    with pytest.raises(ModelError):
        await two.ask(two.models[:1])
    assert two.asked == [1, 0]


async def test_retries_are_as_many_as_were_requested(two: TwoModels) -> None:
    two.say([DOWN])
    for retries in (0, 1, 4):
        before = two.servers[0].asked
        with pytest.raises(ModelOverloaded):
            await two.ask(two.models[:1], retries=retries)
        assert two.servers[0].asked - before == retries + 1


# -- after the first word -----------------------------------------------------------------


async def test_after_the_first_output_no_request_is_retried(two: TwoModels) -> None:
    two.say([CUT_LATER])
    parts: list[Any] = []
    with pytest.raises(ModelUnreachable) as raised:
        await two.ask(into=parts)
    assert parts == [Chunk("Hel")]
    assert two.asked == [1, 0]
    assert "all models failed" not in str(raised.value)


async def test_an_error_after_the_first_word_is_final_whatever_it_is(two: TwoModels) -> None:
    limited = b'data: {"error": {"type": "rate_limit_error", "message": "slow"}}\n\n'
    two.say([Reply([*OK.pieces[:2], limited])])
    parts: list[Any] = []
    with pytest.raises(ProviderRateLimited):
        await two.ask(into=parts)
    assert parts == [Chunk("Hel")]
    assert (two.asked, two.slept) == ([1, 0], [])


async def test_an_error_before_the_first_word_in_a_stream_that_began_is_tried_again(two: TwoModels) -> None:
    two.say([Reply([*OK.pieces[:1], b'data: {"error": {"message": "oops"}}\n\n']), OK])
    assert received(await two.ask()) == "Hello."
    assert two.asked == [2, 0]


# -- the next model ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply", [REFUSED, BAD, GARBLED, CHAT.error(402, "x", "pay"), CHAT.error(404, "x", "who")]
)
async def test_what_does_not_pass_goes_to_the_next_model(two: TwoModels, reply: Reply) -> None:
    two.say([reply])
    parts = await two.ask()
    assert two.asked == [1, 1]
    assert received(parts) == "Hello."
    (fell,) = [part for part in parts if isinstance(part, FellBack)]
    assert fell.to is two.models[1]
    data = fell.as_event()
    assert (data.failed_model, data.fallback_model) == ("first/m", "second/m")
    assert (data.attempt, data.max_attempts) == (2, 2)
    assert data.reason


async def test_a_model_that_stays_down_goes_to_the_next_after_its_retries(two: TwoModels) -> None:
    two.say([DOWN])
    parts = await two.ask()
    assert two.asked == [3, 1]
    assert two.announced == ["first", "first", "first", "second"]
    assert [type(part).__name__ for part in parts] == [
        "Retried",
        "Retried",
        "FellBack",
        "Chunk",
        "Chunk",
        "ModelAnswer",
    ]


async def test_the_next_model_has_retries_of_its_own(two: TwoModels) -> None:
    two.say([DOWN], [DOWN, OK])
    assert received(await two.ask()) == "Hello."
    assert two.asked == [3, 2]


async def test_a_conversation_that_is_too_long_gets_no_fallback(two: TwoModels) -> None:
    two.say([TOO_LONG])
    with pytest.raises(ContextOverflow):
        await two.ask()
    assert two.asked == [1, 0]


async def test_a_missing_key_goes_to_the_next_model(two: TwoModels) -> None:
    models = [replace(two.models[0], token_key="NOT_SET"), two.models[1]]
    assert received(await two.ask(models)) == "Hello."
    assert two.asked == [0, 1]


async def test_an_unknown_model_falls_back_to_the_next(two: TwoModels) -> None:
    models = [ModelSpec("nobody", "m"), two.models[1]]
    assert received(await two.ask(models)) == "Hello."
    with pytest.raises(ModelUnknown):
        await two.ask(models[:1])


async def test_if_no_model_answers_all_are_named(two: TwoModels) -> None:
    two.say([REFUSED], [DOWN])
    with pytest.raises(ModelOverloaded) as raised:
        await two.ask()
    text = str(raised.value)
    assert "first/m" in text
    assert "second/m" in text
    assert "\n" not in text
    two.say([DOWN], [REFUSED])
    with pytest.raises(KeyRefused, match=r"first/m.*second/m"):
        await two.ask()


async def test_the_next_model_is_asked_with_the_same_conversation_and_no_foreign_thoughts(
    two: TwoModels,
) -> None:
    """I4: thoughts of the first model are not shown to the second."""
    thought = Reasoning("first/m", "hm", '{"reasoning_content":"hm"}')
    said = (user("one"), Message(Role.ASSISTANT, "two", reasoning=thought), user("three"))
    two.say([BAD])
    await two.ask(messages=said)
    first, second = (CHAT.seen(server.requests[0]) for server in two.servers)
    assert first.said == second.said == [("user", "one"), ("assistant", "two"), ("user", "three")]
    assert (first.thoughts, second.thoughts) == (["hm"], [])


# -- leaving a model alone -------------------------------------------------------------------


async def test_a_rate_limited_model_is_skipped_for_a_while(two: TwoModels) -> None:
    two.say([LIMITED, OK])
    await two.ask(cooldown_seconds=60.0)
    assert (two.asked, two.slept) == ([1, 1], [])
    two.now += 59
    parts = await two.ask(cooldown_seconds=60.0)
    assert two.asked == [1, 2]
    assert isinstance(parts[0], FellBack)
    assert parts[0].to is two.models[1]
    two.now += 2
    parts = await two.ask(cooldown_seconds=60.0)
    assert two.asked == [2, 2]
    assert isinstance(parts[0], Chunk)


async def test_a_paused_model_is_the_last_resort(two: TwoModels) -> None:
    two.say([LIMITED, OK], [OK, BAD])
    await two.ask()
    parts = await two.ask()
    assert received(parts) == "Hello."
    assert two.asked == [2, 2]


async def test_the_only_model_is_never_skipped(two: TwoModels) -> None:
    two.say([LIMITED, OK])
    await two.ask()
    assert received(await two.ask(two.models[:1])) == "Hello."


# -- leaving ------------------------------------------------------------------------------------


async def test_a_cancelled_wait_tries_no_other_model(two: TwoModels) -> None:
    waiting = asyncio.Event()

    async def sleep(_: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    two.say([DOWN])
    two.asking._sleep = sleep
    task = asyncio.create_task(two.ask())
    await asyncio.wait_for(waiting.wait(), 5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert two.asked == [1, 0]


async def test_leaving_a_stream_closes_the_connection(two: TwoModels) -> None:
    two.say([Reply(OK.pieces[:2], end=End.HANG)])
    call = ModelCall(two.models[0], HELLO)
    async with aclosing(two.asking.ask(two.models, call, Fallback())) as parts:
        assert await anext(parts) == Requested(two.models[0])
        assert await anext(parts) == Chunk("Hel")
    await asyncio.wait_for(two.servers[0].left.wait(), 5)


async def test_a_stream_without_an_end_is_no_answer_here_either(two: TwoModels) -> None:
    two.say([Reply(OK.pieces[:2], framing=Framing.CLOSE)])
    with pytest.raises(ModelUnreachable):
        await two.ask()
