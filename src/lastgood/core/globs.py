"""Decides whether a text matches a glob, in time that grows with the text alone.

`*` matches any text, `?` one character, `[a-z]` and `[!a-z]` one character of a set; a backslash
takes the meaning from `*`, `?`, `[` and itself. A bracket that is never closed is a bracket.

Regular expressions are not used: a glob such as `*a?a?a?b` costs them its own length times that of
the text, and both come from clients. Here a glob is split at its stars into pieces
of fixed length. The leftmost place of each piece is always a right one, so nothing is tried twice.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

#: A set of characters as ranges of code points, both ends included.
_Ranges = tuple[tuple[int, int], ...]
_ANY: _Ranges = ((0, 0x10FFFF),)
_ESCAPED = re.compile(r"\\([*?\[\\])")


class Glob:
    __slots__ = ("_end", "_middle", "_start")

    def __init__(self, glob: str) -> None:
        pieces = [_piece(units) for units in _split(_ESCAPED.sub(r"[\1]", glob).replace("[^", "[!"))]
        self._start, *self._middle = pieces
        self._end = self._middle.pop() if self._middle else None

    def matches(self, text: str) -> bool:
        start, end = self._start, self._end
        if end is None:
            return len(text) == len(start) and start.is_at(text, 0)
        place, limit = len(start), len(text) - len(end)
        if place > limit or not (start.is_at(text, 0) and end.is_at(text, limit)):
            return False
        for piece in self._middle:
            place = piece.end_in(text, place, limit)
            if place < 0:
                return False
        return True


class _Literal:
    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __len__(self) -> int:
        return len(self._text)

    def is_at(self, text: str, place: int) -> bool:
        return text.startswith(self._text, place)

    def end_in(self, text: str, place: int, limit: int) -> int:
        """Returns where the leftmost occurrence between `place` and `limit` ends, or -1."""
        found = text.find(self._text, place, limit)
        return found if found < 0 else found + len(self._text)


class _Sets:
    """A piece in which a place may take several characters, found by the Shift-And method.

    Bit i of the state says that the first i + 1 places fit the text up to here, so a character costs
    one shift and one mask, however long the piece is. The masks are kept by ranges of characters.
    """

    __slots__ = ("_length", "_masks", "_starts")

    def __init__(self, places: list[_Ranges]) -> None:
        self._length = len(places)
        flips: dict[int, int] = defaultdict(int)
        for number, ranges in enumerate(places):
            for low, high in ranges:
                flips[low] ^= 1 << number
                flips[high + 1] ^= 1 << number
        self._starts = sorted({0, *flips})
        self._masks: list[int] = []
        mask = 0
        for start in self._starts:
            mask ^= flips[start]
            self._masks.append(mask)

    def __len__(self) -> int:
        return self._length

    def is_at(self, text: str, place: int) -> bool:
        return self.end_in(text, place, place + self._length) >= 0

    def end_in(self, text: str, place: int, limit: int) -> int:
        starts, masks = self._starts, self._masks
        last, state = 1 << (self._length - 1), 0
        for number, code in enumerate(map(ord, text[place:limit]), place + 1):
            state = (state << 1 | 1) & masks[bisect_right(starts, code) - 1]
            if state & last:
                return number
        return -1


def _piece(units: list[str | _Ranges]) -> _Literal | _Sets:
    if all(isinstance(unit, str) for unit in units):
        return _Literal("".join(unit for unit in units if isinstance(unit, str)))
    return _Sets([((ord(unit), ord(unit)),) if isinstance(unit, str) else unit for unit in units])


def _split(glob: str) -> Iterator[list[str | _Ranges]]:
    """The pieces between stars, each as characters and sets of them."""
    units: list[str | _Ranges] = []
    at = 0
    while at < len(glob):
        here, at = glob[at], at + 1
        if here == "*":
            yield units
            units = []
        elif here == "?":
            units.append(_ANY)
        elif here == "[" and (end := glob.find("]", at + glob.startswith("!", at) + 1)) >= 0:
            units.append(_set(glob[at:end]))
            at = end + 1
        else:
            units.append(here)
    yield units


def _set(body: str) -> _Ranges:
    """What stands between brackets. A range that goes backwards holds nothing."""
    negated, body = body.startswith("!"), body.removeprefix("!")
    ranges: list[tuple[int, int]] = []
    at = 0
    while at < len(body):
        is_range = body.startswith("-", at + 1) and at + 2 < len(body)
        low, high = ord(body[at]), ord(body[at + 2 if is_range else at])
        if low <= high:
            ranges.append((low, high))
        at += 3 if is_range else 1
    merged = _merged(sorted(ranges))
    return _others(merged) if negated else merged


def _merged(ranges: list[tuple[int, int]]) -> _Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in ranges:
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _others(ranges: _Ranges) -> _Ranges:
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in ranges:
        if start < low:
            gaps.append((start, low - 1))
        start = high + 1
    return (*gaps, (start, _ANY[0][1])) if start <= _ANY[0][1] else tuple(gaps)
