"""Decides what a `.gitignore` hides.

Names are matched one by one and folders by counting positions, never by one regular expression over
the whole path: a file in the working directory must not be able to keep us busy.
Only the `.gitignore` files of the working directory are known, not those of the user or the repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class _Pattern:
    names: tuple[str, ...]
    hides: bool
    folders_only: bool

    def fits(self, parts: Sequence[str], is_folder: bool) -> bool:
        if self.folders_only and not is_folder:
            return False
        ends = {0}  # how many parts the pattern may have used up so far
        for number, name in enumerate(self.names):
            if name != "**":
                ends = {end + 1 for end in ends if end < len(parts) and fnmatchcase(parts[end], name)}
            elif ends:
                inside = number == len(self.names) - 1  # `a/**` is what is in a, not a itself
                ends = set(range(min(ends) + inside, len(parts) + 1))
        return len(parts) in ends


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The rules that hold in a folder: its own and those of the folders above it."""

    layers: tuple[tuple[int, tuple[_Pattern, ...]], ...] = ()

    def within(self, path: str, gitignore: str) -> IgnoreRules:
        """With the rules of a folder further down."""
        patterns = tuple(_parsed(gitignore))
        return IgnoreRules((*self.layers, (len(_parts(path)), patterns))) if patterns else self

    def hides(self, path: str, is_folder: bool) -> bool:
        """A path from the working directory. That no folder above it is hidden was asked before."""
        parts = _parts(path)
        if parts[-1] == ".git":
            return True
        for depth, patterns in reversed(self.layers):
            for pattern in reversed(patterns):
                if pattern.fits(parts[depth:], is_folder):
                    return pattern.hides
        return False


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _parsed(gitignore: str) -> Iterator[_Pattern]:
    for line in gitignore.splitlines():
        text = re.sub(r"(?<!\\) +$", "", line)
        if not text or text.startswith("#"):
            continue
        hides = not text.startswith("!")
        text = text if hides else text[1:]
        folders_only = text.endswith("/")
        names = [_glob(name) for name in text.strip("/").split("/")]
        if "/" not in text.rstrip("/"):
            names.insert(0, "**")
        if any(names):
            yield _Pattern(tuple(names), hides, folders_only)


def _glob(name: str) -> str:
    """In the words of fnmatch, which knows no backslash."""
    escaped = re.sub(r"\\(.)", lambda found: f"[{found[1]}]" if found[1] in "*?[" else found[1], name)
    return escaped.replace("[^", "[!")
