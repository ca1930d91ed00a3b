"""Parses the body of a chat completion incrementally: SSE events, or one JSON object.

Decides whether a response is complete. Knows no socket: callers feed bytes, and call `end` after the last
ones.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from lastgood.engine.providers.completion_builder import CompletionBuilder
from lastgood.engine.providers.line_splitter import LineSplitter
from lastgood.engine.providers.provider import Chunk, ModelAnswer
from lastgood.engine.providers.provider_errors import refusal_in_stream
from lastgood.errors import ModelError, ModelGarbled, ModelOverloaded, ModelUnreachable
from lastgood.model.agents import ModelSpec
from lastgood.outside.secrets import Secrets

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ParserLimits:
    line_bytes: int = 8 << 20
    answer_bytes: int = 32 << 20  # of what is kept
    stream_bytes: int = 512 << 20  # of everything: one word comes in hundreds of bytes


class Builder(Protocol):
    """Of a response, from its pieces. `finish`: why it ended; None: it has not."""

    finish: str | None

    @property
    def size(self) -> int: ...
    def take(self, piece: dict[str, Any]) -> None: ...
    def chunks(self) -> list[Chunk]: ...
    def answer(self, model: ModelSpec) -> ModelAnswer: ...


class ChatStreamParser:
    """`done`: the server said that there is no more."""

    __slots__ = (
        "_completion",
        "_event",
        "_event_bytes",
        "_limits",
        "_lines",
        "_model",
        "_plain",
        "_read",
        "_secrets",
        "_seen",
        "done",
    )

    def __init__(
        self, model: ModelSpec, secrets: Secrets, limits: ParserLimits, builder: Builder | None = None
    ) -> None:
        self._model = model
        self._secrets = secrets
        self._limits = limits
        self._lines = LineSplitter(limits.line_bytes)
        self._completion: Builder = builder or CompletionBuilder()
        self._event: list[bytes] = []  # data of an event in several lines, so far
        self._event_bytes = 0
        self._plain: bytearray | None = None  # a JSON object instead of events, so far
        self._read = 0
        self._seen = False  # anything but white space
        self.done = False

    def feed(self, data: bytes) -> list[Chunk]:
        self._read += len(data)
        if not self._seen:
            data = data.lstrip().removeprefix(_BYTE_ORDER_MARK)
            self._seen = bool(data)
            if data.startswith(b"{"):
                self._plain = bytearray()
        if self._plain is not None:
            self._plain += data
            self._check(len(self._plain))
            return []
        for line in self._lines.feed(data):
            if line.startswith(b"data:"):
                self._data(line[5:])
                if self.done:
                    break
            elif self._event and not line.strip():
                self._event_ends()
        self._check(self._completion.size)
        return self._completion.chunks()

    def _check(self, size: int) -> None:
        if size > self._limits.answer_bytes or self._read > self._limits.stream_bytes:
            raise self._garbled("a response above the size limit")

    def _data(self, data: bytes) -> None:
        if self._event:
            self._event_goes_on(data)
            return
        # Nearly every event is one line, so a line that is JSON is one; only what is not waits for more.
        try:
            piece = orjson.loads(data)
        except orjson.JSONDecodeError:
            piece = self._odd(data)
        if piece is not None:
            self._take(piece)

    def _odd(self, data: bytes) -> Any:
        """Not JSON, or not for orjson: the end, half a character, or the beginning of an event in lines."""
        if data.strip() == b"[DONE]":
            self.done = True
            return None
        if b"\\u" in data:
            try:
                return json.loads(data)  # which takes half a surrogate pair for what it is
            except (ValueError, RecursionError):
                pass
        self._event_goes_on(data)
        return None

    def _event_goes_on(self, data: bytes) -> None:
        self._event.append(data)
        self._event_bytes += len(data) + 1
        if self._event_bytes > self._limits.line_bytes:
            raise self._garbled("an incomplete event")

    def _event_ends(self) -> None:
        # Looked at here and not at every line: an event in very many lines would cost its square.
        joined = b"\n".join(self._event)
        self._event, self._event_bytes = [], 0
        try:
            piece = orjson.loads(joined)
        except orjson.JSONDecodeError:
            piece = None
        if piece is None:
            raise self._garbled("an event that is not JSON")
        self._take(piece)

    def _take(self, piece: Any) -> None:
        try:
            if piece.get("error") or piece.get("object") == "error":
                raise refusal_in_stream(self._model, piece, self._secrets)
            self._completion.take(piece)
            return
        except (AttributeError, KeyError, TypeError, ValueError, IndexError):
            fault = self._garbled("JSON that is not a chat completion")
        raise fault

    def end(self) -> list[Chunk]:
        """There are no more bytes. What has no line end yet may still be the last line."""
        if self._plain is not None:
            self._whole(bytes(self._plain))
            return self._completion.chunks()
        rest = self._lines.rest()
        if self.done or (not self._event and (not rest.strip() or rest.startswith(b":"))):
            return []
        is_data = rest.startswith(b"data:")
        if is_data:
            self._data(rest[5:])
        if self._event or (self._completion.size and not is_data):
            raise self._cut()
        return self._completion.chunks()

    def _whole(self, body: bytes) -> None:
        """An answer from a server that does not stream."""
        try:
            piece = orjson.loads(body)
        except orjson.JSONDecodeError:
            piece = None
        if piece is None:
            raise self._garbled("a body that is not JSON")
        self._take(piece)
        if self._completion.finish is None and piece.get("choices"):
            self._completion.finish = "stop"  # it came whole, whether they say so or not

    def answer(self) -> ModelAnswer:
        """The answer, if this is all of one. A stream that ends without saying why was cut."""
        ref = self._model.ref
        match self._completion.finish:
            case None:
                raise self._garbled("no answer") if self._seen and not self._completion.size else self._cut()
            case "content_filter":
                raise ModelError(f"the provider of {ref} blocked the response (content filter); rephrase it")
            case "error" | "insufficient_system_resource":
                raise ModelOverloaded(f"{ref} failed in the middle of its response; send the turn again")
            case _:
                pass
        try:
            return self._completion.answer(self._model)
        except (TypeError, ValueError) as error:
            fault = self._garbled(f"an invalid response ({error})")
        raise fault

    def _cut(self) -> ModelUnreachable:
        return ModelUnreachable(
            f"the stream of {self._model.ref} was cut off; nothing was committed. Send the turn again"
        )

    def _garbled(self, what: str) -> ModelGarbled:
        return ModelGarbled(f"{self._model.ref} sent {what}; nothing was committed. Check its base_url")
