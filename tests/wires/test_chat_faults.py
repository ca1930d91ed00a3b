"""The native wire on real sockets, with everything that can go wrong on one."""

import asyncio
import gzip
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from lastgood.engine.providers.chat_limits import ChatLimits
from lastgood.engine.providers.chat_stream_parser import ParserLimits
from lastgood.engine.providers.provider import Chunk, ModelAnswer, ModelCall
from lastgood.engine.providers.provider_errors import ErrorText, refusal, what_to_check
from lastgood.errors import (
    ContextOverflow,
    KeyRefused,
    ModelError,
    ModelGarbled,
    ModelOverloaded,
    ModelUnknown,
    ModelUnreachable,
    ProviderRateLimited,
)
from lastgood.model.agents import ModelSpec
from lastgood.model.messages import Message, Role, assistant, user
from lastgood.model.sessions import Usage
from lastgood.outside.secrets import Secrets
from tests.polls import eventually
from tests.wires.conftest import HELLO, Wired, listen, wired_to
from tests.wires.dialects import Chat, Says
from tests.wires.server import End, Framing, Piece, Reply, Server, as_json

pytestmark = pytest.mark.anyio

PLAIN = {"Content-Type": "text/plain"}
RECORDED = Says(
    ("Voilà: ", "👩‍👩‍👧", " done"),
    ("Hm, ", "let me ", "see."),
    calls=(("c1", "f", {"x": "é"}), ("c2", "g", {})),
)
MIB = 1 << 20


def quick(**reading: int) -> ChatLimits:
    return ChatLimits(connect_seconds=2.0, idle_seconds=0.15, reading=ParserLimits(**reading))


def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


# -- cuts ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("framing", [Framing.CHUNKED, Framing.CLOSE])
async def test_a_stream_cut_at_any_byte_is_an_answer_only_if_nothing_of_it_is_missing(
    chat: Wired, framing: Framing
) -> None:
    whole = Chat().reply(RECORDED)
    body = b"".join(piece for piece in whole.pieces if isinstance(piece, bytes))
    expected = (await chat.receive(whole)).answer.message
    # Where the server's framing cannot tell a cut from an end, the reason to end is the end.
    last = b"data: [DONE]" if framing is Framing.CHUNKED else b'"finish_reason": "tool_calls"}]}'
    enough = body.index(last) + len(last)
    answered = []
    for offset in range(len(body) + 1):
        try:
            received = await chat.receive(whole.cut_at(offset, framing))
        except (ModelUnreachable, ModelGarbled):
            continue
        assert received.answer.message == expected
        answered.append(offset)
    assert min(answered) >= enough, "half an answer was taken for a whole one"
    assert max(answered) == len(body)


async def test_half_a_chunk_is_no_answer(chat: Wired) -> None:
    whole = Chat().reply(Says(("one ", "two")))
    half = [*whole.pieces[:2], b'data: {"choices": [{"delta": {"conte']
    for end in (End.CLEAN, End.CUT, End.RESET):
        with pytest.raises(ModelUnreachable):
            await chat.receive(Reply(half, end=end))


async def test_less_than_was_announced_is_no_answer(chat: Wired) -> None:
    body = json.dumps({"choices": [{"message": {"content": "Hi."}, "finish_reason": "stop"}]}).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body) + 1)}
    with pytest.raises(ModelUnreachable):
        await chat.receive(Reply([body], headers=headers, framing=Framing.CLOSE))


# -- time ------------------------------------------------------------------------------


async def test_silence_before_the_first_byte_ends() -> None:
    async with wired_to("chat", quick()) as chat:
        with pytest.raises(ModelUnreachable, match=r"sent no data for 0\.15 seconds"):
            await chat.receive(Reply([], end=End.HANG))


async def test_silence_in_the_middle_ends() -> None:
    async with wired_to("chat", quick()) as chat:
        chunks: list[Chunk] = []
        pieces = Chat().reply(Says(("one ", "two"))).pieces[:2]
        with pytest.raises(ModelUnreachable, match="sent no data"):
            await chat.receive(Reply(pieces, end=End.HANG), chunks=chunks)
        assert chunks == [Chunk("one ")]
        await asyncio.wait_for(chat.server.left.wait(), 5)


async def test_a_slow_drip_is_not_silence() -> None:
    async with wired_to("chat", quick()) as chat:
        body = b"".join(piece for piece in Chat().reply(Says(("drip",))).pieces if isinstance(piece, bytes))
        third = len(body) // 3

        async def wait() -> None:
            await asyncio.sleep(0.1)  # real time: two pauses are longer than the limit of one

        drips: list[Piece] = [body[:third], wait, body[third : 2 * third], wait, body[2 * third :]]
        assert (await chat.receive(Reply(drips))).answer.message.content == "drip"


async def test_no_connection_is_waited_for_for_ever() -> None:
    # A listener with a full backlog accepts nobody: the handshake is never answered.
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        callers = [socket.socket() for _ in range(4)]
        try:
            for caller in callers:
                caller.setblocking(False)
                caller.connect_ex(("127.0.0.1", port))
            async with wired_to("chat", ChatLimits(connect_seconds=0.2, idle_seconds=5)) as chat:
                spec = replace(chat.spec, base_url=f"http://127.0.0.1:{port}/v1")
                with pytest.raises(
                    ModelUnreachable, match=r"did not accept a connection within 0\.2 seconds"
                ):
                    await chat.ask(Says(("Hi.",)), spec=spec)
        finally:
            for caller in callers:
                caller.close()


# -- the network -------------------------------------------------------------------------


async def test_a_refused_connection_is_reported(chat: Wired) -> None:
    with pytest.raises(ModelUnreachable, match=r"cannot connect to 127\.0\.0\.1:1;"):
        await chat.ask(Says(("Hi.",)), spec=replace(chat.spec, base_url="http://127.0.0.1:1/v1"))


async def test_an_unknown_host_is_reported(chat: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(host: Any, *_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    with pytest.raises(ModelUnreachable, match=r"no such host: nowhere\.invalid"):
        await chat.ask(Says(("Hi.",)), spec=replace(chat.spec, base_url="https://nowhere.invalid/v1"))


@asynccontextmanager
async def saying(said: bytes) -> AsyncIterator[str]:
    """Where somebody says this to whoever comes, and hangs up."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_tls_to_a_plain_port_is_reported(chat: Wired) -> None:
    async with saying(b"HTTP/1.1 400 Bad Request\r\n\r\n") as where:
        with pytest.raises(ModelUnreachable, match="TLS"):
            await chat.ask(Says(("Hi.",)), spec=replace(chat.spec, base_url=f"https://{where}/v1"))


@pytest.mark.parametrize("said", [b"", b"220 mail.example ESMTP\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-"])
async def test_a_server_without_http_is_unreachable(chat: Wired, said: bytes) -> None:
    async with saying(said) as where:
        with pytest.raises(ModelUnreachable):
            await chat.ask(Says(("Hi.",)), spec=replace(chat.spec, base_url=f"http://{where}/v1"))


@pytest.mark.parametrize(
    ("provider", "has_address", "advice"),
    [
        ("ollama", False, "start Ollama (`ollama serve`), or set OLLAMA_HOST to its address"),
        ("ollama", True, "check its base_url and the network"),
        ("openai", True, "check its base_url and the network"),
        ("openai", False, "check the network"),
    ],
)
def test_the_advice_for_an_unreachable_model_fits_its_address(
    provider: str, has_address: bool, advice: str
) -> None:
    spec = ModelSpec(provider, "x", base_url="http://127.0.0.1:1/v1" if has_address else None)
    assert what_to_check(spec) == advice


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(chat: Wired, status: int) -> None:
    async with Server(Chat().reply(Says(("From elsewhere.",)))) as elsewhere:
        headers = {"Location": elsewhere.url, "Content-Type": "text/html"}
        with pytest.raises(ModelError, match="redirect"):
            await chat.receive(Reply([b"moved"], status, headers, Framing.LENGTH))
        assert elsewhere.asked == 0


async def test_the_environment_names_no_proxy(chat: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Server(Chat().reply(Says(("From the proxy.",)))) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        received = await chat.ask(Says(("From the server.",)))
        assert received.answer.message.content == "From the server."
        assert proxy.asked == 0


async def test_responses_are_not_decompressed(chat: Wired) -> None:
    whole = b"".join(piece for piece in Chat().reply(Says(("Hi.",))).pieces if isinstance(piece, bytes))
    headers = {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}
    with pytest.raises(ModelGarbled):
        await chat.receive(Reply([gzip.compress(whole)], headers=headers))
    assert chat.server.requests[-1].headers["accept-encoding"] == "identity"


# -- too much ------------------------------------------------------------------------------


def _line() -> list[bytes]:
    return [b"data: ", *[b"x" * 65536] * 1600]


def _small_chunks() -> list[bytes]:
    event = b"data: " + json.dumps(Chat().chunk({"content": "x" * 80})).encode() + b"\n\n"
    return [event * 400] * (100 * MIB // (len(event) * 400))


def _plain() -> list[bytes]:
    return [b'{"choices": [', *[b" " * 65536] * 1600]


def _one_call() -> list[bytes]:
    begin = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]}
    piece = {"tool_calls": [{"index": 0, "function": {"arguments": "x" * 1000}}]}
    events = [b"data: " + json.dumps(Chat().chunk(delta)).encode() + b"\n\n" for delta in (begin, piece)]
    return [events[0], *[events[1] * 60] * 1600]


@pytest.mark.slow
@pytest.mark.parametrize("much", [_line, _small_chunks, _plain, _one_call])
async def test_I40_a_hundred_megabytes_do_not_fill_the_memory(
    chat: Wired, much: Callable[[], list[bytes]]
) -> None:
    pieces = much()
    assert sum(map(len, pieces)) > 99 * 1000 * 1000
    before = resident()
    peaks = [before]

    async def drop_them() -> None:
        async with aclosing(chat.table.find(chat.spec).stream(ModelCall(chat.spec, HELLO))) as parts:
            number = 0
            async for _ in parts:
                number += 1
                if number % 5000 == 0:
                    peaks.append(resident())

    chat.server.say(Reply(pieces))
    with pytest.raises(ModelGarbled):
        await drop_them()
    peaks.append(resident())
    grown = (max(peaks) - before) // MIB
    assert grown < 96, f"{grown} MiB more than before"
    await asyncio.wait_for(chat.server.left.wait(), 5)


async def test_I40_of_a_long_refusal_only_the_beginning_is_read(chat: Wired) -> None:
    page = Reply([b" " * 65536] * 1600, 500, PLAIN)
    with pytest.raises(ModelOverloaded):
        await chat.receive(page)
    await asyncio.wait_for(chat.server.left.wait(), 5)
    assert chat.server.sent < 16 * MIB


async def test_a_long_conversation_is_sent_whole(chat: Wired) -> None:
    long = tuple(user(f"{n} " + "x" * 100_000) for n in range(30))
    await chat.ask(Says(("Hi.",)), long)
    assert [text for _, text in chat.seen.said] == [message.content for message in long]


# -- leaving -----------------------------------------------------------------------------


@asynccontextmanager
async def _listening(chat: Wired, reply: Reply) -> AsyncIterator[tuple[asyncio.Task[None], list[Chunk]]]:
    """Somebody who has heard the first chunk and waits for the next."""
    chunks: list[Chunk] = []
    first = asyncio.Event()
    chat.server.say(reply)

    async def run() -> None:
        async with aclosing(chat.table.find(chat.spec).stream(ModelCall(chat.spec, HELLO))) as parts:
            async for part in parts:
                assert isinstance(part, Chunk)
                chunks.append(part)
                first.set()

    task = asyncio.create_task(run())
    await asyncio.wait_for(first.wait(), 5)
    yield task, chunks
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_cancelled_call_closes_its_connection_at_once(chat: Wired) -> None:
    endless = Reply(Chat().reply(Says(("one ", "two"))).pieces[:2], end=End.HANG)
    async with _listening(chat, endless) as (task, chunks):
        assert chunks == [Chunk("one ")]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        await asyncio.wait_for(chat.server.left.wait(), 5)
    await chat.ask(Says(("Hi.",)))
    assert chat.server.connections == 2, "a connection with half an answer in it was used again"


async def test_a_call_cancelled_before_the_first_byte_closes_its_connection(chat: Wired) -> None:
    chat.server.say(Reply([], end=End.HANG))
    task = asyncio.create_task(listen(chat.table.find(chat.spec), ModelCall(chat.spec, HELLO)))
    await eventually(lambda: chat.server.asked)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.wait_for(chat.server.left.wait(), 5)


async def test_leaving_a_stream_closes_the_connection(chat: Wired) -> None:
    chat.server.say(Reply(Chat().reply(Says(("one ", "two"))).pieces[:2], end=End.HANG))
    async with aclosing(chat.table.find(chat.spec).stream(ModelCall(chat.spec, HELLO))) as parts:
        assert await anext(parts) == Chunk("one ")
    await asyncio.wait_for(chat.server.left.wait(), 5)


async def test_a_server_that_does_not_hang_up_delays_no_answer(chat: Wired) -> None:
    received = await asyncio.wait_for(chat.receive(replace(Chat().reply(Says(("Hi.",))), end=End.HANG)), 2)
    assert received.answer.message.content == "Hi."
    await chat.ask(Says(("Hi.",)))
    assert chat.server.connections == 2


async def test_an_end_that_comes_a_moment_later_costs_no_connection(chat: Wired) -> None:
    async def moment() -> None:
        await asyncio.sleep(0.02)  # real time: of a server that ends its response late

    late = Reply([*Chat().reply(Says(("Hi.",))).pieces, moment])
    for _ in range(2):
        await chat.receive(late)
    assert chat.server.connections == 1


async def test_calls_side_by_side_have_connections_of_their_own(chat: Wired) -> None:
    everybody = asyncio.Event()

    async def all_there() -> None:
        if chat.server.asked == 120:
            everybody.set()
        await everybody.wait()

    whole = Chat().reply(Says(tuple(f"{n} " for n in range(50))))
    chat.server.say(Reply([*whole.pieces[:5], all_there, *whole.pieces[5:]]))
    provider, call = chat.table.find(chat.spec), ModelCall(chat.spec, HELLO)
    received = await asyncio.wait_for(asyncio.gather(*(listen(provider, call) for _ in range(120))), 20)
    assert {one.answer.message.content for one in received} == {"".join(f"{n} " for n in range(50))}
    assert chat.server.connections == 120


async def test_after_closing_it_can_be_asked_again(chat: Wired) -> None:
    await chat.ask(Says(("Hi.",)))
    await chat.table.close()
    await chat.table.close()
    assert (await chat.ask(Says(("Hi again.",)))).answer.message.content == "Hi again."


# -- what is asked -------------------------------------------------------------------------


async def test_a_stream_with_its_usage_is_requested(chat: Wired) -> None:
    await chat.ask(Says(("Hi.",)))
    body = chat.server.requests[-1].body
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


async def test_a_server_that_knows_no_stream_options_is_spared_them(chat: Wired) -> None:
    await chat.ask(Says(("Hi.",)), spec=replace(chat.spec, options={"stream_options": False}))
    assert "stream_options" not in chat.server.requests[-1].body


async def test_system_messages_are_sent_as_one(chat: Wired) -> None:
    said = [Message(Role.SYSTEM, text) for text in ("Be brief.", "Be kind.")]
    await chat.ask(Says(("Hi.",)), (*said, *HELLO, Message(Role.SYSTEM, "Hurry.")))
    roles = [(message["role"], message["content"]) for message in chat.server.requests[-1].body["messages"]]
    assert roles == [("system", "Be brief.\n\nBe kind."), ("user", "hello"), ("system", "Hurry.")]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"top_p": 0.5, "frequency_penalty": 1.0, "presence_penalty": -1.0},
         {"top_p": 0.5, "frequency_penalty": 1.0, "presence_penalty": -1.0}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"thinking": "high"}, {"reasoning_effort": "high"}),
        ({"thinking": 1024}, {"reasoning_effort": "low"}),
        ({"thinking": 8192}, {"reasoning_effort": "medium"}),
        ({"thinking": 30000}, {"reasoning_effort": "high"}),
        ({"thinking": "none"}, {}), ({"thinking": 0}, {}), ({"thinking": -1}, {}),
        ({"options": {"seed": 7, "top_k": 3, "region": "x"}}, {"seed": 7, "top_k": 3}),
        ({"options": {"extra_body": {"temperature": 2, "x": [1]}}, "temperature": 1.0},
         {"temperature": 2, "x": [1]}),
        ({"parallel_tool_calls": False}, {}),
    ],
)  # fmt: skip
async def test_settings_have_their_names(
    chat: Wired, settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    await chat.ask(Says(("Hi.",)), spec=replace(chat.spec, **settings))
    body = chat.server.requests[-1].body
    rest = {
        name: body[name] for name in body if name not in ("model", "messages", "stream", "stream_options")
    }
    assert rest == expected


async def test_openai_has_another_name_for_the_limit(chat: Wired) -> None:
    await chat.ask(Says(("Hi.",)), spec=replace(chat.spec, provider="openai", max_tokens=5))
    assert chat.server.requests[-1].body["max_completion_tokens"] == 5


async def test_azure_has_another_header_for_the_key(chat: Wired) -> None:
    options = {"api_version": "2024-12-01"}
    spec = replace(chat.spec, provider="azure", model="gpt 4", base_url=chat.server.url, options=options)
    await chat.ask(Says(("Hi.",)), spec=spec)
    request = chat.server.requests[-1]
    assert request.path == "/openai/deployments/gpt%204/chat/completions?api-version=2024-12-01"
    assert request.headers["api-key"].startswith("sk-canary")
    assert "authorization" not in request.headers


async def test_a_server_of_ones_own_is_asked_without_a_key(chat: Wired) -> None:
    await chat.ask(Says(("Hi.",)), spec=replace(chat.spec, token_key=None))
    assert "authorization" not in chat.server.requests[-1].headers


async def test_headers_of_ones_own_are_sent(chat: Wired) -> None:
    options = {"http_headers": {"X-Team": "blue", "X-Key": "${WIRE_KEY}"}}
    await chat.ask(Says(("Hi.",)), spec=replace(chat.spec, options=options))
    headers = chat.server.requests[-1].headers
    assert headers["x-team"] == "blue"
    assert headers["x-key"].startswith("sk-canary")


@pytest.mark.parametrize("value", ["a\nX-Evil: 1", "é", "a\x00"])
async def test_a_header_that_would_be_two_is_refused(chat: Wired, value: str) -> None:
    with pytest.raises(KeyRefused):
        await chat.ask(Says(("Hi.",)), spec=replace(chat.spec, options={"http_headers": {"X": value}}))
    assert chat.server.asked == 0


@pytest.mark.parametrize(
    "url",
    ["ftp://x/v1", "localhost:8000/v1", "http://", "http://[::1", "http://h:99999/v1", "http://u:p@h/v1", "http://h/?a=b"],
)  # fmt: skip
async def test_an_invalid_address_is_rejected(chat: Wired, url: str) -> None:
    with pytest.raises(ModelUnknown, match="base_url"):
        await chat.ask(Says(("Hi.",)), spec=replace(chat.spec, base_url=url))


async def test_what_cannot_be_json_is_refused(chat: Wired) -> None:
    with pytest.raises(ModelError, match="JSON"):
        await chat.ask(Says(("Hi.",)), spec=replace(chat.spec, options={"extra_body": {"x": object()}}))


# -- how servers say no ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "why\n not"}}, "why not"),
        ({"error": "why not"}, "why not"),
        ([{"error": {"message": "why not"}}], "why not"),
        ({"message": "why not"}, "why not"),
        ({"detail": "why not"}, "why not"),
        ({"detail": [{"msg": "why not", "loc": ["body"]}]}, "why not"),
        ({"errors": [{"message": "why not"}]}, "why not"),
        ({"object": "error", "message": "why not", "code": 400}, "why not"),
    ],
)
async def test_the_providers_message_is_found(chat: Wired, body: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        await chat.receive(as_json(body, 400))


@pytest.mark.parametrize(
    "body", [b"", b"nope", b"[]", b"42", b'{"error": {}}', b'{"error": {"message": 42}}', b"\xff"]
)
async def test_an_empty_refusal_is_still_a_refusal(chat: Wired, body: bytes) -> None:
    with pytest.raises(ProviderRateLimited):
        await chat.receive(Reply([body], 429, PLAIN, Framing.LENGTH))


async def test_long_words_are_cut(chat: Wired) -> None:
    with pytest.raises(ModelError) as raised:
        await chat.receive(Chat().error(400, "x", "blah " * 10_000))
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry_after": "3"}, 3.0),
        ({"retry_after": "0.5"}, 0.5),
        ({"retry_after_ms": "250", "retry_after": "9"}, 0.25),
        ({"retry_after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry_after": "soon"}, None),
        ({"retry_after": "-1"}, None),
        ({"retry_after": "inf"}, None),
        ({"retry_after": "nan"}, None),
        ({}, None),
    ],
)
async def test_when_to_come_back_is_read(
    chat: Wired, headers: dict[str, str], expected: float | None
) -> None:
    with pytest.raises(ProviderRateLimited) as raised:
        await chat.receive(Chat().error(429, "x", "slow", **headers))
    assert raised.value.retry_after == expected


async def test_a_refused_call_leaves_the_next_one_alone(chat: Wired) -> None:
    with pytest.raises(ContextOverflow):
        await chat.receive(Chat().error(400, "context_length_exceeded", "too long"))
    assert (await chat.ask(Says(("Hi.",)))).answer == ModelAnswer(assistant("Hi."), Usage(12, 7))


@pytest.mark.parametrize(
    ("model", "keys", "advice"),
    [
        (
            ModelSpec("openai", "m"),
            {"OPENAI_API_KEY": "sk-wrong"},
            "rejected the API key in OPENAI_API_KEY: no;",
        ),
        (ModelSpec("openai", "m"), {}, "requires an API key: no; set OPENAI_API_KEY"),
        (
            ModelSpec("openai", "m", keyless=True),
            {"OPENAI_API_KEY": "sk-x"},
            "use a copy of the file on disk",
        ),
        (ModelSpec("ollama", "m"), {}, "requires an API key: no; name its variable with `token_key`"),
    ],
    ids=["wrong", "not set", "not sent", "no variable"],
)
def test_a_rejected_key_says_which_one_and_whether_there_was_any(
    model: ModelSpec, keys: dict[str, str], advice: str
) -> None:
    assert advice in refusal(model, 401, ErrorText("no"), Secrets(keys)).message
