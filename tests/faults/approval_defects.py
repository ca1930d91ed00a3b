"""Planted defects of approvals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from lastgood.core.tool_permissions import Asks
from lastgood.engine.tool_calls import ToolCaller
from lastgood.engine.tools.tool import ToolFailed
from lastgood.flows.turns import Turns
from lastgood.model.attempts import Hold
from lastgood.model.audit import AuditEntry
from lastgood.store.sqlite.attempts import SqliteAttempts
from tests.faults.defects import defect, statement

#: The simulation asks nobody.
OF_APPROVALS = {
    "an answer is taken for whatever question is pending",
    "a question is answered twice",
    "an approval is recorded outside of its transaction",
    "an approval beats a rule that denies by now",
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
    with statement("hold_again", (" AND fence = :fence AND lease_until IS NULL", "")):
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
