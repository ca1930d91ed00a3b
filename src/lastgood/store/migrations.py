"""Numbered migrations, the same rules for both databases.

Files are applied in order, each in a transaction of its own, and recorded in
`lastgood_schema`; dying anywhere and starting again reaches the same end.
Each file says from which version on a program can serve the database it leaves
behind (`-- compatible-from: N`): that lets nodes be replaced one by one, and
refuses a database that this program would misread.

The record of a file holds a digest of its statements. A database whose recorded steps are not ours
has another schema under the same number, so it is refused before any statement fails on it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from lastgood.errors import NewerDatabase, OlderDatabase, SchemaMismatch

_COMMENT = re.compile(r"--[^\n]*")
_COMPATIBLE = re.compile(r"^-- compatible-from: (\d+)$", re.MULTILINE)

LEDGER = """
CREATE TABLE IF NOT EXISTS lastgood_schema (
    version         INTEGER PRIMARY KEY,
    compatible_from INTEGER NOT NULL,
    digest          TEXT NOT NULL
)
"""


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    compatible_from: int
    statements: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Of what it does to a database: comments, line breaks and indents do not count."""
        plain = [" ".join(statement.split()) for statement in self.statements]
        text = "\0".join([str(self.compatible_from), *plain])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def applied(self) -> Applied:
        return Applied(self.version, self.compatible_from, self.digest)


@dataclass(frozen=True, slots=True)
class Applied:
    """A migration as the ledger of a database has it."""

    version: int
    compatible_from: int
    digest: str | None  # None: the ledger is from a time when none was kept


def migration(version: int, text: str) -> Migration:
    found = _COMPATIBLE.search(text)
    if found is None:
        raise ValueError(f"migration {version} has no `-- compatible-from: N` line")
    parts = (part.strip() for part in _COMMENT.sub("", text).split(";"))
    return Migration(version, int(found[1]), tuple(part for part in parts if part))


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    folder = files("lastgood.store") / "sql" / dialect
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return tuple(migration(int(name[:4]), (folder / name).read_text()) for name in names)


def pending(
    known: Iterable[Migration], applied: Iterable[Applied], name: str = "this database"
) -> tuple[Migration, ...]:
    """What is still to be applied. NewerDatabase or SchemaMismatch: this program may not touch it."""
    ours = tuple(known)
    newest = max((step.version for step in ours), default=0)
    done = {step.version: step for step in applied}
    needed = max((step.compatible_from for step in done.values() if step.version > newest), default=0)
    if needed > newest:
        raise NewerDatabase(
            f"{name} has schema {max(done)}, which needs Lastgood with schema {needed} or later; "
            f"this one has {newest}. Upgrade Lastgood; the database was not changed"
        )
    for step in ours:
        if step.version in done and done[step.version].digest != step.digest:
            raise SchemaMismatch(
                f"{name} was created by a different development version of Lastgood: migration "
                f"{step.version} differs. It was not changed. Move it away to start with an empty database, "
                "or use the version of Lastgood that created it"
            )
    return tuple(step for step in ours if step.version not in done)


def refuse_older(
    known: Iterable[Migration], applied: Iterable[Applied], name: str = "this database"
) -> tuple[Migration, ...]:
    """For a program that may not change the schema. A newer schema that it can serve is good enough."""
    ours, done = tuple(known), tuple(applied)
    if pending(ours, done, name):
        has = f"has schema {max(step.version for step in done)}" if done else "has no schema yet"
        raise OlderDatabase(
            f"{name} {has}, and this version of Lastgood needs schema {max(step.version for step in ours)}; "
            "it was not changed. Run `lastgood db upgrade`, or start once with --migrate auto"
        )
    return ()
