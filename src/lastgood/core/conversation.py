"""Decides what is new in a request that carries a whole conversation.

OpenAI clients send the whole conversation with every request. The server stores it, so only what is new
counts, by one rule: results of the open calls, and the last user message after the last answer. If there is
neither, the request is rejected; an earlier turn is never repeated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile

from lastgood.core.history import open_calls
from lastgood.errors import InvalidRequest
from lastgood.model.ids import TurnId
from lastgood.model.messages import Message, Part, Role, ToolCall
from lastgood.model.sessions import Turn, TurnKind

NOTHING_NEW = "No new user message after the last assistant message; add one and send the request again"


def new_input(
    body: Sequence[Message], *, is_first: bool, open_calls: Sequence[ToolCall]
) -> tuple[Message, ...]:
    """`is_first`: no turn is committed yet, so the whole body starts the conversation."""
    if is_first:
        return tuple(body)
    tail = _after_last_answer(body)
    results = tuple(message for message in tail if message.role is Role.TOOL)
    said = [message for message in _after_last_result(tail) if message.role is Role.USER]
    if results and not open_calls:
        results = ()
    new = (*results, *said[-1:])
    if not new:
        raise InvalidRequest(NOTHING_NEW)
    return new


def _after_last_answer(body: Sequence[Message]) -> Sequence[Message]:
    """What follows the last assistant message; results of its calls are the beginning of that."""
    for position in range(len(body) - 1, -1, -1):
        if body[position].role is Role.ASSISTANT:
            return body[position + 1 :]
    return body


def _after_last_result(tail: Sequence[Message]) -> Sequence[Message]:
    """A message before a tool result has been answered: by the response that made the call."""
    results = [position for position, message in enumerate(tail) if message.role is Role.TOOL]
    return tail[results[-1] + 1 :] if results else tail


@dataclass(frozen=True, slots=True)
class Append:
    """The body continues from the head."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """The body continues from an earlier turn, or (None) from the beginning; the turns after that are
    replaced."""

    after: TurnId | None
    messages: tuple[Message, ...]


Reconciled = Append | Change


def reconcile(body: Sequence[Message], turns: Sequence[Turn]) -> Reconciled:
    """Returns where a client that resends its history continues. Compares what a person sees: roles, texts
    and images. A client does not know the tools that ran here, and may have its own system message; neither
    is compared. Nor are the sources that a client adds to a message, which it may send only once.
    """
    new = _after_last_answer(body)
    old = body[: len(body) - len(new)]
    known = _sayings(old, theirs=len(old))
    reset, since_reset = _since_reset(turns)
    last: Turn | None = None
    place = matched = 0
    for turn in since_reset:
        ours = _sayings(turn.messages, theirs=turn.inputs)
        if [one.words for one in known[place : place + len(ours)]] != [one.words for one in ours]:
            break
        place, last, matched = place + len(ours), turn, matched + 1
    start = known[place - 1].end if place else 0
    # The client may have more history than we do, for example from another server: all of it is new here.
    rest = _new_messages(body[start:], open_calls(last.messages) if last else ())
    if not rest or not any(message.role in (Role.USER, Role.TOOL) for message in new):
        raise InvalidRequest(NOTHING_NEW)
    if matched == len(since_reset):
        return Append(rest)
    base = last or reset
    return Change(base.id if base else None, rest)


def _new_messages(rest: Sequence[Message], calls: Sequence[ToolCall]) -> tuple[Message, ...]:
    """Without the message that left `calls` open, which is ours, and without results of other calls."""
    if calls and rest and {call.id for call in rest[0].tool_calls} == {call.id for call in calls}:
        return tuple(rest[1:])
    if calls:
        return tuple(rest)
    return tuple(dropwhile(lambda message: message.role is Role.TOOL, rest))


@dataclass(frozen=True, slots=True)
class _Saying:
    role: Role
    pieces: list[str]
    shown: tuple[Part, ...]
    end: int  # where it ends in its list of messages

    @property
    def words(self) -> tuple[Role, str, tuple[Part, ...]]:
        return self.role, " ".join(self.pieces), self.shown


def _sayings(messages: Sequence[Message], *, theirs: int) -> list[_Saying]:
    """An answer that was given in pieces, between tool calls, is one saying.

    Unless the tools were the client's: their results are among the first `theirs` messages, which
    it sent, and what comes before and after one is two sayings.
    """
    found: list[_Saying] = []
    pieces: list[str] = []  # of an answer that may go on
    for position, message in enumerate(messages):
        if message.role is Role.TOOL and position < theirs:
            pieces = []
        if message.role not in (Role.USER, Role.ASSISTANT) or message.is_blank:
            continue
        text = " ".join(message.content.split())
        shown = tuple(part for part in message.parts if not isinstance(part, str))
        if message.role is Role.USER:
            pieces, text = [], _own_words(text)
        elif pieces:
            found.pop()
        pieces.append(text)
        found.append(_Saying(message.role, pieces, shown, position + 1))
        if message.role is Role.USER:
            pieces = []
    return found


def _own_words(text: str) -> str:
    """What a person said, without the sources that a client put before it and what it says of those."""
    before, end, after = text.rpartition("</source>")
    return re.sub(r"\A(?: ?</\w+>)* ?", "", after) if end and "<source" in before else text


def _since_reset(turns: Sequence[Turn]) -> tuple[Turn | None, Sequence[Turn]]:
    """The last reset and what follows it. A client sees nothing of a reset, so no edit goes behind it."""
    for position in range(len(turns) - 1, -1, -1):
        if turns[position].kind is TurnKind.RESET:
            return turns[position], turns[position + 1 :]
    return None, turns
