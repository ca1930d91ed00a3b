"""Rows as a check of the whole database finds them, of all tenants."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lastgood.model.sessions import Head, Turn


class Table(StrEnum):
    SESSIONS = "sessions"
    TURNS = "turns"
    ATTEMPTS = "attempts"
    STEPS = "steps"
    REQUESTS = "requests"
    QUEUED = "queued"


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A turn and what the database knows of its neighbours."""

    tenant: str
    turn: Turn
    parent: Head | None  # as it is stored; None: there is none, or it is missing
    parent_tenant: str | None
    is_reached: bool  # it is a session's head, a fork starts from it, or another turn follows it


@dataclass(frozen=True, slots=True)
class StoredRow:
    """Any other row. `problem` is what is wrong with it; empty: it is as it was stored."""

    tenant: str
    session: str
    what: str
    problem: str = ""
