"""Task tokens: what an agent CLI may read of the server while its claim holds the task.

One task and its session, for reading, and nothing else. Looked up at every request: a token ends with its
claim, not some seconds later.
"""

from __future__ import annotations

from dataclasses import dataclass

from lastgood.flows.work.claim_tokens import is_task_token, stored_form_of_task_token
from lastgood.model.ids import SessionId, TaskId, TenantId
from lastgood.ports import Store


@dataclass(frozen=True, slots=True)
class TaskGrant:
    tenant: TenantId
    task: TaskId
    session: SessionId
    user: str  # the owner of the runtime, on whose machine the CLI runs


class TaskTokens:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def check(self, plain: str) -> TaskGrant | None:
        """None: not a task token, or its claim has ended or was replaced by a newer one."""
        if not is_task_token(plain):
            return None
        task = await self._store.find_held_task(stored_form_of_task_token(plain))
        runtime = None if task is None else await self._store.get_runtime(task.tenant, task.runtime)
        if task is None or runtime is None:
            return None
        return TaskGrant(task.tenant, task.id, task.session, runtime.owner)
