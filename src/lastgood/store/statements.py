"""Named statements out of `.sql` files.

A block starts with `-- name: x`. `{session}` and its kind are replaced by the
column lists of columns.py, so that a list and the code that maps it cannot drift
apart; `{x}` is replaced by the block x above it, or by that of a file before. Parameters
are written `:name` in both dialects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from lastgood.store.columns import COLUMNS

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")


@dataclass(frozen=True, slots=True)
class Positional:
    """A statement whose `:names` became `$1, $2, …`, and the order to pass their values in."""

    text: str
    names: tuple[str, ...]

    def values(self, parameters: Mapping[str, Any]) -> list[Any]:
        return [parameters[name] for name in self.names]


def _parse(text: str, known: Mapping[str, str]) -> dict[str, str]:
    parts = _NAME.split(text)
    found: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        found[name] = _COMMENT.sub("", body).strip().rstrip(";").format_map({**known, **found})
    return found


def read(name: str) -> str:
    return (files("lastgood.store") / "sql" / name).read_text()


@cache
def named(dialect: str) -> dict[str, str]:
    """All statements of a dialect by name; the shared ones are in both."""
    found: dict[str, str] = {}
    for name in (
        "shared",
        dialect,
        "runtimes",
        "tasks",
        "claims",
        "imports",
        "webhooks",
        "usage",
        "activity",
        "tickets",
        "notes",
        "database",
        f"work_{dialect}",
    ):
        found |= _parse(read(f"{name}.sql"), COLUMNS | found)
    return found


@cache
def standalone(name: str) -> dict[str, str]:
    """The statements of one file that is about another schema than ours."""
    return _parse(read(name), {})


@cache
def for_rows(statement: str, count: int) -> Positional:
    """The same INSERT for `count` rows, and the order of the values of each row.

    Its parameters have no names: SQLite would look each of thousands up among all the others.
    """
    head, word, values = statement.partition("VALUES")
    row = _PARAMETER.sub("?", values)
    return Positional(head + word + ",".join([row] * count), tuple(_PARAMETER.findall(values)))


def positional(statement: str) -> Positional:
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return Positional(_PARAMETER.sub(number, statement), tuple(names))
