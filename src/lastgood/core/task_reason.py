"""Says why a task that is not finished has not finished yet (I32).

The reason is derived whenever a task is read, so it cannot be out of date. `held` and `deferred` tasks also
have a stored reason, which says why they were put there. That of a claimed one is its worker's: why it has
not started the run yet.
"""

from __future__ import annotations

from datetime import UTC, datetime

from lastgood.core.runtime_choice import OFFLINE_SECONDS, has_deregistered
from lastgood.core.task_lifecycle import is_task_over
from lastgood.model.ids import TaskId
from lastgood.model.runtimes import Runtime
from lastgood.model.tasks import HELD_TASKS, Task, TaskStatus


def why(task: Task, runtime: Runtime | None, ahead: TaskId | None, now: float) -> str:
    """Empty if the task has ended. `ahead`: the first unfinished task of its session, if another one."""
    if is_task_over(task.status):
        return ""
    if task.status in HELD_TASKS:
        return _of_claim(task, now)
    if task.held:
        return f"{task.why or 'held after a cancel'}; continue or drop it"
    if task.due_at is not None and task.due_at > now:
        cause = f" ({task.why})" if task.why else ""
        return f"due at {moment(task.due_at)}{cause}"
    if ahead is not None:
        return f"waits for task {ahead}, which is before it in the same session"
    return _of_runtime(task, runtime, now)


def _of_claim(task: Task, now: float) -> str:
    by = f"worker {task.worker}"
    if task.lease_until is not None and task.lease_until < now:
        return f"claimed by {by}, lease ended at {moment(task.lease_until)}; claimable"
    if task.status is TaskStatus.WAITING:
        return f"{by} waits for a person's answer"
    if task.status is TaskStatus.RUNNING:
        return f"{by} is running it"
    return f"claimed by {by}: {task.why}" if task.why else f"claimed by {by}"


def _of_runtime(task: Task, runtime: Runtime | None, now: float) -> str:
    if runtime is None:
        return f"runtime {task.runtime} does not exist; move the task, or cancel it"
    if runtime.removed_at is not None:
        return f"runtime {runtime.name} was removed; register it again, move the task, or cancel it"
    if has_deregistered(runtime.seen_seconds_ago):
        return f"runtime {runtime.name} is offline: its worker has stopped"
    if runtime.seen_seconds_ago > OFFLINE_SECONDS:
        return f"runtime {runtime.name} is offline since {moment(now - runtime.seen_seconds_ago)}"
    if runtime.status:
        return f"runtime {runtime.name} claims no tasks: {runtime.status}"
    return f"waits for runtime {runtime.name} to claim it"


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
