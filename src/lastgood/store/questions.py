"""Questions of running tasks to people, on either database. Lock order: session, task, question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from lastgood.errors import IdempotencyMismatch
from lastgood.model.audit import AuditEntry
from lastgood.model.events import Event
from lastgood.model.ids import SessionId, TaskId, TenantId
from lastgood.model.tasks import ClaimState, Question
from lastgood.store.announcements import of_question
from lastgood.store.audit import add_audit
from lastgood.store.rows import writable
from lastgood.store.task_rows import as_text, to_question
from lastgood.store.work_access import ClaimLost, Statements, WorkTransactions, append_if_held, first


class SqlQuestions(WorkTransactions):
    async def ask_question(
        self, state: ClaimState, token: bytes, question: Question, events: Sequence[Event]
    ) -> Question | None:
        hold = state.hold
        if hold is None:
            return None
        parameters: dict[str, Any] = {
            "tenant": hold.tenant,
            "session": hold.session,
            "attempt": hold.attempt,
            "task": state.task.id,
            "token": token,
            "question": question.id,
            "body": as_text(question.body),
            "seconds": max(0.0, question.deadline_at - question.created_at),
        }

        async def work(statements: Statements) -> Question | None:
            await statements.rows("lock_session", parameters)
            if not await statements.rows("is_current", parameters):
                return None
            known = await first(statements, "question_of_attempt", parameters)
            if known is not None:
                return _same(to_question(known), parameters["body"])
            if not await append_if_held(statements, hold, events):
                return None
            if not await statements.rows("task_waits", parameters):
                raise ClaimLost
            stored = to_question((await statements.rows("insert_question", parameters))[0])
            await statements.rows("announce_attempt", parameters | of_question(question.body))
            return stored

        return await self._unless_lost(work, None)

    async def answer_question(
        self,
        tenant: TenantId,
        task: TaskId,
        question: str,
        answer: dict[str, Any],
        by: str,
        audit: AuditEntry | None = None,
    ) -> Question | None:
        parameters = {
            "tenant": tenant,
            "task": task,
            "question": question,
            "answer": as_text(answer),
            "by": writable(by),
        }

        async def work(statements: Statements) -> Question | None:
            answered = await _settle(statements, "answer_question", parameters)
            await add_audit(statements, audit if answered else None)
            return answered

        return await self._transact(work)

    async def list_questions(self, tenant: TenantId, session: SessionId) -> tuple[Question, ...]:
        rows = await self._rows("list_questions", {"tenant": tenant, "session": session})
        return tuple(map(to_question, rows))

    async def get_question(self, tenant: TenantId, task: TaskId, question: str) -> Question | None:
        row = await self._row("get_question", {"tenant": tenant, "task": task, "question": question})
        return to_question(row) if row else None

    async def expire_questions(
        self, limit: int, audit: Callable[[Question], AuditEntry] | None = None
    ) -> tuple[Question, ...]:
        found = []
        for tenant, task, question in await self._rows("questions_past_deadline", {"limit": limit}):
            which = {"tenant": tenant, "task": task, "question": question}
            # Looked at again under the task's lock: it may have been answered meanwhile.
            expired = await self._expire(which, audit)
            if expired is not None:
                found.append(expired)
        return tuple(found)

    async def _expire(
        self, which: dict[str, Any], audit: Callable[[Question], AuditEntry] | None
    ) -> Question | None:
        async def work(statements: Statements) -> Question | None:
            expired = await _settle(statements, "expire_question", which)
            if expired is not None and audit is not None:
                await add_audit(statements, audit(expired))
            return expired

        return await self._transact(work)


def _same(known: Question, body: str) -> Question:
    """IdempotencyMismatch: the id was used for another call. An answer is for the call that was shown."""
    if known.body != orjson.loads(body):
        raise IdempotencyMismatch(
            f"Question id {known.id!r} was used for another tool call; send this one with a new id"
        )
    return known


async def _settle(statements: Statements, name: str, parameters: dict[str, Any]) -> Question | None:
    """None: it is not pending. The last one that is settled lets its task run on."""
    await statements.rows("lock_task", parameters)
    row = await first(statements, name, parameters)
    if row is None:
        return None
    await statements.rows("task_runs_on", parameters)
    return to_question(row)
