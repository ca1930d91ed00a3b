"""Questions that wait for a person, and the answers: of turns on this server and of tasks on runtimes.

An answer is recorded in the transaction that resumes the turn. "Always" adds a rule to the session after
that: if the process dies in between, approval is requested once more, and nothing runs without it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lastgood.core.approval import ApprovalDecision, Confirmation, decide, shown
from lastgood.errors import LastgoodError, NothingPending, SessionNotFound
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.sessions import RuleChange, Sessions
from lastgood.flows.turn_handle import TurnHandle
from lastgood.flows.turns import Turns
from lastgood.flows.work.questions import Questions
from lastgood.model.answers import AnswerAction, QuestionKind, question_id
from lastgood.model.attempts import Attempt
from lastgood.model.audit import AuditEntry, AuditKind
from lastgood.model.ids import AttemptId, SessionId, TaskId, TenantId, TurnId
from lastgood.model.rules import Setter

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PendingQuestion:
    """`id` names the question in its session, and never another one: another try at the turn, or another
    turn, may come to the same place with other arguments. `task`: it is asked by a run on a runtime."""

    id: str
    attempt: AttemptId
    turn: TurnId | None
    task: TaskId | None
    question: Mapping[str, Any]
    deadline_at: float | None


@dataclass(frozen=True, slots=True)
class Approver:
    """Who answers: the authenticated token and its user."""

    tenant: TenantId
    token: str
    user: str
    setter: Setter


class Approvals:
    def __init__(self, deps: Dependencies, turns: Turns, sessions: Sessions, questions: Questions) -> None:
        self._deps = deps
        self._turns = turns
        self._sessions = sessions
        self._questions = questions

    async def pending(self, tenant: TenantId, session: SessionId, user: str) -> tuple[PendingQuestion, ...]:
        """Oldest first."""
        attempt = await self._waiting(tenant, session)
        if attempt is not None:
            assert attempt.question is not None
            id = question_id(attempt.id, attempt.question)
            return (PendingQuestion(id, attempt.id, attempt.turn, None, attempt.question, attempt.deadline),)
        asked = await self._questions.pending(tenant, session, user)
        return tuple(
            PendingQuestion(
                one.id,
                one.attempt,
                None,
                one.task,
                {"kind": QuestionKind.APPROVAL.value, **one.body},
                one.deadline_at,
            )
            for one in asked
        )

    async def answer(
        self,
        session: SessionId,
        confirmation: Confirmation,
        by: Approver,
        *,
        reason: str = "",
        content: Mapping[str, Any] | None = None,
        question: str | None = None,
        tool: str | None = None,
    ) -> TurnHandle | None:
        """Returns the turn that continues here; None: it continues on its worker.

        `question`: the id of the one that is meant; `tool`: the tool that it must be about. Without them
        there must be just one. NothingPending: it is not pending any more.
        """
        found = [
            one
            for one in await self.pending(by.tenant, session, by.user)
            if question in (None, one.id) and tool in (None, one.question.get("tool"))
        ]
        if not found:
            raise NothingPending(
                "This question is not pending in this session; it may have been answered already"
            )
        if len(found) > 1:
            ids = ", ".join(one.id for one in found)
            raise NothingPending(f"Several questions are pending; name one of them in `question`: {ids}")
        asked, decided = found[0], decide(found[0].question, confirmation, reason, content)
        change = self._sessions.change_by(decided, by.setter)
        if change is not None:
            # Before the answer counts: after an error, callers rely on it that nothing runs.
            await self._sessions.check_change(by.tenant, session, change)
        handle = await self._give(session, asked, decided, by)
        if change is not None:
            await self._change_rules(session, change, by)
        return handle

    async def _change_rules(self, session: SessionId, change: RuleChange, by: Approver) -> None:
        """The answer counts already, so what goes wrong here is no error of it: the next call is asked for
        once more."""
        try:
            await self._sessions.change_rules(by.tenant, session, by.setter, change)
        except LastgoodError as error:
            log.warning("session %s: an answer counts, and its rule was not added: %s", session, error)

    async def _give(
        self, session: SessionId, asked: PendingQuestion, decided: ApprovalDecision, by: Approver
    ) -> TurnHandle | None:
        if asked.task is not None:
            await self._questions.answer(
                by.tenant,
                asked.task,
                asked.id,
                allowed=decided.answer.action is AnswerAction.APPROVE,
                reason=decided.answer.reason,
                user=by.user,
                token=by.token,
                machine=by.setter.machine,
                rule=decided.allows,
            )
            return None
        about = {
            **shown(asked.question),
            "attempt": asked.attempt,
            "decision": decided.answer.action.value,
            "said": decided.answer.reason,
            "rule": decided.allows,
        }
        if decided.answer.content is not None:
            about["content"] = decided.answer.content
        audit = AuditEntry(
            by.tenant, AuditKind.APPROVAL, by.token, by.user, session, about, by.setter.machine
        )
        return await self._turns.answer(
            by.tenant,
            session,
            asked.attempt,
            decided.answer,
            place=str(asked.question["place"]),
            audit=audit,
        )

    async def _waiting(self, tenant: TenantId, session: SessionId) -> Attempt | None:
        found = await self._deps.store.get_session(tenant, session)
        if found is None:
            raise SessionNotFound()
        if found.attempt is None:
            return None
        attempt = await self._deps.store.get_attempt(tenant, found.attempt)
        return attempt if attempt is not None and attempt.question is not None else None
