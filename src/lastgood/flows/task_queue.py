"""The queue of a session on a runtime: its follow-ups are tasks, in one order with all its other tasks.

Tasks and the entries of this server are shown in one list. A session may have both: what was said before its
agent was bound to a runtime, and a steer that came too late, become tasks as soon as the session is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lastgood.errors import Conflict, LastgoodError, StoreError
from lastgood.flows.begin import TurnStarter
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.retries import retry_lost_races
from lastgood.flows.work.enqueue import Enqueuer, TaskDraft
from lastgood.flows.work.tasks import Tasks
from lastgood.model.attempts import Ask, Attempt
from lastgood.model.ids import SessionId, TenantId, TurnId
from lastgood.model.messages import Message
from lastgood.model.sessions import Session
from lastgood.model.tasks import HELD_TASKS, Task

#: Tasks have numbers of their own. In the queue they start here: no other entry gets so far.
FIRST_TASK = 2**52


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """A task that no worker has claimed, as an entry of the queue."""

    task: Task
    messages: tuple[Message, ...]
    why: str

    @property
    def number(self) -> int:
        return FIRST_TASK + self.task.number


class TaskQueue:
    def __init__(self, deps: Dependencies, starter: TurnStarter, tasks: Tasks, enqueuer: Enqueuer) -> None:
        self._deps = deps
        self._starter = starter
        self._tasks = tasks
        self._enqueuer = enqueuer

    async def put(self, ask: Ask, turn: TurnId, session: Session) -> tuple[QueuedTask, bool] | None:
        """Returns the queued task, and whether it was queued before under its key. None: the agent runs here,
        or is not served now; then the entry waits in the queue of this server, with the reason."""
        try:
            agent, _ = await self._starter.resolve(ask, session)
            plan = await self._starter.choose(ask, session, agent)
        except StoreError:
            raise
        except LastgoodError:
            if session.runtime_id is not None:
                raise
            return None
        if plan is None:
            return None
        draft = TaskDraft(ask, session, agent.key, plan, only_if_idle=False, turn=turn)
        queued = await self._enqueuer.enqueue(draft)
        if isinstance(queued, Attempt):
            raise Conflict("This idempotency key was used for a turn that is not queued; use a new key")
        (shown,) = await self._shown(ask.tenant, (queued.task,))
        return shown, queued.is_known

    async def read(self, tenant: TenantId, session: SessionId) -> tuple[QueuedTask, ...]:
        tasks = await self._deps.store.open_tasks(tenant, session)
        return await self._shown(tenant, [task for task in tasks if task.status not in HELD_TASKS])

    async def _shown(self, tenant: TenantId, tasks: Sequence[Task]) -> tuple[QueuedTask, ...]:
        found = []
        for shown in await self._tasks.shown(tenant, tasks):
            request = await self._deps.store.read_request(tenant, shown.task.turn)
            messages = request.messages if request is not None and request.messages is not None else ()
            found.append(QueuedTask(shown.task, messages, shown.why))
        return tuple(found)

    async def drop(self, tenant: TenantId, session: SessionId, number: int) -> bool:
        """False: it is not there, or a worker has it."""
        task = await self._find(tenant, session, number)
        if task is None or task.status in HELD_TASKS:
            return False
        ended = await retry_lost_races(
            "delete the entry", lambda: self._tasks.end_now(tenant, task.id, by_person=False)
        )
        return ended.attempt == task.attempt

    async def retry(self, tenant: TenantId, session: SessionId, number: int) -> bool:
        """A held one is queued again. False: it is not there, or not held."""
        task = await self._find(tenant, session, number)
        return task is not None and await self._tasks.release(task)

    async def _find(self, tenant: TenantId, session: SessionId, number: int) -> Task | None:
        tasks = await self._deps.store.open_tasks(tenant, session)
        return next((task for task in tasks if FIRST_TASK + task.number == number), None)
