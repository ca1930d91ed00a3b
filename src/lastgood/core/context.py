"""Decides how much of a conversation a model is shown.

A view leaves messages out; it never changes what is stored. The input of the turn itself is always included.
The result is always a valid conversation: an assistant's message stays together with the results of its
calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lastgood.model.messages import File, Image, Message, Part, Role, ToolCall

#: How a tool's result is counted: near enough, and the same everywhere.
CHARACTERS_PER_TOKEN = 4
#: What a tool may add to the conversation where its agent sets no limit of its own.
RESULT_CHARACTERS = 100_000
LEFT_OUT = "[content truncated]"


def trim(history: Sequence[Message], items: int) -> tuple[Message, ...]:
    """At most `items` messages of what was said before: the oldest answers go first, questions stay."""
    kept = list(history)
    surplus = len(kept) - items
    shown: list[Message] = []
    position = 0
    while position < len(kept):
        message = kept[position]
        size = 1 + _results_after(kept, position) if message.role is Role.ASSISTANT else 1
        if surplus > 0 and message.role is Role.ASSISTANT:
            surplus -= size
        else:
            shown.extend(kept[position : position + size])
        position += size
    return tuple(shown)


def _results_after(messages: Sequence[Message], position: int) -> int:
    count = 0
    while position + count + 1 < len(messages) and messages[position + count + 1].role is Role.TOOL:
        count += 1
    return count


def fitting(messages: Sequence[Message], accepts: frozenset[str]) -> tuple[Message, ...]:
    """Without the attachments that a model does not accept. In their place stands that they were there."""
    return tuple(_fitted(message, accepts) if message.parts else message for message in messages)


def _fitted(message: Message, accepts: frozenset[str]) -> Message:
    kinds = [_kind_of(part) for part in message.parts]
    if all(kind is None or kind in accepts for kind in kinds):
        return message
    parts = (
        part if kind is None or kind in accepts else f"[{kind} left out: this model does not accept it]"
        for part, kind in zip(message.parts, kinds, strict=True)
    )
    return replace(message, parts=tuple(parts))


def _kind_of(part: Part) -> str | None:
    """None: text, or a file whose text is sent."""
    if isinstance(part, Image):
        return "image"
    if not isinstance(part, File):
        return None
    media = part.data.removeprefix("data:").partition(";")[0]
    kind = "pdf" if media == "application/pdf" else media.partition("/")[0]
    return kind if kind in ("image", "pdf", "audio", "video") else None


def without_oldest(history: Sequence[Message], left_out: int) -> int | None:
    """How many of the oldest messages to leave out next, for a model that found this too long.

    Removes half of what is left, up to the next user message: an answer without its question misleads. None:
    there is nothing more to leave out.
    """
    shown = len(history) - left_out
    for position in range(left_out + max(shown // 2, 1), len(history)):
        if history[position].role is Role.USER:
            return position
    return len(history) if shown > 0 else None


def shown_of(history: Sequence[Message], left_out: int) -> tuple[Message, ...]:
    """Without the oldest `left_out` messages. What frames it, such as a summary, stays."""
    framing = (message for message in history[:left_out] if message.role is Role.SYSTEM)
    return (*framing, *history[left_out:])


def fade_results(messages: Sequence[Message], tokens: int) -> tuple[Message, ...]:
    """The newest results of tools whole, up to that many tokens; of older ones only that they were there."""
    left = tokens * CHARACTERS_PER_TOKEN
    shown: list[Message] = []
    for message in reversed(messages):
        if message.role is Role.TOOL:
            left -= len(message.content)
            if left < 0 and len(message.content) > len(LEFT_OUT):
                message = replace(message, content=LEFT_OUT)
        shown.append(message)
    return tuple(reversed(shown))


@dataclass(frozen=True, slots=True)
class Capped:
    """`full` is there where `text` is not all of it."""

    text: str
    full: str | None


def cap_result(text: str, tokens: int) -> Capped:
    """The beginning and the end of a long result: what went wrong usually stands last."""
    most = tokens * CHARACTERS_PER_TOKEN if tokens else RESULT_CHARACTERS
    if len(text) <= most:
        return Capped(text, None)
    head, tail = most * 2 // 3, most // 3
    gap = f"\n[… {len(text) - head - tail} characters omitted …]\n"
    return Capped(text[:head] + gap + text[len(text) - tail :], text)


def repeats(batches: Sequence[tuple[ToolCall, ...]], most: int) -> bool:
    """Whether the model made the same calls `most` times in a row."""
    if most <= 0 or len(batches) < most:
        return False
    asked = [tuple((call.name, call.arguments) for call in calls) for calls in batches[-most:]]
    return all(calls == asked[0] for calls in asked)
