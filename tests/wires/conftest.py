"""One suite for every way to ask a model. `-k chat`, `-k anthropic`, … choose one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from lastgood.engine.providers.chat_limits import ChatLimits
from lastgood.engine.providers.provider import Chunk, ChunkKind, ModelAnswer, ModelCall, Provider
from lastgood.engine.providers.provider_table import ProviderTable
from lastgood.engine.providers.scripted import Scripted
from lastgood.model.agents import ModelSpec, StructuredOutput
from lastgood.model.call_options import CallOptions
from lastgood.model.messages import Message, user
from lastgood.outside.secrets import Secrets
from tests.wires.dialects import KEYS, Anthropic, Bedrock, Chat, Dialect, Google, Responses, Says, Seen
from tests.wires.server import Reply, Server

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect for dialect in (Chat(), Responses(), Anthropic(), Google(), Bedrock())
}
HELLO = (user("hello"),)


@dataclass(frozen=True)
class Received:
    chunks: list[Chunk]
    answer: ModelAnswer

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks if chunk.kind is ChunkKind.TEXT)

    @property
    def thoughts(self) -> str:
        return "".join(chunk.text for chunk in self.chunks if chunk.kind is ChunkKind.REASONING)


async def listen(provider: Provider, call: ModelCall, chunks: list[Chunk] | None = None) -> Received:
    """Everything up to the answer, which comes once and last."""
    received = [] if chunks is None else chunks
    answers: list[ModelAnswer] = []
    async with aclosing(provider.stream(call)) as parts:
        async for part in parts:
            assert not answers, "something came after the answer"
            if isinstance(part, ModelAnswer):
                answers.append(part)
            else:
                received.append(part)
    (answer,) = answers
    return Received(received, answer)


class Speaker:
    """A provider, told what its model says."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def spec(self) -> ModelSpec:
        raise NotImplementedError

    async def ask(
        self,
        says: Says,
        messages: Sequence[Message] = HELLO,
        *,
        tools: Sequence[dict[str, Any]] = (),
        output: StructuredOutput | None = None,
        options: CallOptions | None = None,
        spec: ModelSpec | None = None,
    ) -> Received:
        raise NotImplementedError


class Wired(Speaker):
    def __init__(self, dialect: Dialect, server: Server, table: ProviderTable) -> None:
        super().__init__(dialect.name)
        self.dialect = dialect
        self.server = server
        self.table = table

    @property
    def spec(self) -> ModelSpec:
        return self.dialect.spec(self.server.url)

    async def ask(
        self,
        says: Says,
        messages: Sequence[Message] = HELLO,
        *,
        tools: Sequence[dict[str, Any]] = (),
        output: StructuredOutput | None = None,
        options: CallOptions | None = None,
        spec: ModelSpec | None = None,
    ) -> Received:
        self.server.say(self.dialect.reply(says))
        spec = spec or self.spec
        call = ModelCall(spec, tuple(messages), tuple(tools), output, options or CallOptions())
        return await listen(self.table.find(spec), call)

    async def receive(
        self,
        reply: Reply,
        messages: Sequence[Message] = HELLO,
        chunks: list[Chunk] | None = None,
        spec: ModelSpec | None = None,
    ) -> Received:
        """What becomes of a reply, byte for byte."""
        self.server.say(reply)
        spec = spec or self.spec
        return await listen(self.table.find(spec), ModelCall(spec, tuple(messages)), chunks)

    @property
    def seen(self) -> Seen:
        return self.dialect.seen(self.server.requests[-1])


class Offline(Speaker):
    """The scripted model does what the last message says, so what it is to say is put there."""

    def __init__(self) -> None:
        super().__init__("scripted")

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec("builtin", "scripted")

    async def ask(
        self,
        says: Says,
        messages: Sequence[Message] = HELLO,
        *,
        tools: Sequence[dict[str, Any]] = (),
        output: StructuredOutput | None = None,
        options: CallOptions | None = None,
        spec: ModelSpec | None = None,
    ) -> Received:
        lines = [f"!say-json {json.dumps(''.join(says.text))}"] if says.text else ["!empty"]
        if says.thinks:
            lines.append("!think " + "".join(says.thinks))
        for number, (_, name, arguments) in enumerate(says.calls):
            lines.append(f"{'!also' if number else '!tool'} {name} {json.dumps(arguments)}")
        return await listen(Scripted(), ModelCall(self.spec, (*messages, user("\n".join(lines)))))


@asynccontextmanager
async def wired_to(name: str, limits: ChatLimits | None = None) -> AsyncIterator[Wired]:
    table = ProviderTable(Secrets(KEYS), limits=limits)
    async with Server() as server:
        try:
            yield Wired(DIALECTS[name], server, table)
        finally:
            await table.close()


@pytest.fixture(params=list(DIALECTS))
async def wired(request: pytest.FixtureRequest) -> AsyncIterator[Wired]:
    """Everybody with a wire."""
    async with wired_to(request.param) as wired:
        yield wired


@pytest.fixture(params=["scripted", *DIALECTS])
async def speaker(request: pytest.FixtureRequest) -> AsyncIterator[Speaker]:
    """Everybody."""
    if request.param == "scripted":
        yield Offline()
        return
    async with wired_to(request.param) as wired:
        yield wired


@pytest.fixture
async def chat() -> AsyncIterator[Wired]:
    """The native wire alone."""
    async with wired_to("chat") as wired:
        yield wired
