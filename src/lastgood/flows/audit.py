"""Reads what was done: tool calls from the journals of a session, and the audit record of a tenant."""

from __future__ import annotations

from lastgood.core.approval import shown
from lastgood.core.tool_ledger import ToolEffect, adopted_steps, ledger
from lastgood.errors import InvalidRequest, SessionNotFound
from lastgood.model.attempts import Attempt, CallRuling, Hold
from lastgood.model.audit import AuditEntry, AuditFilter, AuditKind, AuditRecord
from lastgood.model.ids import SessionId, TenantId, TurnId
from lastgood.model.rules import Setter
from lastgood.model.tokens import Scope
from lastgood.ports import Store

#: Of a denied call's arguments, where no person was asked. A model makes such calls as fast as it can, and
#: the record is kept for good. The journal of the attempt has all of them.
ARGUMENT_CHARACTERS = 10_000


def ruling_entry(ruling: CallRuling, hold: Hold, turn: TurnId, caller: str, node: str) -> AuditEntry:
    """`caller`: the token that wanted the turn."""
    about = {
        "attempt": hold.attempt,
        "key": f"{turn}:{ruling.place}",
        "call": ruling.call.id,
        "tool": ruling.call.name,
        "arguments": _cut(ruling.call.arguments),
        "agent": ruling.agent,
        "decision": "approve" if ruling.is_allowed else "deny",
        "said": ruling.reason,
        "requested_by": caller,
    }
    kind = AuditKind.APPROVAL if ruling.is_allowed else AuditKind.CALL_DENIED
    return AuditEntry(hold.tenant, kind, "", "", hold.session, about, node)


def _cut(arguments: str) -> str:
    more = len(arguments) - ARGUMENT_CHARACTERS
    return arguments if more <= 0 else f"{arguments[:ARGUMENT_CHARACTERS]} [… {more:,} characters omitted …]"


def nobody(node: str) -> Setter:
    """The node that decided by itself."""
    return Setter(Scope.ADMIN, "", machine=node)


def unanswered_entry(attempt: Attempt, decision: str, by: Setter) -> AuditEntry:
    """The question that the attempt waits with has expired, or was withdrawn by a cancel: the call does not
    run."""
    asked = shown(attempt.question or {})
    about = {**asked, "attempt": attempt.id, "decision": decision, "said": "", "rule": None}
    return AuditEntry(
        attempt.tenant, AuditKind.APPROVAL, by.token, by.user, attempt.session, about, by.machine
    )


class AuditReader:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def effects(
        self, tenant: TenantId, session: SessionId, *, after: int, limit: int
    ) -> tuple[tuple[ToolEffect, ...], int | None]:
        """Of `limit` attempts with a fence above `after`, and the fence of the last one if there are more."""
        if await self._store.get_session(tenant, session) is None:
            raise SessionNotFound()
        attempts = await self._store.list_attempts(tenant, session, after=after, limit=limit + 1)
        page = attempts[:limit]
        found = [effect for attempt in page for effect in await self._of_attempt(attempt)]
        return tuple(found), page[-1].fence if len(attempts) > limit else None

    async def _of_attempt(self, attempt: Attempt) -> tuple[ToolEffect, ...]:
        steps = await self._store.read_steps(attempt.tenant, attempt.id)
        if attempt.continues is None:
            return ledger(attempt, steps)
        continued = await self._store.read_steps(attempt.tenant, attempt.continues)
        return ledger(attempt, steps, adopted_steps(steps, continued))

    async def audit(
        self, tenant: TenantId, wanted: AuditFilter, *, after: int, limit: int
    ) -> tuple[AuditRecord, ...]:
        return await self._store.list_audit(tenant, wanted, limit=limit, after=after)

    def kind_of(self, name: str) -> AuditKind:
        try:
            return AuditKind(name)
        except ValueError:
            known = ", ".join(AuditKind)
            raise InvalidRequest(f"Unknown audit kind {name!r}; use one of {known}") from None
