"""The SessionBusy error for what a session is busy with."""

from __future__ import annotations

from lastgood.errors import SessionBusy
from lastgood.model.attempts import Attempt, AttemptStatus
from lastgood.model.sessions import Session
from lastgood.model.tasks import Task
from lastgood.ports import Store


def busy(attempt: Attempt) -> SessionBusy:
    waits = attempt.status is AttemptStatus.WAITING
    what = "waits for an answer of a person; answer" if waits else "is running; retry when it has ended"
    return SessionBusy(
        f"A turn of this session {what}, or cancel it",
        attempt=attempt.id,
        turn=attempt.turn,
        status=attempt.status.value,
    )


def busy_with(task: Task) -> SessionBusy:
    return SessionBusy(
        f"A task of this session is {task.status.value}; retry when it has ended, or cancel it",
        task=task.id,
        turn=task.turn,
        status=task.status.value,
    )


async def check_no_tasks(store: Store, session: Session) -> None:
    """SessionBusy: tasks of the session are not finished. Only sessions that were on a runtime have any."""
    if session.runtime_id is not None:
        tasks = await store.open_tasks(session.tenant, session.id)
        if tasks:
            raise busy_with(tasks[0])
