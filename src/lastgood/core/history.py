"""Decides what the model sees: the committed turns since the last reset, the turn's input, its own steps.

Nothing else can get in, because nothing else is a parameter. Whatever was
stored, what goes out is valid: each tool call has exactly one result next to
it, no assistant message is empty, all text is Unicode. Pairs are made by
adjacency, never by looking an id up in the whole transcript: providers reuse
ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lastgood.model.messages import File, Image, Message, Part, Reasoning, Role, ToolCall, tool_result
from lastgood.model.sessions import Head, Turn, TurnKind

NO_RESULT = "No result was recorded for this call."


@dataclass(frozen=True, slots=True)
class History:
    """The committed conversation at a head.

    `settled` is repaired once and for ever, because turns never change; `tail`
    holds messages whose last tool calls are still open, so that the next turn
    may answer them. Immutable, so it can be shared.
    """

    head: Head | None = None
    settled: tuple[Message, ...] = ()
    tail: tuple[Message, ...] = ()
    agent: str = ""  # the digest of the definition that answered last
    size: int = field(default=0, compare=False)  # of the turns that it was made of, encoded

    def then(self, turn: Turn) -> History:
        growing = _Growing(self)
        growing.add(turn)
        return growing.history()

    def answered(self, own: Sequence[Message]) -> tuple[Message, ...]:
        """What an attempt adds to `settled`, made valid: together they are the whole prompt."""
        return repair((*self.tail, *own))


def history_of(turns: Iterable[Turn]) -> History:
    building = building_history(turns)
    while True:
        try:
            next(building)
        except StopIteration as end:
            history: History = end.value
            return history


def building_history(turns: Iterable[Turn]) -> Generator[None, None, History]:
    """The history of these turns. Yields after each of them, where it may be paused."""
    growing = _Growing(History())
    for turn in turns:
        growing.add(turn)
        yield
    return growing.history()


class _Growing:
    """A history that turns are added to. Its messages are in lists, because adding to a tuple copies it: for
    many turns that would be the square of their number."""

    def __init__(self, history: History) -> None:
        self._head, self._agent, self._size = history.head, history.agent, history.size
        self._settled, self._tail = list(history.settled), list(history.tail)

    def add(self, turn: Turn) -> None:
        self._head, self._agent = turn.head, turn.agent_digest or self._agent
        if turn.kind is TurnKind.RESET:
            self._settled, self._tail, self._size = list(repair(turn.messages)), [], 0
        else:
            self._tail.extend(map(valid_message, turn.messages))
            if not open_calls(self._tail):
                self._settled.extend(repair(self._tail))
                self._tail = []
        self._size += len(turn.body)

    def history(self) -> History:
        return History(self._head, tuple(self._settled), tuple(self._tail), self._agent, self._size)


#: The calls of an assistant message without a result yet: by the id they came with, the ids they have now.
_Waiting = Mapping[str, list[str]]
#: Looked at and never changed. Making one for every message would be most of the work.
_NONE_WAIT: _Waiting = {}


def repair(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The nearest valid conversation: missing results made, orphans and empty messages dropped, and calls of
    one message that share an id told apart: providers refuse them."""
    valid: list[Message] = []
    waiting = _NONE_WAIT
    for message in map(valid_message, messages):
        if message.role is Role.TOOL:
            if ids := waiting.get(message.tool_call_id or ""):
                id = ids.pop(0)
                valid.append(message if id == message.tool_call_id else replace(message, tool_call_id=id))
            continue
        valid.extend(_missing_results(waiting))
        waiting = _NONE_WAIT
        if message.tool_calls:
            given, message = message, with_unique_call_ids(message)
            waiting = _waiting(given, message)
        if message.role is not Role.ASSISTANT or not message.is_blank or message.tool_calls:
            valid.append(message)
    valid.extend(_missing_results(waiting))
    return tuple(valid)


def _waiting(given: Message, message: Message) -> _Waiting:
    waiting: dict[str, list[str]] = {}
    for before, call in zip(given.tool_calls, message.tool_calls, strict=True):
        waiting.setdefault(before.id, []).append(call.id)
    return waiting


def _missing_results(waiting: _Waiting) -> Iterator[Message]:
    for ids in waiting.values():
        for id in ids:
            yield tool_result(id, NO_RESULT)


def valid_message(message: Message) -> Message:
    """Replaces what is no Unicode text, and NUL, which several providers refuse.

    Drops what a role cannot carry: only the assistant calls tools and thinks, only results answer.
    """
    if _is_plain(message):
        return message
    calls = message.tool_calls if message.role is Role.ASSISTANT else ()
    answers = message.tool_call_id if message.role is Role.TOOL else None
    valid = Message(
        message.role,
        valid_text(message.content),
        tuple(map(_valid_call, calls)),
        None if answers is None else valid_text(answers),
        tuple(map(_valid_part, message.parts)),
        _valid_reasoning(message.reasoning) if message.role is Role.ASSISTANT else None,
    )
    return message if valid == message else valid


def with_unique_call_ids(message: Message) -> Message:
    """Gives calls that share an id, or have none, ids of their own. An id stands for one call of its
    response: its result and an approval of it must not be those of another call."""
    given = [call.id for call in message.tool_calls]
    if all(given) and len(set(given)) == len(given):
        return message
    taken: set[str] = set()
    calls: list[ToolCall] = []
    for number, call in enumerate(message.tool_calls):
        id = call.id or f"call_{number}"
        while id in taken:
            id = f"{id}_{number}"
        taken.add(id)
        calls.append(replace(call, id=id))
    return replace(message, tool_calls=tuple(calls))


def _is_plain(message: Message) -> bool:
    """Whether a message is text only, and already valid: true for nearly all, and checked often."""
    text = message.content
    more = message.tool_calls or message.parts or message.reasoning or message.tool_call_id is not None
    return not more and text.isascii() and "\x00" not in text


def _valid_call(call: ToolCall) -> ToolCall:
    return ToolCall(valid_text(call.id), valid_text(call.name), valid_text(call.arguments))


def _valid_part(part: Part) -> Part:
    if isinstance(part, Image):
        return Image(valid_text(part.url), part.detail)
    if isinstance(part, File):
        return File(valid_text(part.name), valid_text(part.data))
    return valid_text(part)


def _valid_reasoning(reasoning: Reasoning | None) -> Reasoning | None:
    if reasoning is None:
        return None
    return Reasoning(valid_text(reasoning.model), valid_text(reasoning.text), valid_text(reasoning.opaque))


def valid_text(text: str) -> str:
    if text.isascii():
        return text.replace("\x00", "\ufffd")
    # Surrogates that form a pair become the character they mean; halves become U+FFFD.
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return whole.replace("\x00", "\ufffd")


def open_calls(messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """The calls of the last assistant message that have no result yet."""
    results: Counter[str | None] = Counter()
    for message in reversed(messages):
        if message.role is not Role.TOOL:
            calls = message.tool_calls if message.role is Role.ASSISTANT else ()
            return tuple(call for call in calls if not _take(results, call.id))
        results[message.tool_call_id] += 1
    return ()


def _take(results: Counter[str | None], call_id: str) -> bool:
    """One result answers one call, also where a provider gave two calls one id."""
    results[call_id] -= 1
    return results[call_id] >= 0
