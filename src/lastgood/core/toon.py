"""Writes JSON as TOON, a notation that takes fewer tokens, and decides which tools it is for.

Tables of records become a line for each record. What is not a JSON object or array is not for TOON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from lastgood.core.globs import Glob

_INDENT = "  "
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")
_NUMBER_LIKE = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?\Z", re.IGNORECASE)
_QUOTED = re.compile(r'[:"\\\[\]{},\x00-\x1f]')
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
#: Of a file's patterns: names, `.` and `.*`, and the ends of a name. Other expressions may take for ever.
_PATTERN = re.compile(r"\^?(?:[\w-]|\.\*?)*\$?\Z")


def why_not_patterns(text: str) -> str | None:
    wrong = next((one for one in _patterns(text) if not _PATTERN.match(one)), None)
    return (
        None
        if wrong is None
        else f"'{wrong}' has more than letters, digits, '_', '-', '.', '.*', '^', '$' and '|'"
    )


def globs_of(text: str) -> tuple[Glob, ...]:
    """A pattern may match anywhere in a name, as regular expressions do."""
    return tuple(Glob(_glob(one)) for one in _patterns(text))


def _patterns(text: str) -> list[str]:
    return [one.strip() for one in re.split(r"[,|]", text) if one.strip()]


def _glob(pattern: str) -> str:
    start, end = ("" if pattern.startswith("^") else "*"), ("" if pattern.endswith("$") else "*")
    middle = pattern.removeprefix("^").removesuffix("$").replace(".*", "*").replace(".", "?")
    return f"{start}{middle}{end}"


def to_toon(value: Any) -> str:
    return "\n".join(_value(value, 0))


def shorter_as_toon(value: Any, most: int) -> str | None:
    """None: it would have more than `most` characters. Deep values are mostly indents, and nothing of such a
    text is built."""
    lines: list[str] = []
    left = most + 1
    for line in _value(value, 0):
        left -= len(line) + 1
        if left < 0:
            return None
        lines.append(line)
    return "\n".join(lines)


def _value(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, dict):
        yield from _fields(value, depth)
    elif isinstance(value, list):
        yield from _array("", value, depth)
    else:
        yield _INDENT * depth + _scalar(value)


def _fields(fields: dict[str, Any], depth: int) -> Iterator[str]:
    for name, value in fields.items():
        yield from _field(_key(name), value, depth)


def _field(key: str, value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, dict):
        yield f"{_INDENT * depth}{key}:"
        yield from _fields(value, depth + 1)
    elif isinstance(value, list):
        yield from _array(key, value, depth)
    else:
        yield f"{_INDENT * depth}{key}: {_scalar(value)}"


def _array(key: str, values: list[Any], depth: int) -> Iterator[str]:
    head, inner = f"{_INDENT * depth}{key}[{len(values)}]", _INDENT * (depth + 1)
    if not any(isinstance(one, dict | list) for one in values):
        row = _row(values)
        yield f"{head}: {row}" if values else f"{head}:"
    elif columns := _columns(values):
        yield f"{head}{{{','.join(map(_key, columns))}}}:"
        for one in values:
            yield inner + _row([one[name] for name in columns])
    else:
        yield f"{head}:"
        for one in values:
            yield from _item(one, depth + 1)


def _item(value: Any, depth: int) -> Iterator[str]:
    """Its first line has the dash in place of its last indent."""
    lines = _value(value, depth + 1)
    first = next(lines, None)
    if first is None:
        yield f"{_INDENT * depth}-"
        return
    yield f"{_INDENT * depth}- {first.lstrip(' ')}"
    yield from lines


def _columns(values: Sequence[Any]) -> tuple[str, ...]:
    """The names of a table; none: the values are no table."""
    first = values[0]
    if not isinstance(first, dict) or not first:
        return ()
    names = first.keys()
    for one in values:
        if not isinstance(one, dict) or one.keys() != names:
            return ()
        if any(isinstance(cell, dict | list) for cell in one.values()):
            return ()
    return tuple(names)


def _row(values: Sequence[Any]) -> str:
    return ",".join(map(_scalar, values))


def _key(name: str) -> str:
    return name if _PLAIN_KEY.match(name) else _quote(name)


def _scalar(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case _:
            return _text(str(value))


def _text(text: str) -> str:
    unclear = (
        not text
        or text != text.strip()
        or text in ("true", "false", "null")
        or text.startswith("-")
        or _NUMBER_LIKE.match(text)
        or _QUOTED.search(text)
    )
    return _quote(text) if unclear else text


def _quote(text: str) -> str:
    return '"' + "".join(_ESCAPES.get(letter, letter) for letter in text) + '"'
