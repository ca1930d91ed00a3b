"""From the bytes of a body to JSON values, without holding the event loop.

A parser holds the interpreter until it has built every value: 24 MB of tiny ones take it most of a
second, and validating them takes many more. So values are counted before they are
built, and a large document is parsed one element of its lists at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from math import isfinite
from typing import Any

import orjson

from lastgood.core.limits import JSON_VALUES
from lastgood.errors import InvalidRequest, TooLarge
from lastgood.time_slices import paced

#: How deeply a body may be nested. orjson reads deeper than it can write again, and that is 254.
DEEPEST = 100
_ORJSON_WRITES = 254

_WINDOW_BYTES = 128 * 1024
#: Below this size parsing is too quick to be noticed, however many values there are.
_LARGE_BYTES = 256 * 1024


async def check_values(body: bytes, limit: int = JSON_VALUES) -> None:
    """TooLarge if the body has more than `limit` values. Costs nothing unless it could."""
    if len(body) > 2 * limit and await paced(_holds_more(body, limit)):
        raise TooLarge(
            f"The body has more than {limit:,} JSON values (the limit); split it into several requests"
        )


def _holds_more(body: bytes, limit: int) -> Generator[None, None, bool]:
    """Whether there are more values than that. Each has a comma or an opening bracket before it."""
    count = at = 0
    in_string = 0
    while at < len(body):
        window = body[at : at + _WINDOW_BYTES]
        if (len(window) - len(window.rstrip(b"\\"))) % 2:
            window = body[at : at + _WINDOW_BYTES + 1]  # what a backslash escapes belongs to it
        at += len(window)
        if b"\\" in window:
            window = window.replace(b"\\\\", b"").replace(b'\\"', b"")
        pieces = window.split(b'"')
        structure = b"".join(pieces[in_string::2])
        in_string ^= len(pieces) % 2 == 0
        count += structure.count(b",") + structure.count(b"[") + structure.count(b"{")
        if count > limit:
            return True
        yield
    return False


def parse_json(body: bytes) -> Any:
    """Any JSON value; of several keys with one name, the last. Else InvalidRequest."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}") from None
    # Deep is only what has many brackets; to count them is much quicker than to look.
    if body.count(b"[") + body.count(b"{") > DEEPEST:
        _check_depth(value, 0)
    return value


async def parse_document(body: bytes) -> Any:
    """As `parse_json`, for an object whose lists may be long: each of their elements is a slice of work."""
    if len(body) <= _LARGE_BYTES or not body.lstrip(b" \t\r\n").startswith(b"{"):
        return parse_json(body)
    try:
        return await paced(_Document(body.decode()).object())
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}") from None


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is not valid in JSON")


def _finite(word: str) -> float:
    number = float(word)
    return number if isfinite(number) else _no_number(word)


class _Document:
    """A text of JSON, and how far it was read."""

    _SPACE = re.compile(r"[ \t\r\n]*")
    _DECODER = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def object(self) -> Generator[None, None, dict[str, Any]]:
        found: dict[str, Any] = {}
        self._take("{")
        while not self._ends_with("}", is_first=not found):
            name = self._value(1)
            if not isinstance(name, str):
                raise ValueError(f"object key is not a string before character {self._at}")
            self._take(":")
            found[name] = (yield from self._list()) if self._next() == "[" else self._value(1)
            yield
        if self._next():
            raise ValueError(f"unexpected text after the end, at character {self._at}")
        return found

    def _list(self) -> Generator[None, None, list[Any]]:
        found: list[Any] = []
        self._take("[")
        while not self._ends_with("]", is_first=not found):
            found.append(self._value(2))
            yield
        return found

    def _value(self, depth: int) -> Any:
        self._next()
        value, self._at = self._DECODER.raw_decode(self._text, self._at)
        if isinstance(value, dict | list):
            _check_depth(value, depth)
        return value

    def _next(self) -> str:
        """The next character that is not a space; empty at the end."""
        space = self._SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
        return self._text[self._at : self._at + 1]

    def _take(self, wanted: str) -> None:
        if self._next() != wanted:
            raise ValueError(f"expected {wanted!r} at character {self._at}")
        self._at += 1

    def _ends_with(self, end: str, *, is_first: bool) -> bool:
        """Whether the list or object ends here; otherwise what stands before its next element is read."""
        if self._next() == end:
            self._at += 1
            return True
        if not is_first:
            self._take(",")
        return False


def _check_depth(value: Any, depth: int) -> None:
    """Judged by who writes it later, without a loop of ours: it is put as deep as it just may be."""
    for _ in range(_ORJSON_WRITES - DEEPEST + depth):
        value = (value,)
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        if "recursion" in str(error).lower():
            raise InvalidRequest(f"The body is nested more than {DEEPEST} levels deep (the limit)") from None
        raise InvalidRequest(f"The body cannot be re-encoded as JSON: {error}") from None
