"""The queue of tasks, on either database: enqueue, list, hold and end unclaimed tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lastgood.model.attempts import Ask, TurnRequest
from lastgood.model.events import Event
from lastgood.model.ids import SessionId, TaskId, TenantId, TurnId
from lastgood.model.sessions import NewSession, Session, TaskScope
from lastgood.model.tasks import ENDED_TASKS, NewTask, Task, TaskConflict, TaskEnd, TaskFilter, TaskPage
from lastgood.store.rows import to_attempt, to_request, writable
from lastgood.store.session_rows import NEWEST, of_new_session, to_session
from lastgood.store.task_ends import announce_end, hold_others, of_end
from lastgood.store.task_rows import as_text, of_new_task, of_request, to_task
from lastgood.store.work_access import Statements, WorkTransactions, first


class SqlTasks(WorkTransactions):
    async def session_of_scope(self, new: NewSession) -> Session:
        parameters = of_new_session(new)
        while True:
            rows = await self._write("create_for_scope", parameters)
            row = rows[0] if rows else await self._row("session_of_scope", parameters)
            if row is not None:  # else it was deleted between the two
                return to_session(row)

    async def find_scope(self, tenant: TenantId, scope: TaskScope, agent_key: str) -> Session | None:
        parameters = {"tenant": tenant, "agent_key": agent_key}
        parameters |= {"scope_kind": scope.kind.value, "scope_id": scope.id}
        row = await self._row("session_of_scope", parameters)
        return to_session(row) if row else None

    async def ended_ephemeral(
        self, *, age_seconds: float, limit: int
    ) -> tuple[tuple[TenantId, SessionId], ...]:
        rows = await self._rows("ended_ephemeral", {"age": age_seconds, "limit": limit})
        return tuple((TenantId(tenant), SessionId(session)) for tenant, session in rows)

    async def enqueue_task(
        self, new: NewTask, *, ask: Ask, only_if_idle: bool, most: int
    ) -> Task | TaskConflict:
        again = new.turn if new.again else None

        async def work(statements: Statements) -> Task | TaskConflict:
            # With the session's row locked, none of its tasks is claimed and none is added meanwhile.
            await statements.rows("lock_session", {"tenant": new.tenant, "session": new.session})
            conflict = await _conflict(statements, ask, again)
            if _is_refused(conflict, ask, only_if_idle):
                return conflict
            if await _unfinished(statements, new) >= most:
                return replace(conflict, is_full=True)
            if new.again:
                if not await statements.rows("may_try_again", of_new_task(new)):
                    return conflict
            elif not await statements.rows("insert_task_request", of_request(new.request)):
                # The key was used by another session meanwhile; that one's request can be read by now.
                return await _conflict(statements, ask, again)
            row = (await statements.rows("insert_task", of_new_task(new)))[0]
            stamp = {"tenant": new.tenant, "session": new.session, "runtime": new.runtime}
            await statements.rows("stamp_runtime", stamp)
            return to_task(row)

        return await self._transact(work)

    async def look_up_task(self, ask: Ask) -> TaskConflict:
        return await self._look(lambda statements: _conflict(statements, ask, None))

    async def get_task(self, tenant: TenantId, task: TaskId) -> Task | None:
        row = await self._row("get_task", {"tenant": tenant, "task": task})
        return to_task(row) if row else None

    async def task_of_turn(self, tenant: TenantId, turn: TurnId) -> Task | None:
        row = await self._row("task_of_turn", {"tenant": tenant, "turn": turn})
        return to_task(row) if row else None

    async def list_tasks(
        self, tenant: TenantId, filter: TaskFilter, *, limit: int, cursor: int | None = None
    ) -> TaskPage:
        name = "list_tasks"
        if filter.session is not None:
            name = "list_tasks_of_session"
        elif filter.statuses and ENDED_TASKS.isdisjoint(filter.statuses):
            name = "list_unfinished_tasks"
        parameters = {
            "tenant": tenant,
            "session": filter.session,
            "agent_key": filter.agent_key,
            "runtimes": None if filter.runtimes is None else as_text(filter.runtimes),
            "statuses": as_text(filter.statuses) if filter.statuses else None,
            "before": NEWEST if cursor is None else cursor,
            "limit": limit + 1,  # one more says whether there is a next page
        }
        tasks = tuple(map(to_task, await self._rows(name, parameters)))
        return TaskPage(tasks[:limit], tasks[limit - 1].number if len(tasks) > limit else None)

    async def open_tasks(self, tenant: TenantId, session: SessionId) -> tuple[Task, ...]:
        rows = await self._rows("unfinished_tasks", {"tenant": tenant, "session": session, "limit": NEWEST})
        return tuple(map(to_task, rows))

    async def keep_late_output(self, tenant: TenantId, task: TaskId, token: bytes, output: str) -> bool:
        parameters = {"tenant": tenant, "task": task, "token": token, "output": writable(output)}
        return bool(await self._write("keep_late_output", parameters))

    async def end_queued_task(self, tenant: TenantId, end: TaskEnd, events: Sequence[Event]) -> bool:
        parameters = of_end(end) | {"tenant": tenant}

        async def work(statements: Statements) -> bool:
            row = await first(statements, "session_of_task", parameters)
            if row is None:
                return False
            session = {"tenant": tenant, "session": row[0]}
            await statements.rows("lock_session", session)
            if not await statements.rows("end_queued_task", parameters):
                return False
            await hold_others(statements, end, session)
            await announce_end(statements, end, session)
            last = (await statements.rows("touch_session", session | {"events": len(events)}))[0][0]
            await statements.insert_events(SessionId(row[0]), last, events)
            return True

        return await self._transact(work)

    async def acknowledge_cancel(self, tenant: TenantId, task: TaskId, token: bytes) -> bool:
        parameters = {"tenant": tenant, "task": task, "token": token}
        return bool(await self._write("acknowledge_cancel", parameters))

    async def release_tasks(self, tenant: TenantId, session: SessionId) -> int:
        return len(await self._write("release_tasks", {"tenant": tenant, "session": session}))

    async def release_task(self, tenant: TenantId, task: TaskId) -> bool:
        return bool(await self._write("release_task", {"tenant": tenant, "task": task}))

    async def overdue_tasks(self, limit: int) -> tuple[Task, ...]:
        expired = await self._rows("expired_tasks", {"limit": limit})
        overdue = await self._rows("tasks_past_deadline", {"limit": limit})
        return tuple(map(to_task, [*expired, *overdue][:limit]))


def _is_refused(conflict: TaskConflict, ask: Ask, only_if_idle: bool) -> bool:
    """With the session as it is now; a key that was used before shows when the request is inserted."""
    if conflict.session is None:
        return True
    if not only_if_idle:
        return False
    head = conflict.session.head
    expected = ask.condition
    if expected is not None and expected.head != (head.turn if head else None):
        return True
    return conflict.open_task is not None or conflict.holder is not None


async def _unfinished(statements: Statements, new: NewTask) -> int:
    which = {"tenant": new.tenant, "session": new.session}
    return int((await statements.rows("count_unfinished", which))[0][0])


async def _conflict(statements: Statements, ask: Ask, again: TurnId | None) -> TaskConflict:
    """What is in the session, and the state of the same earlier request."""
    scope: dict[str, Any] = {"tenant": ask.tenant, "session": ask.session}
    row = await first(statements, "get_session", scope)
    if row is None:
        return TaskConflict(None)
    session = to_session(row)
    holder = None
    if session.attempt is not None:
        held = await first(statements, "get_attempt", scope | {"attempt": session.attempt})
        holder = to_attempt(held) if held else None
    unfinished = await first(statements, "unfinished_tasks", scope | {"limit": 1})
    conflict = TaskConflict(session, to_task(unfinished) if unfinished else None, holder)
    prior = await _prior(statements, ask, again)
    if prior is None:
        return conflict
    turn = {"tenant": ask.tenant, "turn": prior.turn}
    task = await first(statements, "task_of_turn", turn)
    tried = await first(statements, "newest_attempt", turn)
    age = await first(statements, "age_of_task", turn) or await first(statements, "age_of_attempt", turn)
    return replace(
        conflict,
        prior=prior,
        prior_task=to_task(task) if task else None,
        prior_attempt=to_attempt(tried) if tried else None,
        prior_age_seconds=age[0] if age else 0.0,
    )


async def _prior(statements: Statements, ask: Ask, again: TurnId | None) -> TurnRequest | None:
    scope: dict[str, Any] = {"tenant": ask.tenant, "session": ask.session}
    if ask.key is not None:
        row = await first(statements, "request_by_key", scope | {"key": ask.key})
        return to_request(row) if row else None
    turn: str | None = again
    if ask.is_retry:
        body = scope | {"fingerprint": ask.fingerprint, "caller": ask.caller}
        found = await first(statements, "newest_task_by_body", body) or await first(
            statements, "newest_by_body", body
        )
        turn = found[0] if found else None
    row = await first(statements, "read_request", scope | {"turn": turn}) if turn else None
    return to_request(row) if row else None
