"""Rows as a check of the whole database finds them, of all tenants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from lastgood.model.sessions import Head, Turn


class StoredTable(StrEnum):
    SESSIONS = "sessions"
    TURNS = "turns"
    BRANCHES = "branches"
    ATTEMPTS = "attempts"
    STEPS = "steps"
    REQUESTS = "requests"
    QUEUED = "queued"
    TASKS = "tasks"
    CLAIMS = "claims"
    POINTERS = "pointers"
    SNAPSHOTS = "snapshots"


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A turn and what the database knows of its neighbours."""

    tenant: str
    turn: Turn
    parent: Head | None  # as it is stored; None: the first turn, or the parent is missing
    parent_tenant: str | None
    is_reached: bool  # it is the head of a session or a branch, a fork starts from it, or a turn follows it
    segment: str


@dataclass(frozen=True, slots=True)
class StoredRow:
    """Any other row. `problem` is what is wrong with it; empty: it is as it was stored."""

    tenant: str
    session: str
    what: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TableSize:
    name: str
    rows: int
    bytes: int  # with its indexes


@dataclass(frozen=True, slots=True)
class DatabaseStatistics:
    """Of all tenants. The times are None if there is no session."""

    bytes: int
    tables: tuple[TableSize, ...]
    attempts: Mapping[str, int]  # by status
    tenants: int
    oldest_session_at: float | None
    last_change_at: float | None
