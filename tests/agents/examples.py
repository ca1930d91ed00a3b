"""Counts the agent files of a folder that run as they are written: `python -m tests.agents.examples FOLDER`.

A file counts if it loads and nothing in it is "not supported". Prints what the others lack, and how many
files it costs: those that lack it, and those that lack nothing else.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lastgood.errors import AgentInvalid
from tests.agents.corpus import read

_AGENTS = re.compile(rb"^agents:", re.MULTILINE)


@dataclass
class Count:
    good: list[str] = field(default_factory=list)
    invalid: dict[str, str] = field(default_factory=dict)
    lacking: dict[str, frozenset[str]] = field(default_factory=dict)

    @property
    def files(self) -> int:
        return len(self.good) + len(self.invalid) + len(self.lacking)

    def lines(self) -> Iterator[str]:
        yield f"{len(self.good)} of {self.files} files run without a 'not supported' warning"
        costs = Counter(what for lacks in self.lacking.values() for what in lacks)
        alone = Counter(next(iter(lacks)) for lacks in self.lacking.values() if len(lacks) == 1)
        for what, files in costs.most_common():
            yield f"{files:4} files, {alone[what]:3} lack nothing else: {what}"
        for name, why in self.invalid.items():
            yield f"does not load: {name}: {why}"


def count(folder: Path) -> Count:
    found = Count()
    for path in sorted(folder.rglob("*.y*ml")):
        if not _AGENTS.search(path.read_bytes()):
            continue
        name = str(path.relative_to(folder))
        try:
            warnings = [one.message for one in read(path).warnings if "not supported" in one.message]
        except AgentInvalid as error:
            found.invalid[name] = error.message
            continue
        if warnings:
            found.lacking[name] = frozenset(warnings)
        else:
            found.good.append(name)
    return found


if __name__ == "__main__":
    print("\n".join(count(Path(sys.argv[1])).lines()))
