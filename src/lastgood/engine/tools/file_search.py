"""Searches the files under a root for a text or a regular expression.

It runs in a process of its own. A regular expression can take forever, and while it
does, Python lets no other thread run: within the server it would stop every session.
A process can be ended at its time limit.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

import lastgood
from lastgood.engine.tools.directory_listing import walk
from lastgood.engine.tools.rooted_files import Root, read_at
from lastgood.engine.tools.tool import ToolFailed

MOST_MATCHES = 500
MOST_FILES = 50_000
FILE_BYTES = 4 * 1024 * 1024
_PREVIEW = 100
_AROUND = 20
_REFUSED = 2  # the exit code when the answer is what is wrong with the question


@dataclass(frozen=True, slots=True)
class Search:
    root: str
    open: Sequence[str]
    closed: Sequence[str]
    path: str
    query: str
    is_regex: bool
    exclude: Sequence[str]
    vcs: bool

    def command(self) -> list[str]:
        """What runs it. `-I`: nothing from the environment, and nothing from the working directory."""
        program = (
            "import sys; sys.path.insert(0, sys.argv[1]); from lastgood.engine.tools import file_search; "
        )
        package = str(Path(lastgood.__file__).parents[1])
        return [sys.executable, "-I", "-c", f"{program}file_search.main()", package, json.dumps(asdict(self))]


def refused(code: int | None) -> bool:
    return code == _REFUSED


def main() -> None:
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    asked = json.loads(sys.argv[2])
    try:
        print(search(Search(**asked)))
    except ToolFailed as error:
        print(error)
        sys.exit(_REFUSED)


def search(asked: Search) -> str:
    notes: list[str] = []
    find = _finder(asked)
    found = list(islice(_matches(asked, find, notes), MOST_MATCHES + 1))
    if len(found) > MOST_MATCHES:
        found.pop()
        notes.append(f"more than {MOST_MATCHES} matches; use a more specific query")
    lines = found or ["No results found"]
    return "\n".join([*lines, *(f"[{note}]" for note in notes)])


Span = tuple[int, int]


def _finder(asked: Search) -> Callable[[str], Span | None]:
    if not asked.query:
        raise ToolFailed("the query is empty")
    if not asked.is_regex:
        query = asked.query

        def literal(line: str) -> Span | None:
            start = line.find(query)
            return None if start < 0 else (start, start + len(query))

        return literal
    try:
        pattern = re.compile(asked.query)
    except (re.error, RecursionError, OverflowError) as error:
        raise ToolFailed(f"Invalid regex pattern: {error}") from None

    def regular(line: str) -> Span | None:
        match = pattern.search(line)
        return match and match.span()

    return regular


def _matches(asked: Search, find: Callable[[str], Span | None], notes: list[str]) -> Iterator[str]:
    excluded = _excluder(asked.exclude)
    large = 0
    root = Root(Path(asked.root), tuple(asked.open), tuple(asked.closed))
    files = walk(root, asked.path, asked.vcs, excluded)
    for number, (folder, path, entry) in enumerate(files):
        if number == MOST_FILES:
            notes.append(f"only the first {MOST_FILES} files were searched; search in a subfolder")
            break
        try:
            content = read_at(folder, entry.name, FILE_BYTES)
        except OSError:
            continue  # gone, swapped for a link, or not ours to read
        large += content.is_cut
        if b"\x00" not in content.data[:8192]:
            yield from _in_text(path, content.data.decode(errors="replace"), find)
    if large:
        notes.append(f"of {large} large files only the first {FILE_BYTES} bytes were searched")


def _in_text(path: str, text: str, find: Callable[[str], Span | None]) -> Iterator[str]:
    shown = path if path.isprintable() else json.dumps(path)
    for number, line in enumerate(text.split("\n"), 1):
        span = find(line)
        if span is not None:
            start, end = span
            cut = line if len(line) <= _PREVIEW else line[max(start - _AROUND, 0) : end + _AROUND]
            yield f"{shown}:{number}:{start + 1}: {cut[: 5 * _PREVIEW]}"


def _excluder(patterns: Sequence[str]) -> Callable[[str], bool]:
    def excluded(path: str) -> bool:
        """By its name, its path, or a folder it is in."""
        name = path.rpartition("/")[2]
        return any(
            fnmatchcase(path, pattern)
            or fnmatchcase(name, pattern)
            or path == pattern.removesuffix("/*").rstrip("/")
            for pattern in patterns
        )

    return excluded
