"""Builds a response from the chunks of a chat completion, as servers really send them.

Handles the variants: calls without an index or an id, calls sent whole, reasoning under three names, a whole
message in place of deltas. Knows no network. What it cannot understand raises TypeError, KeyError,
ValueError, IndexError or AttributeError; the caller decides what that means.
"""

from __future__ import annotations

from io import StringIO
from typing import Any

import orjson

from lastgood.engine.providers.provider import Chunk, ChunkKind, ModelAnswer
from lastgood.model.agents import ModelSpec
from lastgood.model.messages import Message, Reasoning, Role, ToolCall
from lastgood.model.sessions import MOST_TOKENS, Usage

_TOO_LONG = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
#: What a piece counts for beside its text, so that many empty ones are no way around a limit.
_PIECE_BYTES = 64
_LONG_ARGUMENTS = 64 * 1024
#: Of one response. Every piece of a call is compared with all of them.
MOST_CALLS = 1000
_LONGEST_NAME = 1024


class _Text:
    """Text that comes in pieces. A piece may end between the two halves of a character: JSON allows it."""

    __slots__ = ("_half", "_whole")

    def __init__(self) -> None:
        # One buffer, not a list of pieces: a million pieces of a letter each would weigh fifty times as much.
        self._whole = StringIO()
        self._half = ""

    def add(self, piece: str) -> str:
        """What can be shown now."""
        if self._half or not piece.isascii():
            piece, self._half = self._half + piece, ""
            if "\ud800" <= piece[-1:] <= "\udbff":
                piece, self._half = piece[:-1], piece[-1]
            try:
                piece.encode()
            except UnicodeEncodeError:
                piece = piece.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        self._whole.write(piece)
        return piece

    @property
    def length(self) -> int:
        return self._whole.tell()

    def __str__(self) -> str:
        return self._whole.getvalue() + ("\ufffd" if self._half else "")


class _PartialCall:
    __slots__ = ("arguments", "id", "index", "name")

    def __init__(self, identity: str, index: int | None) -> None:
        self.id = identity
        self.index = index
        self.name = ""
        self.arguments = _Text()

    @property
    def is_whole(self) -> bool:
        """Whether its arguments are complete. Does not parse long ones: this is called for every chunk."""
        if self.arguments.length > _LONG_ARGUMENTS:
            return False
        try:
            orjson.loads(str(self.arguments))
        except orjson.JSONDecodeError:
            return False
        return True


class CompletionBuilder:
    """`size` is how much of what came is kept, about: enough to set a limit by."""

    __slots__ = (
        "_calls",
        "_details",
        "_kind",
        "_ready",
        "_shown",
        "_text",
        "_thoughts",
        "_thoughts_key",
        "_usage",
        "finish",
        "size",
    )

    def __init__(self) -> None:
        self._text = _Text()
        self._thoughts = _Text()
        self._thoughts_key = ""  # the name under which they came
        self._details: list[
            tuple[dict[str, Any], dict[str, _Text]]
        ] = []  # with the texts that come in pieces
        self._calls: list[_PartialCall] = []
        self._usage: dict[str, Any] = {}
        self._ready: list[Chunk] = []
        self._shown: list[str] = []  # the pieces of the chunk that is not complete yet
        self._kind = ChunkKind.TEXT  # of that chunk
        self.finish: str | None = None
        self.size = 0

    @property
    def said(self) -> int:
        """Characters of its text so far."""
        return self._text.length

    @property
    def thought(self) -> int:
        """Characters of its reasoning so far."""
        return self._thoughts.length

    def take(self, piece: dict[str, Any]) -> None:
        """Adds one piece of the stream, or a whole answer."""
        usage = piece.get("usage")
        if usage.__class__ is dict:
            self._usage = usage
        choices = piece.get("choices")
        if not choices:
            return
        choice = choices[0]
        finish = choice.get("finish_reason")
        if finish:
            self.finish = finish.lower()
        delta = choice.get("delta") or choice.get("message")
        if not delta:
            return
        content = delta.get("content")
        if content.__class__ is str and (len(delta) == 1 or (len(delta) == 2 and "role" in delta)):
            self._show(self._text.add(content), ChunkKind.TEXT)
        else:
            self._take_all(delta, content)

    def chunks(self) -> list[Chunk]:
        """Returns what can be shown and was not returned before. Neighbours of one kind are one chunk: each
        chunk has a long way to go from here."""
        if self._shown:
            self._end_chunk()
        ready, self._ready = self._ready, []
        return ready

    def _say(self, piece: str) -> None:
        self._show(self._text.add(piece), ChunkKind.TEXT)

    def _think(self, piece: str, key: str) -> None:
        self._thoughts_key = key
        self._show(self._thoughts.add(piece), ChunkKind.REASONING)

    def _show(self, text: str, kind: ChunkKind) -> None:
        if not text:
            return
        if kind is not self._kind:
            if self._shown:
                self._end_chunk()
            self._kind = kind
        self._shown.append(text)
        self.size += len(text)

    def _end_chunk(self) -> None:
        self._ready.append(Chunk("".join(self._shown), self._kind))
        self._shown = []

    def _take_all(self, delta: dict[str, Any], content: Any) -> None:
        """Everything that is not plain text."""
        has_thoughts = False
        for key in ("reasoning_content", "reasoning"):
            if delta.get(key):
                self._think(delta[key], key)
                has_thoughts = True
                break
        details = delta.get("reasoning_details")
        if details:
            shown = "".join(map(self._detail, details))
            if shown and not has_thoughts:
                self._think(shown, "reasoning")
        if isinstance(content, list):
            for part in content:
                self._part(part)
        elif content:
            self._say(content)
        if delta.get("refusal"):
            self._say(delta["refusal"])
        for call in delta.get("tool_calls") or ():
            self._call(call)

    def _part(self, part: dict[str, Any]) -> None:
        """Mistral's way: a list of what was thought and what is said."""
        match part["type"]:
            case "text":
                self._say(part["text"])
            case "thinking":
                thought = part["thinking"]
                if isinstance(thought, list):
                    thought = "".join(piece.get("text") or "" for piece in thought)
                self._think(thought, "reasoning")
            case _:
                pass

    def _detail(self, detail: dict[str, Any]) -> str:
        """OpenRouter's way: typed pieces that belong together by type and index. What can be shown of one."""
        kept, texts = self._details[-1] if self._details else ({}, {})
        if not self._details or any(kept.get(key) != detail.get(key) for key in ("type", "index")):
            kept, texts = {}, {}
            self._details.append((kept, texts))
        for key, value in detail.items():
            if key in ("text", "summary", "data") and isinstance(value, str):
                kept[key] = ""  # its place among the others
                texts.setdefault(key, _Text()).add(value)
                self.size += len(value)
            elif value is not None or key not in kept:
                kept[key] = value
                self.size += len(orjson.dumps(value))
        self.size += _PIECE_BYTES
        return str(detail.get("text") or detail.get("summary") or "")

    def _call(self, delta: dict[str, Any]) -> None:
        function = delta.get("function") or {}
        identity, index = str(delta.get("id") or ""), delta.get("index")
        name, arguments = function.get("name") or "", function.get("arguments") or ""
        if not isinstance(arguments, str):  # some forget that it is a text
            arguments = orjson.dumps(arguments).decode()
        call = self._known(identity, index)
        # A name and arguments for a call that has all its own: some number all calls the same, or none.
        if call is None or (name and arguments and call.is_whole):
            if len(self._calls) >= MOST_CALLS:
                raise ValueError(f"more than {MOST_CALLS:,} tool calls")
            call = _PartialCall(identity, index)
            self.size += len(identity)
            self._calls.append(call)
        call.id = call.id or identity
        if name != call.name:  # some say it again with every piece
            call.name += name
            if len(call.name) > _LONGEST_NAME:
                raise ValueError("a tool call with a name that does not end")
        call.arguments.add(arguments)
        self.size += len(arguments) + len(name) + _PIECE_BYTES

    def _known(self, identity: str, index: int | None) -> _PartialCall | None:
        """Returns the call that this chunk continues; None: it begins a new one.

        An index pairs pieces, unless two calls were given the same one: then their ids differ.
        """
        for call in reversed(self._calls):
            same_index = index is None or call.index == index
            same_id = not identity or not call.id or call.id == identity
            if same_index and same_id:
                return call
        return None

    def answer(self, model: ModelSpec) -> ModelAnswer:
        """The complete message. Call it only after the last chunk."""
        calls, reasoning = tuple(self._finished_calls()), self._reasoning(model.ref)
        message = Message(Role.ASSISTANT, str(self._text), calls, reasoning=reasoning)
        return ModelAnswer(message, self._used(model), self.finish in _TOO_LONG)

    def _finished_calls(self) -> list[ToolCall]:
        if not all(call.name for call in self._calls):
            raise ValueError("a tool call without a name")
        return [ToolCall(call.id, call.name, str(call.arguments) or "{}") for call in self._calls]

    def _reasoning(self, ref: str) -> Reasoning | None:
        text = str(self._thoughts)
        if self._details:
            whole = [kept | {key: str(one) for key, one in texts.items()} for kept, texts in self._details]
            opaque = orjson.dumps({"reasoning_details": whole}).decode()
        elif text and self._thoughts_key == "reasoning_content":
            opaque = orjson.dumps({"reasoning_content": text}).decode()
        else:
            opaque = ""
        return Reasoning(ref, text, opaque) if text or opaque else None

    def _used(self, model: ModelSpec) -> Usage:
        usage, details = self._usage, self._usage.get("prompt_tokens_details")
        cached = details if isinstance(details, dict) else {}
        # DeepSeek's own name, beside its copy of OpenAI's.
        read = cached.get("cached_tokens", usage.get("prompt_cache_hit_tokens"))
        written = cached.get("cache_write_tokens")
        return priced(model, usage.get("prompt_tokens"), usage.get("completion_tokens"), read, written)


def priced(model: ModelSpec, said: Any, answered: Any, read: Any = 0, written: Any = 0) -> Usage:
    """Whatever a provider says it counted, as a usage; what is no number counts as nothing. A number that no
    database holds would fail every commit of its session. `read` and `written`: of the tokens that were said,
    those that came from the provider's cache, and those that went into it."""
    said, answered, read, written = map(_count, (said, answered, read, written))
    read = min(read, said)
    written = min(written, said - read)
    of_read, of_written = (
        model.input_cost if cost is None else cost for cost in (model.cache_read_cost, model.cache_write_cost)
    )
    cost = (said - read - written) * model.input_cost + read * of_read + written * of_written
    return Usage(said, answered, (cost + answered * model.output_cost) / 1e6)


def _count(number: Any) -> int:
    return min(number, MOST_TOKENS) if isinstance(number, int) and number > 0 else 0
