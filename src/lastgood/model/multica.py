"""Rows of a multica database, as far as they are imported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MulticaAgent:
    id: str
    name: str
    workspace: str | None


@dataclass(frozen=True, slots=True)
class MulticaRuntime:
    id: str
    daemon: str  # the machine
    provider: str
    profile: str
    name: str


@dataclass(frozen=True, slots=True)
class MulticaChat:
    """Its pointer is three columns that are written apart: they may not belong together."""

    id: str
    agent: str
    title: str
    native_session: str | None
    runtime: str | None
    work_dir: str | None


@dataclass(frozen=True, slots=True)
class MulticaIssue:
    """One issue that an agent has worked on. What was said about it is in comments, which are not read."""

    id: str
    agent: str
    title: str


@dataclass(frozen=True, slots=True)
class MulticaMessage:
    id: str
    role: str  # user, assistant
    content: str
    kind: str  # `message`: said; others are notices
    is_failure: bool  # the reply is an error text
    task: str | None
    generation: int  # rises with each /new
    created_at: float


@dataclass(frozen=True, slots=True)
class MulticaTask:
    """One run of an agent, for a chat or an issue."""

    id: str
    agent: str
    status: str
    native_session: str | None
    runtime: str | None  # None: it was deleted
    work_dir: str | None
    retired_session: str | None  # a native session that this run gave up
    failure: str | None
    finished_at: float
