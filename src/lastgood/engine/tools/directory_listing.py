"""Looks around in folders: lists them, draws them as trees, walks through them.

Everything is bounded, and what was left out is said. Links are shown and never followed.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from lastgood.engine.tools.cancellation import StopSignal
from lastgood.engine.tools.gitignore import IgnoreRules
from lastgood.engine.tools.rooted_files import Root, folder_under, open_folder_at, read_at, read_under
from lastgood.engine.tools.tool import ToolFailed

#: Of one listing or tree. More says less.
MOST_SHOWN = 1000
#: Of one folder; the rest is not even read.
_MOST_READ = 100_000
_DEEPEST = 64
_GITIGNORE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    kind: str  # directory, file, symlink or other

    @property
    def is_folder(self) -> bool:
        return self.kind == "directory"

    @property
    def shown(self) -> str:
        """A name with a line break in it must not look like two."""
        return self.name if self.name.isprintable() else json.dumps(self.name)


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "symlink"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def _entries(folder: int) -> list[Entry]:
    with os.scandir(folder) as found:
        return sorted(
            (Entry(entry.name, _kind(entry)) for entry in islice(found, _MOST_READ)),
            key=lambda entry: entry.name,
        )


def entries_under(root: Root, path: str) -> list[Entry]:
    """By name. ToolFailed: there is no such folder, or it may not be read."""
    with folder_under(root, path) as (folder, _):
        return _entries(folder)


# -- what is ignored -----------------------------------------------------------------------


def _ignored_in(root: Path, path: str) -> IgnoreRules:
    """The rules from the root down to a folder, its own included."""
    ignored = IgnoreRules()
    names = [name for name in path.split("/") if name]
    for depth in range(len(names) + 1):
        above = "/".join(names[:depth])
        try:
            found = read_under(Root(root), f"{above or '.'}/.gitignore", _GITIGNORE_BYTES)
        except ToolFailed:
            continue
        ignored = ignored.within(above, found.data.decode(errors="replace"))
    return ignored


def _ignored_below(ignored: IgnoreRules, folder: int, path: str) -> IgnoreRules:
    try:
        found = read_at(folder, ".gitignore", _GITIGNORE_BYTES)
    except OSError:
        return ignored
    return ignored.within(path, found.data.decode(errors="replace"))


# -- the tools -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _View:
    """What can be seen of an open folder. `below` is its path from the root, `ignored` what holds in it."""

    root: Root
    folder: int
    below: str
    ignored: IgnoreRules | None

    def entries(self) -> tuple[list[Entry], int]:
        """Those that can be seen, and how many cannot."""
        found = _entries(self.folder)
        seen = [entry for entry in found if not self._hides(entry)]
        return seen, len(found) - len(seen)

    def _hides(self, entry: Entry) -> bool:
        path = self.path_of(entry)
        return self.root.shuts(path) or (
            self.ignored is not None and self.ignored.hides(path, entry.is_folder)
        )

    def path_of(self, entry: Entry) -> str:
        return f"{self.below}/{entry.name}".lstrip("/")

    @contextmanager
    def into(self, entry: Entry) -> Iterator[_View]:
        """A folder in it. Raises OSError if it is gone, swapped for a link, or not ours to read."""
        folder = open_folder_at(self.folder, entry.name)
        try:
            below, ignored = self.path_of(entry), self.ignored
            if ignored is not None:
                ignored = _ignored_below(ignored, folder, below)
            yield _View(self.root, folder, below, ignored)
        finally:
            os.close(folder)


@contextmanager
def _view(root: Root, path: str, vcs: bool) -> Iterator[_View]:
    with folder_under(root, path) as (folder, where):
        below = "" if where == root.path else str(where.relative_to(root.path))
        yield _View(root, folder, below, _ignored_in(root.path, below) if vcs else None)


_LABELS = {"directory": "DIR ", "file": "FILE", "symlink": "LINK", "other": "OTHER"}


def list_folder(root: Root, path: str, vcs: bool) -> str:
    with _view(root, path, vcs) as view:
        seen, hidden = view.entries()
    if not seen:
        if hidden:
            return f"Directory has no visible entries ({hidden} hidden by ignore patterns): {path}"
        return f"Directory is empty: {path}"
    lines = [f"{_LABELS[entry.kind]} {entry.shown}" for entry in seen[:MOST_SHOWN]]
    if len(seen) > MOST_SHOWN:
        lines.append(f"[{len(seen) - MOST_SHOWN} more entries not shown]")
    if hidden:
        lines.append(f"[{hidden} entries hidden by ignore patterns]")
    return "\n".join(lines)


@dataclass(slots=True)
class _Node:
    name: str
    kind: str
    children: list[_Node] = field(default_factory=list)
    left_out: int = 0

    def as_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"name": self.name, "type": self.kind}
        if self.kind == "directory":
            plain["children"] = [child.as_json() for child in self.children]
        if self.left_out:
            plain["not_shown"] = self.left_out
        return plain


def tree(root: Root, path: str, vcs: bool, stop: StopSignal) -> str:
    """Level by level, so that what is left out is what lies deepest."""
    top = _Node(Path(path).name or root.path.name, "directory")
    waiting = deque([(top, path, 0)])
    shown = 1
    while waiting:
        stop.check()
        node, here, depth = waiting.popleft()
        try:
            with _view(root, here, vcs) as view:
                seen, _ = view.entries()
        except ToolFailed:
            if node is top:
                raise
            continue  # gone, or not ours to read
        fit = seen[: MOST_SHOWN - shown] if depth < _DEEPEST else []
        node.left_out = len(seen) - len(fit)
        shown += len(fit)
        for entry in fit:
            child = _Node(entry.name, entry.kind)
            node.children.append(child)
            if entry.is_folder:
                waiting.append((child, view.path_of(entry), depth + 1))
    return json.dumps(top.as_json(), ensure_ascii=False)


def walk(
    root: Root, path: str, vcs: bool, excluded: Callable[[str], bool]
) -> Iterator[tuple[int, str, Entry]]:
    """Every file below a folder: the open folder it is in, its path from the root, and its name.

    `excluded` is asked about each file and folder, by its path from where the walk began.
    """
    with _view(root, path, vcs) as view:
        start = len(view.below) + 1 if view.below else 0
        yield from _walk(view, lambda found: excluded(found[start:]), 0)


def _walk(view: _View, excluded: Callable[[str], bool], depth: int) -> Iterator[tuple[int, str, Entry]]:
    seen, _ = view.entries()
    for entry in seen:
        path = view.path_of(entry)
        if excluded(path):
            continue
        if entry.kind == "file":
            yield view.folder, path, entry
        elif entry.is_folder and depth < _DEEPEST:
            with suppress(OSError), view.into(entry) as inner:
                yield from _walk(inner, excluded, depth + 1)
