"""Runtimes, tasks, pointers and tokens, as a server returns them.

States are strings and not enums: a newer server may have states that this version does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lastgood.client.models import code_of, moment


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """One agent CLI on one worker."""

    id: str
    name: str
    provider: str
    profile: str
    account: str
    worker: str
    owner: str
    shared_with: tuple[str, ...]  # users; "*": every user of the tenant
    cli_version: str
    is_steerable: bool
    is_online: bool
    status: str  # why its worker claims nothing; empty: it claims
    seen_seconds_ago: float
    created_at: datetime


@dataclass(frozen=True, slots=True)
class BindingInfo:
    """On which runtime an agent runs. `moved`: queued tasks that a new binding took along."""

    agent: str
    runtime: str
    offline: str  # wait, fail
    max_wait_seconds: float
    deadline_seconds: float
    max_running: int | None
    is_published: bool
    moved: int = 0
    on_agent_change: str = "disclose"  # disclose, replay, fresh
    on_dirty: str = "disclose"  # disclose, replay


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A turn that waits for a runtime, runs there, or has ended."""

    id: str
    number: int
    status: str  # queued, deferred, claimed, running, waiting, completed, failed, cancelled
    why: str  # what an unfinished task waits for
    agent: str
    scope: tuple[str, str]  # issue or chat, and its id
    session: str
    turn: str
    runtime: str
    priority: int
    is_fresh: bool
    rerun_of: str | None
    note: str
    is_held: bool  # after a person's cancel, until it is continued or cancelled
    worker: str | None
    attempt: str | None
    claims: int
    failures: int
    lost_claims: int  # whose lease ended without a report
    cli_version: str | None  # of the newest run; ends with "(untested)" if its kind was not tested with it
    decision: Mapping[str, Any]  # what the newest claim resumed, and why
    late_output: str | None  # reported after the end; never committed
    error_code: str | None
    error_message: str | None
    due_at: datetime | None
    expires_at: datetime | None
    deadline_at: datetime | None
    created_at: datetime
    ended_at: datetime | None
    is_known: bool = False  # the same request was sent before

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None


@dataclass(frozen=True, slots=True)
class TaskList:
    """One page of tasks. `next_cursor` is None on the last page."""

    tasks: tuple[TaskInfo, ...]
    next_cursor: int | None


@dataclass(frozen=True, slots=True)
class TaskMessageInfo:
    """One thing that a run did."""

    seq: int
    type: str  # text, thinking, tool_use, tool_result, error
    body: Mapping[str, Any]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class DiffInfo:
    """What a task changed in its working directory, as its worker has uploaded it."""

    attempt: str
    bytes: int  # of the snapshot
    changes: tuple[tuple[str, str], ...]  # path, and added, modified or deleted
    left_out: tuple[tuple[str, str], ...]  # path, and why it is not in the snapshot
    patch: str
    is_cut: bool  # the patch or a list is longer than what is here


@dataclass(frozen=True, slots=True)
class QuestionInfo:
    """What a running task waits for."""

    id: str
    task: str
    status: str  # pending, answered, withdrawn, expired
    body: Mapping[str, Any]
    answer: Mapping[str, Any] | None
    deadline_at: datetime


@dataclass(frozen=True, slots=True)
class PointerInfo:
    """One attempt's record of its native session."""

    attempt: str
    task: str
    native_session: str | None
    runtime: str | None
    worker: str
    work_dir: str | None
    through: str | None  # the last turn that it has seen
    outcome: str  # committed, failed, resume_failed, uncounted
    is_dirty: bool
    retired: str | None


@dataclass(frozen=True, slots=True)
class PointerList:
    """Every native session of a session, and what would be decided on each runtime that you may use."""

    session: str
    pointers: tuple[PointerInfo, ...]
    decisions: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class ExplanationInfo:
    """What a claim of a session would decide now, on this runtime."""

    runtime: RuntimeInfo
    chosen: str  # why this runtime
    decision: Mapping[str, Any]
    content: Mapping[str, Any]  # how much would be sent along


@dataclass(frozen=True, slots=True)
class EnrollmentInfo:
    """`code` can be exchanged for a worker token once, before it expires."""

    code: str
    worker: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """`secret` is the token itself; it is None except in the response that created it."""

    id: str
    name: str
    scopes: tuple[str, ...]
    user: str
    worker: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    secret: str | None = None


# -- from the wire ---------------------------------------------------------------------


def runtime_of(plain: Mapping[str, Any]) -> RuntimeInfo:
    return RuntimeInfo(
        id=plain["id"],
        name=plain["name"],
        provider=plain["provider"],
        profile=plain["profile"],
        account=plain["account"],
        worker=plain["worker_id"],
        owner=plain["owner"],
        shared_with=tuple(plain["shared_with"]),
        cli_version=plain["cli_version"],
        is_steerable=plain["steerable"],
        is_online=plain["online"],
        status=plain["status"],
        seen_seconds_ago=plain["seen_seconds_ago"],
        created_at=moment(plain["created_at"]),
    )


def binding_of(plain: Mapping[str, Any]) -> BindingInfo:
    return BindingInfo(
        agent=plain["agent"],
        runtime=plain["runtime_id"],
        offline=plain["offline"],
        max_wait_seconds=plain["max_wait_seconds"],
        deadline_seconds=plain["deadline_seconds"],
        max_running=plain["max_running"],
        is_published=plain["published"],
        moved=plain.get("moved", 0),
        on_agent_change=plain["on_agent_change"],
        on_dirty=plain["on_dirty"],
    )


def task_of(plain: Mapping[str, Any]) -> TaskInfo:
    error, scope, directive = plain.get("error") or {}, plain["scope"], plain["directive"]
    return TaskInfo(
        id=plain["id"],
        number=plain["number"],
        status=plain["status"],
        why=plain["why"],
        agent=plain["agent"],
        scope=(scope["kind"], scope["id"]),
        session=plain["session_id"],
        turn=plain["turn"],
        runtime=plain["runtime_id"],
        priority=plain["priority"],
        is_fresh=directive["fresh"],
        rerun_of=directive["rerun_of"],
        note=directive["note"],
        is_held=plain["held"],
        worker=plain.get("worker"),
        attempt=plain.get("attempt"),
        claims=plain["claims"],
        failures=plain["failures"],
        lost_claims=plain.get("lost_claims", 0),
        cli_version=plain.get("cli_version"),
        decision=plain.get("decision") or {},
        late_output=plain.get("late_output"),
        error_code=code_of(error) if error else None,
        error_message=error.get("message"),
        due_at=_moment(plain.get("due_at")),
        expires_at=_moment(plain.get("expires_at")),
        deadline_at=_moment(plain.get("deadline_at")),
        created_at=moment(plain["created_at"]),
        ended_at=_moment(plain.get("ended_at")),
        is_known=plain.get("replayed", False),
    )


def message_of(plain: Mapping[str, Any]) -> TaskMessageInfo:
    body = plain["message"]
    return TaskMessageInfo(plain["seq"], str(body.get("type", "")), body, moment(plain["created_at"]))


def diff_of(plain: Mapping[str, Any]) -> DiffInfo | None:
    snapshot = plain["snapshot"]
    if snapshot is None:
        return None
    return diff_from(snapshot["attempt"], snapshot["bytes"], snapshot["summary"])


def diff_from(attempt: str, size: int, summary: Mapping[str, Any]) -> DiffInfo:
    """`summary` is the worker's own: a worker of another release may leave something out."""
    changes = tuple((one["path"], one["change"]) for one in summary.get("changes", ()))
    left_out = tuple((one["path"], one["reason"]) for one in summary.get("left_out", ()))
    is_cut = (
        bool(summary.get("patch_cut"))
        or summary.get("changes_total", 0) > len(changes)
        or summary.get("left_out_total", 0) > len(left_out)
    )
    return DiffInfo(attempt, size, changes, left_out, str(summary.get("patch", "")), is_cut)


def question_of(plain: Mapping[str, Any]) -> QuestionInfo:
    return QuestionInfo(
        id=plain["id"],
        task=plain["task"],
        status=plain["status"],
        body=plain["question"],
        answer=plain.get("answer"),
        deadline_at=moment(plain["deadline_at"]),
    )


def pointers_of(plain: Mapping[str, Any]) -> PointerList:
    pointers = tuple(map(_pointer, plain["pointers"]))
    return PointerList(plain["session_id"], pointers, tuple(plain["decisions"]))


def _pointer(plain: Mapping[str, Any]) -> PointerInfo:
    return PointerInfo(
        attempt=plain["attempt"],
        task=plain["task"],
        native_session=plain["native_session"],
        runtime=plain["runtime_id"],
        worker=plain["worker"],
        work_dir=plain["work_dir"],
        through=plain["through"],
        outcome=plain["outcome"],
        is_dirty=plain["dirty"],
        retired=plain.get("retired"),
    )


def explanation_of(plain: Mapping[str, Any]) -> ExplanationInfo:
    return ExplanationInfo(runtime_of(plain["runtime"]), plain["chosen"], plain["decision"], plain["content"])


def enrollment_of(plain: Mapping[str, Any]) -> EnrollmentInfo:
    return EnrollmentInfo(plain["code"], plain["worker_id"], moment(plain["expires_at"]))


def token_of(plain: Mapping[str, Any]) -> TokenInfo:
    return TokenInfo(
        id=plain["id"],
        name=plain["name"],
        scopes=tuple(plain["scopes"]),
        user=plain["user"],
        worker=plain.get("worker_id"),
        created_at=moment(plain["created_at"]),
        expires_at=_moment(plain.get("expires_at")),
        revoked_at=_moment(plain.get("revoked_at")),
        secret=plain.get("token"),
    )


def _moment(text: str | None) -> datetime | None:
    return None if text is None else moment(text)
