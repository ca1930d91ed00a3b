"""I41: a key goes to its provider and nowhere else: not into an error, a log, a repr or a body."""

import json
import logging
import traceback
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from lastgood.engine.providers.chat_limits import ChatLimits
from lastgood.engine.providers.chat_stream_parser import ParserLimits
from lastgood.engine.providers.fallback_chain import FallbackChain
from lastgood.engine.providers.provider import ModelCall
from lastgood.engine.providers.provider_aliases import key_of
from lastgood.engine.providers.provider_table import ProviderTable
from lastgood.errors import KeyRefused, ModelError
from lastgood.model.agents import Fallback, ModelSpec
from lastgood.model.messages import user
from lastgood.outside.secrets import Secrets
from tests.agents.corpus import parse
from tests.wires.conftest import HELLO, Wired, listen, wired_to
from tests.wires.dialects import KEY, Anthropic, Chat, Dialect, Google, Says
from tests.wires.server import End, Framing, Reply, Server, as_json

pytestmark = pytest.mark.anyio

KEYS_OF_ALL = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY")
PROMPT = "my-diary-says-4711"


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error and everything it carries along, shown or not."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [one.__cause__, one.__context__]


def everything_about(error: BaseException) -> str:
    parts = "".join(traceback.format_exception(error))
    for one in chain(error):
        parts += f"{one!r} {one} {one.args} {getattr(one, '__dict__', {})}"
    return parts


def echoes(wired: Wired) -> Iterator[Reply]:
    """Every way to get the key told back."""
    said = f"Incorrect API key provided: {KEY}. Also seen: Bearer {KEY}"
    for status in (400, 401, 404, 413, 429, 500):
        yield wired.dialect.error(status, "invalid_api_key", said)
    yield as_json({"message": said}, 400)
    yield as_json(KEY, 400)
    yield Reply([said.encode()], 400, {"Content-Type": "text/plain", "X-Echo": KEY}, Framing.LENGTH)
    yield Reply([f"<html>{said}</html>".encode()], 502, {"Content-Type": "text/html"}, Framing.LENGTH)
    yield Reply([f'data: {{"error": {{"message": "{said}", "type": "x"}}}}\n\n'.encode()])
    yield Reply([f"data: {said}\n\n".encode()])
    yield Reply([said.encode()])
    yield Reply([b"moved"], 307, {"Location": f"http://127.0.0.1:1/?key={KEY}"}, Framing.LENGTH)
    yield Reply([], end=End.RESET)
    yield Reply([b"data: "], end=End.CUT)


async def test_I41_no_error_and_no_log_holds_the_key(wired: Wired, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for reply in echoes(wired):
        with pytest.raises(ModelError) as raised:
            await wired.receive(reply)
        assert KEY not in everything_about(raised.value), reply
        assert KEY[:20] not in str(raised.value), "half a key is a key"
    await wired.ask(Says(("Hi.",)))
    assert wired.seen.key == KEY
    assert KEY not in caplog.text
    assert all(KEY not in repr(vars(record)) for record in caplog.records)


STRANGER = "models: {{m: {{provider: {}, model: x, base_url: '{}'}}}}\nagents: {{root: {{model: m}}}}"
ELSEWHERE: dict[str, tuple[Dialect, str]] = {
    "openai": (Chat(), "/v1"),
    "anthropic": (Anthropic(), ""),
    "google": (Google(), ""),
}


@pytest.mark.parametrize("keys", [{}, dict.fromkeys(KEYS_OF_ALL, KEY)], ids=["no key", "keys"])
@pytest.mark.parametrize("provider", ELSEWHERE)
async def test_I41_a_file_from_a_url_is_answered_and_never_gets_the_key(
    provider: str, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it was written that one is there, and where the SDKs would look for it themselves."""
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    dialect, path = ELSEWHERE[provider]
    table = ProviderTable(Secrets(keys))
    async with Server() as server:
        server.say(dialect.reply(Says(("Hi.",))))
        text = STRANGER.format(provider, server.url + path)
        trusted, stranger = (parse(text, trusted=one).agents["root"].models["m"] for one in (True, False))
        try:
            for model in (trusted, stranger):
                received = await listen(table.find(model), ModelCall(model, (user("hello"),)))
                assert received.text == "Hi."
        finally:
            await table.close()
        shown = [f"{request.path} {request.headers} {request.body}" for request in server.requests]
        assert [KEY in one for one in shown] == [bool(keys), False]


async def test_I41_no_repr_holds_the_key(wired: Wired) -> None:
    await wired.ask(Says(("Hi.",)))
    shown = [
        wired.table,
        wired.table.find(wired.spec),
        wired.spec,
        FallbackChain(wired.table),
        ModelCall(wired.spec, HELLO),
    ]
    assert all(KEY not in repr(one) for one in shown)


async def test_I41_a_key_without_its_provider_is_not_sent(wired: Wired) -> None:
    spec = replace(wired.spec, base_url="http://127.0.0.1:1")
    with pytest.raises(ModelError) as raised:
        await wired.ask(Says(("Hi.",)), spec=spec)
    assert KEY not in everything_about(raised.value)


async def test_no_error_holds_the_conversation(wired: Wired) -> None:
    for reply in echoes(wired):
        with pytest.raises(ModelError) as raised:
            await wired.receive(reply, (user(PROMPT),))
        assert PROMPT not in str(raised.value)


async def test_I41_what_comes_after_a_long_refusal_holds_no_half_of_a_key(chat: Wired) -> None:
    """The words are cut to a line; a key at the cut must not lose its second half only."""
    for at in range(280, 310):
        with pytest.raises(ModelError) as raised:
            await chat.receive(Chat().error(400, "x", "x" * at + KEY))
        assert KEY[:8] not in str(raised.value)


async def test_I41_a_chain_that_failed_names_models_not_keys(chat: Wired) -> None:
    chat.server.say(Chat().error(401, "invalid_api_key", f"wrong: {KEY}"))
    asking = FallbackChain(chat.table)
    models = [chat.spec, replace(chat.spec, model="model-2")]
    with pytest.raises(KeyRefused) as raised:
        async for _ in asking.ask(models, ModelCall(models[0], HELLO), Fallback()):
            pass
    assert "model-2" in str(raised.value)
    assert "WIRE_KEY" in str(raised.value)
    assert KEY not in everything_about(raised.value)


@pytest.fixture
async def impatient() -> AsyncIterator[Wired]:
    async with wired_to("chat", ChatLimits(2.0, 0.1, ParserLimits(1000, 1000, 5000))) as wired:
        yield wired


async def test_I41_no_limit_reveals_the_key(impatient: Wired) -> None:
    for reply in (
        Reply([], end=End.HANG),
        Reply([KEY.encode() * 100]),
        Reply([b": " + KEY.encode() + b"\n"] * 500),
    ):
        with pytest.raises(ModelError) as raised:
            await impatient.receive(reply)
        assert KEY not in everything_about(raised.value)


async def test_I41_a_key_is_in_no_body(wired: Wired) -> None:
    await wired.ask(Says(("Hi.",)))
    request = wired.server.requests[-1]
    assert KEY not in json.dumps(request.body)
    assert KEY not in request.path


def test_a_key_is_requested_by_name_only() -> None:
    secrets = Secrets({"A": "key-of-a", "OPENAI_API_KEY": "key-of-openai"})
    assert key_of(ModelSpec("openai", "m", token_key="A"), secrets) == "key-of-a"
    assert key_of(ModelSpec("openai", "m"), secrets) == "key-of-openai"
    assert key_of(ModelSpec("own", "m", "http://h"), secrets) is None
