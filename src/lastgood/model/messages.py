"""Messages, and the bytes they are kept as.

The bytes are the OpenAI chat shape, with one field of ours, `reasoning`. They are
also what a turn's hash covers, so encoding is deterministic: fixed field order,
absent fields left out.
"""

from __future__ import annotations

import hashlib
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
    """A tool call of the model. Providers reuse ids across turns, so an id alone identifies no call."""

    id: str
    name: str
    arguments: str

    @property
    def arguments_digest(self) -> str:
        return hashlib.sha256(self.arguments.encode(errors="replace")).hexdigest()


@dataclass(frozen=True, slots=True)
class Image:
    """`url` is https: or data:; the model's provider reads it."""

    url: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class File:
    """`data` is a data: URL."""

    name: str
    data: str


#: A part of a message. A string is text.
Part = str | Image | File


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The reasoning of a model before its answer.

    `text` is for people. `opaque` is what the provider wants back, as JSON: it goes
    to the model that made it and to no other.
    """

    model: str  # provider/model
    text: str = ""
    opaque: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """`content` is its text. `parts` is all of it in order, where there is more than text."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    parts: tuple[Part, ...] = ()
    reasoning: Reasoning | None = None

    @property
    def is_blank(self) -> bool:
        return not self.content.strip() and all(isinstance(part, str) for part in self.parts)


def user(text: str) -> Message:
    return Message(Role.USER, text)


def user_parts(*parts: Part) -> Message:
    return Message(Role.USER, text_of(parts), parts=parts)


def assistant(text: str = "", *calls: ToolCall) -> Message:
    return Message(Role.ASSISTANT, text, calls)


def tool_result(call_id: str, text: str) -> Message:
    return Message(Role.TOOL, text, (), call_id)


#: How it begins that the conversation was handed over: a result of the tool, or a note before the response.
HANDED_OVER = "The conversation was handed over to "


def handover_note(name: str) -> Message:
    """What the agent that takes over reads last: many providers refuse a prompt that ends with a response."""
    return user(
        f"{HANDED_OVER}{name}, because the agent before has finished its part. You are {name} now; continue "
        "with the request of the user from what has been said so far."
    )


def is_handover_note(message: Message) -> bool:
    return message.role is Role.USER and message.content.startswith(HANDED_OVER)


def text_of(parts: Sequence[Part]) -> str:
    return "\n".join(part for part in parts if isinstance(part, str))


# -- as JSON -------------------------------------------------------------------


def as_json(message: Message) -> dict[str, Any]:
    """The message in OpenAI's chat shape, and its reasoning."""
    plain = as_chat(message)
    if message.reasoning is not None:
        reasoning = message.reasoning
        plain["reasoning"] = {"model": reasoning.model, "text": reasoning.text}
        if reasoning.opaque:
            plain["reasoning"]["opaque"] = reasoning.opaque
    return plain


def as_chat(message: Message) -> dict[str, Any]:
    """The message in OpenAI's chat shape and nothing else: what any compatible model takes."""
    plain: dict[str, Any] = {"role": message.role.value, "content": message.content}
    if message.parts:
        plain["content"] = [_part_as_json(part) for part in message.parts]
    if message.tool_calls:
        plain["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _part_as_json(part: Part) -> dict[str, Any]:
    match part:
        case str():
            return {"type": "text", "text": part}
        case Image(url, None):
            return {"type": "image_url", "image_url": {"url": url}}
        case Image(url, detail):
            return {"type": "image_url", "image_url": {"url": url, "detail": detail}}
        case File(name, data):
            return {"type": "file", "file": {"filename": name, "file_data": data}}


_ROLES = {role.value: role for role in Role}


def from_json(plain: dict[str, Any]) -> Message:
    if len(plain) == 2 and isinstance(plain["content"], str) and plain["role"] in _ROLES:
        return Message(_ROLES[plain["role"]], plain["content"])  # nearly all of them, and there may be many
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in plain.get("tool_calls", ())
    )
    content: str | list[dict[str, Any]] = plain["content"]
    parts = () if isinstance(content, str) else tuple(map(_part_from_json, content))
    reasoning = plain.get("reasoning")
    return Message(
        Role(plain["role"]),
        content if isinstance(content, str) else text_of(parts),
        calls,
        plain.get("tool_call_id"),
        parts,
        None if reasoning is None else Reasoning(**reasoning),
    )


def _part_from_json(plain: dict[str, Any]) -> Part:
    match plain["type"]:
        case "text":
            return str(plain["text"])
        case "image_url":
            return Image(plain["image_url"]["url"], plain["image_url"].get("detail"))
        case "file":
            return File(plain["file"]["filename"], plain["file"]["file_data"])
        case other:
            raise ValueError(f"no such part of a message: {other!r}")


def encode(messages: Sequence[Message]) -> bytes:
    return orjson.dumps([as_json(message) for message in messages])


def decode(body: bytes) -> tuple[Message, ...]:
    return tuple(from_json(plain) for plain in orjson.loads(body))
