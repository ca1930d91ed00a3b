"""Which HTTP client costs least: calls of fifty chunks each, on real sockets, many side by side.

The server is another process, so the CPU that is counted is the client's alone. Every
client does the same: one request, every event parsed, the texts joined. `lastgood` is the
provider as it is used; `aiohttp` is what it is built on, written by hand as bare as can be.
"""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import aiohttp
import httpx2
import orjson

from lastgood.engine.providers.chat_completions import ChatCompletions
from lastgood.engine.providers.provider import ModelAnswer, ModelCall
from lastgood.model.agents import ModelSpec
from lastgood.model.messages import user
from lastgood.outside.secrets import Secrets
from tests.wires.dialects import Chat, Says
from tests.wires.server import Server

CHUNKS = 50
CALLERS = 16
TEXT = "".join(f"word{number} " for number in range(CHUNKS))
BODY = orjson.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True,
     "stream_options": {"include_usage": True}}
)  # fmt: skip
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer key-123456"}

Call = Callable[[], Awaitable[str]]


def _text(data: bytes) -> str:
    """Of one line of the stream."""
    if not data.startswith(b"data: ") or data == b"data: [DONE]":
        return ""
    choices = orjson.loads(data[6:])["choices"]
    return choices[0]["delta"].get("content") or "" if choices else ""


@asynccontextmanager
async def _aiohttp(url: str) -> AsyncIterator[Call]:
    async with aiohttp.ClientSession() as session:

        async def call() -> str:
            texts: list[str] = []
            rest = b""
            async with session.post(f"{url}/chat/completions", data=BODY, headers=HEADERS) as response:
                async for data in response.content.iter_any():
                    *lines, rest = (rest + data).split(b"\n")
                    texts += map(_text, lines)
            return "".join(texts)

        yield call


@asynccontextmanager
async def _httpx(url: str, library: Any) -> AsyncIterator[Call]:
    async with library.AsyncClient(trust_env=False, timeout=60) as client:

        async def call() -> str:
            texts: list[str] = []
            rest = b""
            async with client.stream(
                "POST", f"{url}/chat/completions", content=BODY, headers=HEADERS
            ) as response:
                async for data in response.aiter_raw():
                    *lines, rest = (rest + data).split(b"\n")
                    texts += map(_text, lines)
            return "".join(texts)

        yield call


@asynccontextmanager
async def _lastgood(url: str) -> AsyncIterator[Call]:
    provider = ChatCompletions(Secrets({"KEY": "key-123456"}))
    spec = ModelSpec("wire", "m", url, "KEY")

    async def call() -> str:
        async with aclosing(provider.stream(ModelCall(spec, (user("hello"),)))) as parts:
            async for part in parts:
                if isinstance(part, ModelAnswer):
                    return part.message.content
        raise AssertionError("no answer")

    try:
        yield call
    finally:
        await provider.close()


@asynccontextmanager
async def _openai(url: str, library: Any) -> AsyncIterator[Call]:
    async with library.AsyncOpenAI(api_key="key-123456", base_url=url) as client:

        async def call() -> str:
            said = [{"role": "user", "content": "hello"}]
            stream = await client.chat.completions.create(model="m", messages=said, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

        yield call


def clients(url: str) -> Iterator[tuple[str, Any]]:
    yield "aiohttp", _aiohttp(url)
    yield "lastgood", _lastgood(url)
    yield "httpx2", _httpx(url, httpx2)
    for name, client in (("httpx", _httpx), ("openai", _openai)):
        try:
            yield name, client(url, importlib.import_module(name))
        except ImportError:
            continue


async def _cost(making: Any, calls: int) -> float:
    """Microseconds of CPU a call, with CALLERS of them side by side."""
    async with making as call:

        async def some(number: int) -> None:
            for _ in range(number):
                assert await call() == TEXT

        await asyncio.gather(*(some(2) for _ in range(CALLERS)))
        began = time.process_time()
        await asyncio.gather(*(some(calls // CALLERS) for _ in range(CALLERS)))
        return (time.process_time() - began) / (calls // CALLERS * CALLERS) * 1e6


@contextmanager
def server() -> Iterator[str]:
    """A model server in a process of its own."""
    command = [sys.executable, "-m", "tests.wires.clients"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip() + "/v1"
        finally:
            process.terminate()


def compare(calls: int, repeats: int) -> dict[str, float]:
    """The least that each client needed, of several rounds: other work on the machine only ever adds."""
    least: dict[str, float] = {}
    with server() as url:
        for _ in range(repeats):
            for name, making in clients(url):
                cost = asyncio.run(_cost(making, calls))
                least[name] = min(cost, least.get(name, cost))
    return least


async def _serve() -> None:
    async with Server(Chat().reply(Says(tuple(f"word{number} " for number in range(CHUNKS))))) as served:
        print(served.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve())
