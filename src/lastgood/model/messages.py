"""Messages, and the bytes they are kept as.

The bytes are the OpenAI chat shape: what is stored can be joined into a request
without being decoded. They are also what a turn's hash covers, so encoding is
deterministic: fixed field order, absent fields left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What the model asked for. Providers reuse ids across turns, so an id alone pairs nothing."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


def user(text: str) -> Message:
    return Message(Role.USER, text)


def assistant(text: str = "", *calls: ToolCall) -> Message:
    return Message(Role.ASSISTANT, text, calls)


def tool_result(call_id: str, text: str) -> Message:
    return Message(Role.TOOL, text, (), call_id)


def as_json(message: Message) -> dict[str, Any]:
    """The message in OpenAI's chat shape."""
    plain: dict[str, Any] = {"role": message.role.value, "content": message.content}
    if message.tool_calls:
        plain["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def from_json(plain: dict[str, Any]) -> Message:
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in plain.get("tool_calls", ())
    )
    return Message(Role(plain["role"]), plain["content"], calls, plain.get("tool_call_id"))


def encode(messages: Sequence[Message]) -> bytes:
    return orjson.dumps([as_json(message) for message in messages])


def decode(body: bytes) -> tuple[Message, ...]:
    return tuple(from_json(plain) for plain in orjson.loads(body))
