"""Planted defects of approvals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from unittest.mock import patch

from lastgood.core.tool_permissions import Asks
from lastgood.engine import turn_loop
from lastgood.engine.agent_run import Stage
from lastgood.engine.tool_calls import ToolCaller
from lastgood.engine.toolboxes import Toolbox, Toolboxes
from lastgood.engine.tools.tool import ToolFailed
from lastgood.flows import approvals as flow_approvals
from lastgood.flows import attempt_driver
from lastgood.flows.turns import Turns
from lastgood.model.agents import AgentSpec
from lastgood.model.answers import Answer
from lastgood.model.attempts import Hold
from lastgood.model.audit import AuditEntry
from lastgood.model.ids import SessionId
from lastgood.model.messages import ToolCall
from lastgood.store.sqlite.attempts import SqliteAttempts
from tests.faults.defects import defect, statement

#: The simulation asks nobody.
OF_APPROVALS = {
    "an answer is taken for whatever question is pending",
    "a question is answered twice",
    "an approval is recorded outside of its transaction",
    "a denial is recorded outside of its transaction",
    "a denial is not recorded",
    "an approval beats a rule that denies by now",
    "a question has the id of another turn's",
    "an approval counts after its deadline",
    "a session is offered the tools of another one",
    "two calls of one response share an id",
    "an approval counts for other arguments",
    "an approval counts for another definition of the tool",
    "the question of an ended attempt is forgotten",
}


@defect("an answer is taken for whatever question is pending")
def _() -> Iterator[None]:
    real = Turns.answer

    async def answer(self: Turns, *args: Any, place: str | None = None, **more: Any) -> Any:
        return await real(self, *args, **more)

    with patch.object(Turns, "answer", answer):
        yield


@defect("a question is answered twice")
def _() -> Iterator[None]:
    waits = "AND EXISTS (SELECT 1 FROM attempts WHERE attempts.id = :attempt AND deadline >= clock())"
    with statement("hold_again", (" AND fence = :fence AND lease_until IS NULL", ""), (waits, "")):
        yield


@defect("an approval is recorded outside of its transaction")
def _() -> Iterator[None]:
    real = SqliteAttempts.resume_if_waiting

    async def resume(
        self: Any, hold: Hold, holder: str, lease_seconds: float, audit: AuditEntry | None = None
    ) -> Hold | None:
        if audit is not None:
            await self.record(audit)
        return await real(self, hold, holder, lease_seconds)

    with patch.object(SqliteAttempts, "resume_if_waiting", resume):
        yield


@defect("a denial is recorded outside of its transaction")
def _() -> Iterator[None]:
    real = SqliteAttempts.journal_if_held

    async def journal(self: Any, *args: Any, audit: AuditEntry | None = None, **more: Any) -> bool:
        if audit is not None:
            await self.record(audit)
        return await real(self, *args, **more)

    with patch.object(SqliteAttempts, "journal_if_held", journal):
        yield


@defect("a denial is not recorded")
def _() -> Iterator[None]:
    with patch.object(attempt_driver, "_record_of", lambda run, step: None):
        yield


@defect("an approval beats a rule that denies by now")
def _() -> Iterator[None]:
    real = ToolCaller._check

    async def check(self: ToolCaller, *args: Any) -> Asks | None:
        try:
            return await real(self, *args)
        except ToolFailed as denied:
            return Asks(str(denied))

    with patch.object(ToolCaller, "_check", check):
        yield


@defect("a question has the id of another turn's")
def _() -> Iterator[None]:
    with patch.object(flow_approvals, "question_id", lambda attempt, question: str(question["place"])):
        yield


@defect("an approval counts after its deadline")
def _() -> Iterator[None]:
    with statement("hold_again", ("AND deadline >= clock()", "")):
        yield


@defect("a session is offered the tools of another one")
def _() -> Iterator[None]:
    real = Toolboxes.of

    def of(self: Toolboxes, session: SessionId, agent: AgentSpec) -> Toolbox:
        return next(iter(self._kept.values()), None) or real(self, session, agent)

    with patch.object(Toolboxes, "of", of):
        yield


@defect("two calls of one response share an id")
def _() -> Iterator[None]:
    with patch.object(turn_loop, "with_unique_call_ids", lambda message: message):
        yield


@defect("an approval counts for other arguments")
def _() -> Iterator[None]:
    def answer_to(self: Stage, call: ToolCall, answers: Mapping[str, Answer]) -> Answer | None:
        return answers.get(self.place_of(call.id))

    with patch.object(Stage, "answer_to", answer_to):
        yield


@defect("an approval counts for another definition of the tool")
def _() -> Iterator[None]:
    with patch.object(Toolbox, "definition_of", lambda self, agent, tool: ""):
        yield


@defect("the question of an ended attempt is forgotten")
def _() -> Iterator[None]:
    with statement("end_attempt", ("deadline = NULL,", "deadline = NULL, question = NULL,")):
        yield
