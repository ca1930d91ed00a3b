"""Questions of running tasks to a person: asked by a worker, answered by a user of its runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lastgood.core.history import valid_text
from lastgood.core.runtime_permissions import denied_since, runtime_rules
from lastgood.core.transcript import cut
from lastgood.errors import LastgoodError, NothingPending
from lastgood.flows.agent_resolution import resolve
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.work.report_content import ClaimRef, bounded, stale
from lastgood.flows.work.reports import Reports
from lastgood.flows.work.visibility import WorkAccess
from lastgood.flows.work.work_limits import WorkLimits
from lastgood.model.agents import Effect, Safety
from lastgood.model.answers import AnswerAction
from lastgood.model.audit import AuditEntry, AuditKind
from lastgood.model.events import AttemptWaits, Event
from lastgood.model.ids import SessionId, TaskId, TenantId
from lastgood.model.rules import LOCAL
from lastgood.model.tasks import Question, QuestionStatus

_NO_ANSWER = "nobody answered in time"


@dataclass(frozen=True, slots=True)
class AskedCall:
    """The tool call of a question, as far as its worker says. `renamed`: our names of its arguments."""

    tool: str
    input: Any
    name: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    effect: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.tool, self.name) if self.name else (self.tool,)

    @property
    def known_effect(self) -> Effect:
        try:
            return Effect(self.effect)
        except ValueError:
            return Effect.UNKNOWN

    @property
    def arguments(self) -> dict[str, Any]:
        given = self.input if isinstance(self.input, dict) else {"input": self.input}
        return {**given, **{our: given[their] for their, our in self.renamed.items() if their in given}}


class Questions:
    def __init__(
        self, deps: Dependencies, access: WorkAccess, reports: Reports, limits: WorkLimits, safety: Safety
    ) -> None:
        """`safety`: the server's own mode."""
        self._deps = deps
        self._safety = safety
        self._store = deps.store
        self._access = access
        self._reports = reports
        self._limits = limits

    async def ask(
        self,
        key: ClaimRef,
        id: str,
        body: dict[str, Any],
        deadline_seconds: float | None,
        call: AskedCall | None = None,
    ) -> Question:
        """The same id and call again return the question as it stands. Rules that were narrowed since the
        claim answer it: nobody needs to deny what is denied already. IdempotencyMismatch: the id was used
        for another call."""
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
        if call is not None and asked.status is QuestionStatus.PENDING:
            asked = await self._denied_since(asked, state.task.agent_key, call) or asked
        self._deps.signals.notify(hold.session)
        return asked

    async def _denied_since(self, asked: Question, agent_key: str, call: AskedCall) -> Question | None:
        session = await self._store.get_session(asked.tenant, asked.session)
        if session is None:
            return None
        try:
            agent, _ = await resolve(self._deps.agents, agent_key)
        except LastgoodError:
            return None  # a person decides
        mode, rules = runtime_rules(agent, self._safety, session.rules)
        reason = denied_since(mode, rules, call.names, call.known_effect, call.arguments)
        if reason is None:
            return None
        answer = {"allowed": False, "reason": f"Denied: {reason}."}
        about = decision_on(asked, AnswerAction.REJECT, str(answer["reason"]))
        audit = AuditEntry(asked.tenant, AuditKind.APPROVAL, "", "", asked.session, about, self._deps.node)
        return await self._store.answer_question(asked.tenant, asked.task, asked.id, answer, "", audit)

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
        machine: str = LOCAL.machine,
        rule: str | None = None,
    ) -> Question:
        """`rule`: what is allowed from now on, too. NothingPending: it was answered, has expired, or its run
        is over."""
        found = await self._access.task(tenant, task, user)
        asked = await self._store.get_question(tenant, task, question)
        answer = {"allowed": allowed, "reason": cut(valid_text(reason), self._limits.error_characters)}
        answered = None
        if asked is not None:
            decision = AnswerAction.APPROVE if allowed else AnswerAction.REJECT
            about = decision_on(asked, decision, str(answer["reason"]), rule)
            audit = AuditEntry(tenant, AuditKind.APPROVAL, token, user, found.session, about, machine)
            answered = await self._store.answer_question(tenant, task, question, answer, user, audit)
        if answered is None:
            raise NothingPending("This question is not pending; read the task to see its state")
        self._deps.signals.notify(found.session)
        return answered

    async def pending(self, tenant: TenantId, session: SessionId, user: str) -> tuple[Question, ...]:
        await self._access.session(tenant, session, user)
        return await self._store.list_questions(tenant, session)


def decision_on(question: Question, decision: str, said: str = "", rule: str | None = None) -> dict[str, Any]:
    """As the audit record has it."""
    where = {"task": question.task, "attempt": question.attempt}
    return {**question.body, **where, "decision": decision, "said": said, "rule": rule}


def answer_json(question: Question) -> dict[str, Any]:
    """As a worker gets it: an expired question is denied with the reason."""
    shown: dict[str, Any] = {"id": question.id, "status": question.status.value}
    if question.status is QuestionStatus.ANSWERED:
        shown["answer"] = question.answer
    elif question.status is not QuestionStatus.PENDING:
        shown["answer"] = {"allowed": False, "reason": _NO_ANSWER}
    return shown
