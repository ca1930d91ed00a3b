"""Findings about an agent file: message, place and severity."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import islice
from typing import Any


class Level(StrEnum):
    ERROR = "error"  # the file is not served
    WARNING = "warning"  # the file is served, and something in it has no effect


@dataclass(frozen=True, slots=True)
class Finding:
    """`key` is the dotted path of what it is about; empty: the file itself. Lines and columns begin at 1."""

    line: int
    column: int
    key: str
    level: Level
    message: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"level": self.level.value}


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the file."""

    line: int
    column: int
    key: str = ""


#: More are not reported: nobody reads them, and a file from a URL must not keep the server busy.
MOST_FINDINGS = 500
_LONGEST_MESSAGE = 600
#: The nearest name is searched among at most this many.
_MOST_NAMES = 300


class TooManyFindings(Exception):
    """There are too many findings to continue."""


class Findings:
    """Collects all findings, so that a file can be corrected in one pass. A part that is used twice through
    an alias is reported once.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, int, Level, str], Finding] = {}

    def error(self, place: Location, message: str) -> None:
        self._add(Level.ERROR, place, message)

    def warning(self, place: Location, message: str) -> None:
        self._add(Level.WARNING, place, message)

    def _add(self, level: Level, place: Location, message: str) -> None:
        if len(message) > _LONGEST_MESSAGE:
            message = f"{message[:_LONGEST_MESSAGE]}…"
        finding = Finding(place.line, place.column, place.key[:_LONGEST_MESSAGE], level, message)
        self._found.setdefault((place.line, place.column, level, message), finding)
        if len(self._found) > MOST_FINDINGS:
            raise TooManyFindings

    def all(self) -> tuple[Finding, ...]:
        """In the order of the file."""
        return tuple(sorted(self._found.values(), key=lambda one: (one.line, one.column)))


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Returns the name that was probably meant. Ignores case and hyphens."""
    spellings = {_flat(one): one for one in islice(names, _MOST_NAMES)}
    close = difflib.get_close_matches(_flat(name[:100]), spellings, n=1, cutoff=0.6)
    return spellings[close[0]] if close else None


def hint(name: str, names: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name: a suggestion, or the known names."""
    close = nearest(name, names)
    return f"; did you mean '{close}'?" if close is not None else ""


def _flat(name: str) -> str:
    return name.lower().replace("-", "_")


def one_of(names: Iterable[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    *some, last = names
    return f"{', '.join(some)} or {last}" if some else last
