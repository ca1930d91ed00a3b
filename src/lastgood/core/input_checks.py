"""Decides whether input is valid. A rejected request has changed nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import orjson

from lastgood.errors import InvalidRequest, TooLarge
from lastgood.model.messages import File, Image, Message, Part, Role, ToolCall
from lastgood.model.sessions import TurnKind

MOST_IN_TITLE = 200
#: Every list of sessions carries it.
MOST_IN_METADATA_BYTES = 64 * 1024


def check_input(messages: Sequence[Message], kind: TurnKind, limit_bytes: int) -> None:
    if kind is TurnKind.RESET and not messages:
        return
    if not messages:
        raise InvalidRequest("`messages` is empty; send at least one message")
    for number, message in enumerate(messages, 1):
        check_message(message, f"message {number}")
    if kind is TurnKind.RUN and not _asks_something(messages):
        raise InvalidRequest("The last message must have the role `user`; add one")
    size = sum(len(text.encode()) for message in messages for text in _texts(message))
    if size > limit_bytes:
        raise TooLarge(f"Input is {size:,} bytes; the limit is {limit_bytes:,}. Send less")


def check_message(message: Message, what: str) -> None:
    for text in _texts(message):
        check_text(text, what)
    if message.role in (Role.SYSTEM, Role.USER) and message.is_blank:
        raise InvalidRequest(f"{what} is blank; send some text")
    for part in message.parts:
        _check_part(part, what)


def _asks_something(messages: Sequence[Message]) -> bool:
    """The user speaks last, or the results of calls do: of the message before them, or of the turn before.
    System messages may follow: some clients repeat their instructions at the end."""
    end = len(messages)
    while end > 0 and messages[end - 1].role is Role.SYSTEM:
        end -= 1
    start = end
    while start > 0 and messages[start - 1].role is Role.TOOL:
        start -= 1
    if start == end or start == 0:
        return end > 0 and messages[end - 1].role in (Role.USER, Role.TOOL)
    called = {call.id for call in messages[start - 1].tool_calls}
    return all(message.tool_call_id in called for message in messages[start:end])


def check_results(messages: Sequence[Message], open_calls: Sequence[ToolCall]) -> None:
    """Results that come first answer the calls that the turn before left open: all, and no others."""
    first = takewhile(lambda message: message.role is Role.TOOL, messages)
    results = sorted(message.tool_call_id or "" for message in first)
    if results and results != sorted(call.id for call in open_calls):
        if not open_calls:
            raise InvalidRequest("No tool calls are open; send a user message")
        wanted = ", ".join(call.id for call in open_calls)
        raise InvalidRequest(
            f"Tool results do not match the open tool calls ({wanted}); send exactly one result for each"
        )


def _check_part(part: Part, what: str) -> None:
    """Attachments are in the request or on the public web: a file: URL would read this server's disk."""
    match part:
        case Image(url) if not url.startswith(("https://", "data:image/")):
            raise InvalidRequest(f"An image of {what} is neither an https: URL nor a data:image/ URL")
        case File(_, data) if not data.startswith("data:"):
            raise InvalidRequest(f"A file of {what} is not a data: URL")
        case _:
            return


def _texts(message: Message) -> Iterator[str]:
    yield message.content
    for part in message.parts:  # a text is in the content, too
        if isinstance(part, Image):
            yield part.url
        elif isinstance(part, File):
            yield from (part.name, part.data)
    for call in message.tool_calls:
        yield from (call.id, call.name, call.arguments)
    if message.tool_call_id is not None:
        yield message.tool_call_id


def check_text(text: str, what: str) -> None:
    """Text that every store and every provider can carry."""
    if "\x00" in text:
        raise InvalidRequest(f"{what} contains a NUL character; remove it")
    if not text.isascii():
        try:
            text.encode()  # by far the quickest way to look at each character
        except UnicodeEncodeError:
            raise InvalidRequest(f"{what} contains an unpaired surrogate; remove it") from None


def check_title(title: str) -> str:
    check_text(title, "the title")
    title = " ".join(title.split())
    if not title:
        raise InvalidRequest("The title is blank; send some text")
    if len(title) > MOST_IN_TITLE:
        raise InvalidRequest(f"The title has {len(title)} characters; the limit is {MOST_IN_TITLE}")
    return title


def check_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    size = len(orjson.dumps(metadata))
    if size > MOST_IN_METADATA_BYTES:
        raise TooLarge(f"`metadata` is {size:,} bytes of JSON; the limit is {MOST_IN_METADATA_BYTES:,}")
    return dict(metadata)


_FORK = re.compile(r"(.*?) \(fork(?: (\d{1,9}))?\)", re.DOTALL)


def fork_title(title: str, forks: int) -> str:
    """`forks`: how many there are of it already. A fork of a fork counts on from it."""
    if not title:
        return ""
    match = _FORK.fullmatch(title)
    stem, own = (match[1], int(match[2] or 1)) if match else (title, 0)
    suffix = f" (fork {max(own, forks) + 1})"
    return stem[: MOST_IN_TITLE - len(suffix)] + suffix


def first_words(messages: Sequence[Message], limit: int = 50) -> str:
    """A title from what the user said first."""
    text = next((message.content for message in messages if message.role is Role.USER), "")
    # So many words are more than so many characters, and the rest may be megabytes.
    words = " ".join(text.split(None, limit)[:limit])
    if len(words) <= limit:
        return words
    cut = words[: limit - 1]
    return (cut.rsplit(" ", 1)[0] if " " in cut else cut) + "…"


def check_remote_dir(path: str) -> str:
    """Of another machine: only its form can be judged here, and its worker judges the rest."""
    check_text(path, "the working directory")
    if not path.startswith(("/", "~/")):
        raise InvalidRequest(
            f"`working_dir` must be an absolute path on the machine of the runtime, not {path!r}",
            param="working_dir",
        )
    return path
