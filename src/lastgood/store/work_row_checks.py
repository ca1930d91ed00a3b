"""What a check reads of every row of work on runtimes, the same for both databases.

A task that no worker can ever end, or a pointer to what is not there, is found here and not by the claim that
would need it.
"""

from __future__ import annotations

from typing import Any

import orjson

from lastgood.model.stored_rows import StoredRow
from lastgood.model.tasks import HELD_TASKS, Task
from lastgood.store.rows import Row
from lastgood.store.task_rows import to_pointer, to_task

GONE = "its session does not exist"
UNREADABLE = "it cannot be read"

#: What the JSON and the enums of a changed row raise.
_DAMAGE = (ValueError, TypeError, KeyError)


def check_task(row: Row) -> StoredRow:
    id, tenant, session = str(row[9]), str(row[10]), str(row[11])
    try:
        problem = _problem_of_task(to_task(row[8:]), row[:8])
    except _DAMAGE:
        problem = UNREADABLE
    return StoredRow(tenant, session, f"task {id}", problem)


def _problem_of_task(task: Task, known: Row) -> str:
    session_tenant, holder, has_runtime, has_request, has_attempt, has_claim, claim, has_rival = known
    if session_tenant != task.tenant:
        return GONE
    if not has_runtime:
        return f"its runtime, {task.runtime}, does not exist"
    if task.ended_at is None and not has_request:
        return "its input is missing"
    if task.attempt is not None and not has_attempt:
        return f"its attempt, {task.attempt}, does not exist"
    if claim is not None and not has_claim:
        return f"the claim of its attempt, {task.attempt}, does not exist"
    if task.status in HELD_TASKS:
        if holder != task.attempt:
            return f"a worker has it, but its attempt, {task.attempt}, does not hold the session"
        if has_rival:
            return "a worker has another task of the same session, too"
    return ""


def check_claim(row: Row) -> StoredRow:
    session, has_task, has_attempt, tenant, task, attempt, report = row
    problem = ""
    if not has_task:
        problem = f"its task, {task}, does not exist"
    elif not has_attempt:
        problem = f"its attempt, {attempt}, does not exist"
    elif report is not None and not _is_json(report):
        problem = UNREADABLE
    return StoredRow(
        str(tenant), str(session or ""), f"the claim of task {task} by attempt {attempt}", problem
    )


def check_pointer(row: Row) -> StoredRow:
    session_tenant, has_task, has_attempt, lacks_turn, tenant, session, *plain = row
    attempt, task = plain[1], plain[2]

    def found(problem: str = "") -> StoredRow:
        return StoredRow(str(tenant), str(session), f"the pointer of task {task}, attempt {attempt}", problem)

    try:
        pointer = to_pointer(plain)
    except _DAMAGE:
        return found(UNREADABLE)
    if session_tenant != tenant:
        return found(GONE)
    # One that was imported names a task of the other system. Attempts of this one know their agent.
    if not (has_task and has_attempt) and (has_task or has_attempt or pointer.agent_digest):
        return found("its task and its attempt do not belong together, or do not exist")
    if lacks_turn:
        return found("a turn that it names does not exist")
    return found()


def check_snapshot(row: Row) -> StoredRow:
    session_tenant, has_attempt, tenant, session, attempt, summary = row
    problem = ""
    if session_tenant != tenant:
        problem = GONE
    elif not has_attempt:
        problem = "its attempt does not exist, or is another turn's"
    elif not _is_json(summary):
        problem = UNREADABLE
    return StoredRow(str(tenant), str(session), f"the snapshot of attempt {attempt}", problem)


def _is_json(text: Any) -> bool:
    try:
        orjson.loads(text)
    except _DAMAGE:
        return False
    return True
