"""Asking over the SDK, streamed or not, with one kind of answer for both."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.e2e.command import AGENT
from tests.e2e.fake_model import Gate
from tests.e2e.server import LiveServer

#: Every row of "streamed and not" is one test.
BOTH = (False, True)


@dataclass(frozen=True)
class Said:
    id: str
    text: str
    calls: list[tuple[str, str, str]]  # id, name, arguments
    finish: str | None
    usage: tuple[int, int] | None
    headers: Mapping[str, str]

    @property
    def replayed(self) -> bool:
        return self.headers.get("idempotent-replayed") == "true"


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None, calls: Sequence[tuple[str, str, str]] = ()) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, name, arguments in calls
        ]
    return message


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def tool(name: str) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {}}},
    }


def ask(
    client: openai.OpenAI,
    what: str | Sequence[dict[str, Any]],
    *,
    stream: bool = False,
    conversation: str | None = None,
    key: str | None = None,
    model: str = AGENT,
    headers: Mapping[str, str] | None = None,
    **options: Any,
) -> Said:
    sent = dict(headers or {})
    if conversation is not None:
        sent["X-Conversation-Id"] = conversation
    if key is not None:
        sent["Idempotency-Key"] = key
    messages: Any = [user(what)] if isinstance(what, str) else list(what)
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=messages, stream=stream, extra_headers=sent, **options
    )
    answer: Any = raw.parse()
    if stream:
        with answer:
            return joined(list(answer), raw.headers)
    return whole(answer, raw.headers)


def whole(answer: ChatCompletion, headers: Mapping[str, str]) -> Said:
    (choice,) = answer.choices
    usage = answer.usage
    assert usage is not None
    calls = [
        (call.id, call.function.name, call.function.arguments)
        for call in choice.message.tool_calls or ()
        if call.type == "function"
    ]
    return Said(
        answer.id,
        choice.message.content or "",
        calls,
        choice.finish_reason,
        (usage.prompt_tokens, usage.completion_tokens),
        dict(headers),
    )


def joined(chunks: Sequence[ChatCompletionChunk], headers: Mapping[str, str]) -> Said:
    """All chunks as one answer. That it is one at all is checked on the way."""
    assert chunks, "a stream of nothing"
    first = chunks[0]
    assert first.choices[0].delta.role == "assistant"
    assert {chunk.id for chunk in chunks} == {first.id}
    text, finish, usage = "", None, None
    calls: dict[int, tuple[str, str, str]] = {}
    for chunk in chunks:
        if chunk.usage is not None:
            usage = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
        for choice in chunk.choices:
            assert finish is None, "more after the end"
            finish = choice.finish_reason
            text += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                assert call.function is not None
                calls[call.index] = (
                    call.id or "",
                    call.function.name or "",
                    call.function.arguments or "",
                )
    return Said(first.id, text, [calls[index] for index in sorted(calls)], finish, usage, dict(headers))


def ask_and_go(
    server: LiveServer,
    gate: Gate,
    what: str,
    *,
    stream: bool,
    conversation: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Asks the fake model, reads nothing, and breaks the connection once the model is at `gate`."""
    sent = request_of(server, what, stream=stream, conversation=conversation, headers=headers)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(sent)
        gate.until_reached()


def request_of(
    server: LiveServer,
    what: str,
    *,
    stream: bool,
    conversation: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """A question to the fake model, byte for byte."""
    body = json.dumps({"model": "remote", "messages": [user(what)], "stream": stream}).encode()
    sent = {
        "Host": f"127.0.0.1:{server.port}",
        "Authorization": f"Bearer {server.api_key}",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **(headers or {}),
    }
    if conversation is not None:
        sent["X-Conversation-Id"] = conversation
    head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    return f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + body


@contextmanager
def asking(client: openai.OpenAI, what: Any, **options: Any) -> Iterator[Future[Said]]:
    """The same in another thread, while the block does something else; it must be over at the block's end."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(lambda: ask(client, what, **options))
