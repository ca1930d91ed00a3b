"""Names of native sessions that cannot be mistaken for another agent's or another home's.

Agents number their sessions as they like: goose starts at `20261118_1` in every home, and some agents
accept an id that they have never seen. So a native session is named `ID@STORE.START`: the agent's id, a
random name that is kept in the home where the agent keeps its sessions, and a digest of the first message.
A session is resumed only if the home has that name, and the agent shows a conversation that starts with
that message.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"(?P<id>.+)@(?P<store>[0-9a-f]{16})\.(?P<start>[0-9a-f]{16})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SessionName:
    id: str
    store: str
    start: str

    def __str__(self) -> str:
        return f"{self.id}@{self.store}.{self.start}"


def parse_name(text: str) -> SessionName | None:
    found = _NAME.fullmatch(text)
    return SessionName(**found.groupdict()) if found else None


def digest_of(message: str) -> str:
    """Spaces do not count: agents trim and wrap messages when they show them again."""
    return hashlib.sha256(" ".join(message.split()).encode()).hexdigest()[:16]


def store_name(environment: Mapping[str, str]) -> str:
    """Returns the name of the home, and gives it one at the first call. Raises OSError."""
    home = Path(environment.get("HOME", "/"))
    folder = Path(environment.get("XDG_DATA_HOME") or home / ".local" / "share") / "lastgood"
    file = folder / "store-name"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = folder / f"store-name.{secrets.token_hex(8)}"
    try:
        draft.write_text(secrets.token_hex(8))
        os.link(draft, file)  # of two jobs that start at once, one name wins
    except FileExistsError:
        pass
    finally:
        draft.unlink(missing_ok=True)
    return file.read_text().strip()
