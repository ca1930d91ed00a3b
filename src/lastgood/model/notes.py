"""Notes: what an agent keeps beyond its sessions, such as memories and plans."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Note:
    """`body` is JSON. `revision` rises by one with every change."""

    id: str
    revision: int
    body: str
    created_at: float
    updated_at: float


class NoteAdded(StrEnum):
    ADDED = "added"
    EXISTS = "exists"  # a note with this id is there already; it was not changed
    FULL = "full"  # there are as many notes as there may be
