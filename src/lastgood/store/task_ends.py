"""What the end of a claim writes about its task, inside the transaction that commits or ends its attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lastgood.model.attempts import Hold
from lastgood.model.tasks import ENDED_TASKS, PointerReport, TaskEnd, TaskStatus
from lastgood.store.announcements import of_task
from lastgood.store.rows import writable
from lastgood.store.task_rows import as_text
from lastgood.store.work_access import ClaimLost, Statements

#: The limit of snapshots of a session that can be restored, besides those that its forks start from.
MOST_SNAPSHOTS = 3


def of_end(end: TaskEnd) -> dict[str, Any]:
    code, message = end.error or (None, None)
    return {
        "task": end.task,
        "token": end.token,
        "status": end.status.value,
        "is_over": end.status in ENDED_TASKS,
        "by_worker": end.token is not None,
        "why": writable(end.why),
        "due_seconds": 0.0
        if end.due_seconds is None and end.status is TaskStatus.DEFERRED
        else end.due_seconds,
        "code": code,
        "message": None if message is None else writable(message),
        "failures": int(end.counts_failure),
    }


async def end_claim(statements: Statements, hold: Hold, end: TaskEnd) -> None:
    """After the attempt's own end. ClaimLost: nothing of all that may stay."""
    parameters = of_end(end) | {"tenant": hold.tenant, "session": hold.session, "attempt": hold.attempt}
    ended = await statements.rows("end_claim", parameters)
    if not ended:
        raise ClaimLost
    await statements.rows("withdraw_questions", parameters)
    if end.cli_version or end.ran_tools:
        ran = {"cli_version": writable(end.cli_version), "ran_tools": end.ran_tools}
        await statements.rows("note_run", parameters | ran)
    if end.report is not None:
        await statements.rows("store_report", parameters | {"report": as_text(end.report)})
    if end.pointer is not None:
        await put_pointer(statements, parameters, end.pointer)
    await _drop_snapshots(statements, parameters)
    await hold_others(statements, end, parameters)
    await announce_end(statements, end, parameters)


async def _drop_snapshots(statements: Statements, session: Mapping[str, Any]) -> None:
    """Only their bodies: what changed in each turn can still be read."""
    freed = 0
    for attempt, size in await statements.rows("outdated_snapshots", {**session, "most": MOST_SNAPSHOTS}):
        await statements.rows("empty_snapshot", {**session, "attempt": attempt, "empty": b""})
        freed += size
    if freed:
        await statements.rows("add_stored_bytes", {**session, "bytes": -freed})


async def announce_end(statements: Statements, end: TaskEnd, task: Mapping[str, Any]) -> None:
    """After the task's row was changed. A task that is tried again has not ended."""
    if end.status in ENDED_TASKS:
        which = {"tenant": task["tenant"], "task": end.task}
        await statements.rows("announce_task", which | of_task(end.status, end.error))


async def hold_others(statements: Statements, end: TaskEnd, session: Mapping[str, Any]) -> None:
    if end.holds_others:
        others = {"task": end.task, "why": writable(end.holding_reason)}
        await statements.rows("hold_others", {**session, **others})


async def put_pointer(statements: Statements, claim: Mapping[str, Any], report: PointerReport) -> None:
    """Of the attempt of a claim; its parts come from the rows of that attempt and of its task's runtime."""
    pointer = {
        "tenant": claim["tenant"],
        "task": claim["task"],
        "attempt": claim["attempt"],
        "native_session": writable(report.native_session or "") or None,
        "work_dir": writable(report.work_dir or "") or None,
        "through": report.through,
        "outcome": report.outcome.value,
        "dirty": report.is_dirty,
    }
    await statements.rows("put_pointer", pointer)
    for native_session, reason in report.retires:
        retired = {"native_session": writable(native_session), "reason": writable(reason)}
        await statements.rows("retire_of_task", pointer | retired)
