"""Decides which transcript a runtime gets, if its native session does not contain the conversation.

A transcript consists of whole turns, the newest first until the size limit; a marker says how many older
ones were left out. It holds what people and the agent said. Tool calls are named and their results left out:
the agent that reads it cannot use them. The newest turn is never left out: if it alone is too long, its
messages are shortened, with a mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lastgood.model.ids import TurnId
from lastgood.model.messages import File, Image, Message, Part, Role
from lastgood.model.sessions import Turn, TurnKind

MOST_CHARACTERS = 200_000


@dataclass(frozen=True, slots=True)
class TranscriptLine:
    role: str  # user, assistant or system; system only for the marker
    content: str


def transcript(turns: Sequence[Turn], most: int = MOST_CHARACTERS) -> tuple[TranscriptLine, ...]:
    """`turns`: since the last reset, oldest first."""
    rendered = [lines for turn in turns if (lines := _lines_of(turn))]
    kept: list[tuple[TranscriptLine, ...]] = []
    left = most
    for lines in reversed(rendered):
        size = sum(len(line.content) for line in lines)
        if size > left:
            break
        kept.append(lines)
        left -= size
    if rendered and not kept:
        kept.append(_shortened(rendered[-1], most))
    omitted = len(rendered) - len(kept)
    said = tuple(line for lines in reversed(kept) for line in lines)
    return (_marker(omitted), *said) if omitted else said


def catch_up(
    turns: Sequence[Turn], after: TurnId | None, most: int = MOST_CHARACTERS
) -> tuple[TranscriptLine, ...]:
    """What was said after that turn; None: all of it."""
    ids = [turn.id for turn in turns]
    start = 0 if after is None else ids.index(after) + 1
    return transcript(turns[start:], most)


def since_reset(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Prompts start after the last reset."""
    resets = [place for place, turn in enumerate(turns) if turn.kind is TurnKind.RESET]
    return tuple(turns[resets[-1] + 1 :] if resets else turns)


def text_of_input(messages: Sequence[Message]) -> str:
    """What a turn says to its agent, as one prompt. If others than the user speak in it, as in a request that
    carries its own history, each message says whose it is."""
    said = [(message.role, content) for message in messages if (content := _content(message))]
    if all(role is Role.USER for role, _ in said):
        return "\n\n".join(content for _, content in said)
    return "\n\n".join(f"{role.value}: {content}" for role, content in said)


def _marker(omitted: int) -> TranscriptLine:
    turns = "1 earlier turn is" if omitted == 1 else f"{omitted} earlier turns are"
    return TranscriptLine("system", f"[{turns} left out here, because the conversation is too long]")


def _lines_of(turn: Turn) -> tuple[TranscriptLine, ...]:
    return tuple(
        TranscriptLine(message.role.value, content)
        for message in turn.messages
        if message.role is not Role.TOOL and (content := _content(message))
    )


def _content(message: Message) -> str:
    parts = [_part(part) for part in message.parts] if message.parts else [message.content]
    calls = [f"[called the tool {call.name}]" for call in message.tool_calls]
    return "\n".join(text for text in (*parts, *calls) if text.strip())


def _part(part: Part) -> str:
    match part:
        case Image():
            return "[an image, left out]"
        case File(name, _):
            return f"[the file {name}, left out]"
        case text:
            return text


def _shortened(lines: tuple[TranscriptLine, ...], most: int) -> tuple[TranscriptLine, ...]:
    share = most // len(lines)
    return tuple(TranscriptLine(line.role, cut(line.content, share)) for line in lines)


def cut(text: str, most: int) -> str:
    """The beginning and the end of a long text, with a mark for what is left out between them."""
    if len(text) <= most:
        return text
    head, tail = most * 2 // 3, most // 3
    return f"{text[:head]}\n[… {len(text) - head - tail} characters left out …]\n{text[len(text) - tail :]}"
