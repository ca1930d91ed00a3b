"""Numbered migrations, the same rules for both databases.

Files are applied in order, each in a transaction of its own, and recorded in
`lastgood_schema`; dying anywhere and starting again reaches the same end.
Each file says from which version on a program can serve the database it leaves
behind (`-- compatible-from: N`): that lets nodes be replaced one by one, and
refuses a database that this program would misread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files

from lastgood.errors import NewerDatabase, OlderDatabase

_COMMENT = re.compile(r"--[^\n]*")
_COMPATIBLE = re.compile(r"^-- compatible-from: (\d+)$", re.MULTILINE)

LEDGER = """
CREATE TABLE IF NOT EXISTS lastgood_schema (
    version         INTEGER PRIMARY KEY,
    compatible_from INTEGER NOT NULL
)
"""


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    compatible_from: int
    statements: tuple[str, ...]


def migration(version: int, text: str) -> Migration:
    found = _COMPATIBLE.search(text)
    if found is None:
        raise ValueError(f"migration {version} does not say what it is compatible with")
    parts = (part.strip() for part in _COMMENT.sub("", text).split(";"))
    return Migration(version, int(found[1]), tuple(part for part in parts if part))


def migrations(dialect: str) -> tuple[Migration, ...]:
    folder = files("lastgood.store") / "sql" / dialect
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return tuple(migration(int(name[:4]), (folder / name).read_text()) for name in names)


def pending(known: Iterable[Migration], applied: Iterable[tuple[int, int]]) -> tuple[Migration, ...]:
    """What is still to be applied; NewerDatabase if this program may not touch it."""
    ours = tuple(known)
    newest = max((step.version for step in ours), default=0)
    done = dict(applied)
    needed = max((done[version] for version in done if version > newest), default=0)
    if needed > newest:
        raise NewerDatabase(
            f"this database has schema {max(done)}, which needs a program of schema {needed} or later; "
            f"this one has {newest}. Upgrade Lastgood; the database was left as it is"
        )
    return tuple(step for step in ours if step.version not in done)


def refuse_older(known: Iterable[Migration], applied: Iterable[tuple[int, int]]) -> None:
    """For who may not change the schema. A newer one that this program can serve is good enough."""
    ours, done = tuple(known), dict(applied)
    if pending(ours, done.items()):
        has = f"has schema {max(done)}" if done else "is not set up yet"
        raise OlderDatabase(
            f"this database {has}, and this program needs schema {max(step.version for step in ours)}; "
            "it was left as it is. Start once with --migrate auto"
        )
