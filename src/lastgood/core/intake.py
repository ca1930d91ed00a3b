"""Decides whether input is usable. What is refused here has changed nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lastgood.errors import InvalidRequest, TooLarge
from lastgood.model.messages import Message, Role
from lastgood.model.sessions import TurnKind


def check_input(messages: Sequence[Message], kind: TurnKind, limit_bytes: int) -> None:
    if kind is TurnKind.RESET:
        return
    if not messages:
        raise InvalidRequest("there is no message in this request; send at least one")
    for number, message in enumerate(messages, 1):
        for text in _texts(message):
            check_text(text, f"message {number}")
        if message.role is not Role.ASSISTANT and not message.content.strip():
            raise InvalidRequest(f"message {number} is blank; send some text")
    if kind is TurnKind.RUN and messages[-1].role is not Role.USER:
        raise InvalidRequest("the last message is not the user's; there is nothing new to answer")
    size = sum(len(text.encode()) for message in messages for text in _texts(message))
    if size > limit_bytes:
        raise TooLarge(f"the input has {size} bytes and this server accepts {limit_bytes}; send less")


def _texts(message: Message) -> Iterator[str]:
    yield message.content
    for call in message.tool_calls:
        yield from (call.id, call.name, call.arguments)
    if message.tool_call_id is not None:
        yield message.tool_call_id


def check_text(text: str, what: str) -> None:
    """Text that every store and every provider can carry."""
    if "\x00" in text:
        raise InvalidRequest(f"{what} contains a NUL character; remove it")
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise InvalidRequest(f"{what} contains half of a surrogate pair, which is no character; remove it")


def check_title(title: str) -> str:
    check_text(title, "the title")
    title = " ".join(title.split())
    if not title:
        raise InvalidRequest("the title is blank; give it some text")
    if len(title) > 200:
        raise InvalidRequest(f"the title has {len(title)} characters; 200 are allowed")
    return title


def first_words(messages: Sequence[Message], limit: int = 50) -> str:
    """A title from what the user said first."""
    text = next((message.content for message in messages if message.role is Role.USER), "")
    words = " ".join(text.split())
    if len(words) <= limit:
        return words
    cut = words[: limit - 1]
    return (cut.rsplit(" ", 1)[0] if " " in cut else cut) + "…"
