"""Questions of running tasks to a person: asked by a worker, answered by somebody who may use its runtime."""

from __future__ import annotations

from typing import Any

from lastgood.core.history import mend
from lastgood.core.transcript import cut
from lastgood.errors import NothingPending
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.work.access import WorkAccess
from lastgood.flows.work.limits import WorkLimits
from lastgood.flows.work.report_content import ClaimKey, bounded, stale
from lastgood.flows.work.reports import Reports
from lastgood.model.answers import AnswerAction
from lastgood.model.audit import AuditEntry, AuditKind
from lastgood.model.events import AttemptWaits, Event
from lastgood.model.ids import SessionId, TaskId, TenantId
from lastgood.model.rules import LOCAL
from lastgood.model.tasks import Question, QuestionStatus

_NO_ANSWER = "nobody answered in time"


class Questions:
    def __init__(self, deps: Dependencies, access: WorkAccess, reports: Reports, limits: WorkLimits) -> None:
        self._deps = deps
        self._store = deps.store
        self._access = access
        self._reports = reports
        self._limits = limits

    async def ask(
        self, key: ClaimKey, id: str, body: dict[str, Any], deadline_seconds: float | None
    ) -> Question:
        """The same id again returns the question as it stands."""
        state, hold, attempt = await self._reports.current(key)
        now, most = self._deps.clock.now(), self._limits.question_seconds
        question = Question(
            id=id,
            tenant=key.tenant,
            task=key.task,
            attempt=attempt.id,
            session=hold.session,
            body=bounded(body, self._limits.message_characters),
            status=QuestionStatus.PENDING,
            answer=None,
            answered_by="",
            deadline_at=now + min(deadline_seconds or most, most),
            created_at=now,
        )
        shown = {"task": key.task, "id": id, **question.body}
        event = Event(attempt.id, AttemptWaits(attempt.id, shown))
        asked = await self._store.ask_question(state, key.hash, question, [event])
        if asked is None:
            raise stale(await self._reports.find(key))
        self._deps.signals.tell(hold.session)
        return asked

    async def answer(
        self,
        tenant: TenantId,
        task: TaskId,
        question: str,
        *,
        allowed: bool,
        reason: str,
        user: str,
        token: str = LOCAL.token,
        rule: str | None = None,
    ) -> Question:
        """`rule`: what is allowed from now on, too. NothingPending: it was answered, has expired, or its run
        is over."""
        found = await self._access.task(tenant, task, user)
        asked = await self._store.get_question(tenant, task, question)
        answer = {"allowed": allowed, "reason": cut(mend(reason), self._limits.error_characters)}
        answered = None
        if asked is not None:
            about = {
                **asked.body,
                "task": task,
                "attempt": asked.attempt,
                "decision": AnswerAction.APPROVE if allowed else AnswerAction.REJECT,
                "said": answer["reason"],
                "rule": rule,
            }
            audit = AuditEntry(tenant, AuditKind.APPROVAL, token, user, found.session, about)
            answered = await self._store.answer_question(tenant, task, question, answer, user, audit)
        if answered is None:
            raise NothingPending("This question is not pending; read the task to see its state")
        self._deps.signals.tell(found.session)
        return answered

    async def pending(self, tenant: TenantId, session: SessionId, user: str) -> tuple[Question, ...]:
        await self._access.session(tenant, session, user)
        return await self._store.list_questions(tenant, session)


def answer_json(question: Question) -> dict[str, Any]:
    """As a worker gets it: an expired question is denied with the reason."""
    told: dict[str, Any] = {"id": question.id, "status": question.status.value}
    if question.status is QuestionStatus.ANSWERED:
        told["answer"] = question.answer
    elif question.status is not QuestionStatus.PENDING:
        told["answer"] = {"allowed": False, "reason": _NO_ANSWER}
    return told
