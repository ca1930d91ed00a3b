"""Reads sessions from the local database, without a lock, in the models of the client."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime

from lastgood.cli.startup import TENANT
from lastgood.client.models import (
    AttemptInfo,
    BranchInfo,
    RulesInfo,
    SessionInfo,
    SessionList,
    ToolCallInfo,
    TurnInfo,
)
from lastgood.core.history import open_calls
from lastgood.core.input_checks import check_text
from lastgood.core.session_rules import modes_of, permissions_of
from lastgood.core.tool_ledger import ToolEffect
from lastgood.flows.audit import AuditReader
from lastgood.flows.session_export import document_pieces
from lastgood.flows.session_reader import SessionReader
from lastgood.model.attempts import Attempt
from lastgood.model.ids import SessionId
from lastgood.model.rules import RuleLayer
from lastgood.model.sessions import Branch, Session, Turn
from lastgood.settings import Settings
from lastgood.store.database_url import open_store

#: Branches that are read at once.
_PAGE = 100


@asynccontextmanager
async def read_here(settings: Settings) -> AsyncIterator[LocalReader]:
    """Can run beside a server: takes no lock, recovers nothing and starts nothing."""
    store = await open_store(settings.database, read_only=True)
    try:
        yield LocalReader(SessionReader(store), AuditReader(store))
    finally:
        await store.close()


class LocalReader:
    def __init__(self, reader: SessionReader, audit: AuditReader) -> None:
        self._reader, self._audit = reader, audit

    async def find(self, text: str) -> SessionInfo:
        return session_info(await _session_of(self._reader, text))

    async def page(self, *, limit: int, cursor: int | None, query: str) -> SessionList:
        page = await self._reader.list(TENANT, limit=limit, cursor=cursor, query=query)
        return SessionList(tuple(map(session_info, page.sessions)), page.next_cursor)

    async def turns(self, session: str) -> tuple[TurnInfo, ...]:
        whole = await self._reader.read(TENANT, SessionId(session))
        return tuple(map(turn_info, whole.turns))

    async def attempts(self, session: str) -> tuple[AttemptInfo, ...]:
        return tuple(map(attempt_info, await self._reader.attempts(TENANT, SessionId(session))))

    async def tool_calls(self, session: str) -> tuple[ToolCallInfo, ...]:
        found: list[ToolCallInfo] = []
        after: int | None = 0
        while after is not None:
            page, after = await self._audit.effects(TENANT, SessionId(session), after=after, limit=_PAGE)
            found += map(tool_call_info, page)
        return tuple(found)

    async def branches(self, session: str) -> tuple[BranchInfo, ...]:
        found: list[BranchInfo] = []
        page = await self._reader.branches(TENANT, SessionId(session), limit=_PAGE)
        while page:
            found += map(branch_info, page)
            page = await self._reader.branches(TENANT, SessionId(session), after=page[-1].number, limit=_PAGE)
        return tuple(found)

    async def export(self, session: str) -> AsyncGenerator[bytes, None]:
        found = await self._reader.get(TENANT, SessionId(session))
        async with aclosing(document_pieces(self._reader, found)) as pieces:
            async for piece in pieces:
                yield piece


async def _session_of(sessions: SessionReader, text: str) -> Session:
    """Returns the session with this id, or the N-th newest session for -N."""
    if re.fullmatch(r"-[1-9][0-9]{0,8}", text):
        return await sessions.newest(TENANT, int(text[1:]))
    check_text(text, "the session id")
    return await sessions.get(TENANT, SessionId(text))


# -- stored rows as models of the client -----------------------------------------------------------


def session_info(session: Session) -> SessionInfo:
    return SessionInfo(
        id=session.id,
        title=session.title,
        agent_key=session.agent_key,
        model=session.model,
        working_dir=session.working_dir,
        status=session.status.value,
        attempt=session.attempt,
        head=session.head.turn if session.head else None,
        turns=session.turns,
        usage=session.usage,
        last_event_seq=session.last_event_seq,
        starred=session.starred,
        metadata=session.metadata,
        permissions=permissions_of(session.rules),
        safety=next((mode.value for mode in modes_of(session.rules)), None),
        rules=tuple(map(_rules_info, session.rules)),
        forked_from=session.forked_from,
        conversation=session.conversation,
        created_at=_moment(session.created_at),
        updated_at=_moment(session.updated_at),
    )


def _rules_info(layer: RuleLayer) -> RulesInfo:
    safety = layer.safety.value if layer.safety else None
    return RulesInfo(layer.set_by.value, layer.token, layer.permissions, safety)


def turn_info(turn: Turn) -> TurnInfo:
    return TurnInfo(
        id=turn.id,
        seq=turn.seq,
        parent=turn.parent,
        attempt=turn.attempt,
        kind=turn.kind.value,
        messages=turn.messages,
        inputs=turn.inputs,
        agent_key=turn.agent_key,
        agent_digest=turn.agent_digest,
        model=turn.model,
        usage=turn.usage,
        decision=turn.decision,
        user=turn.user,
        open_calls=tuple(call.id for call in open_calls(turn.messages)),
        created_at=_moment(turn.created_at),
    )


def branch_info(branch: Branch) -> BranchInfo:
    return BranchInfo(branch.head, branch.seq, branch.after, branch.replaced_by, _moment(branch.created_at))


def tool_call_info(one: ToolEffect) -> ToolCallInfo:
    return ToolCallInfo(
        one.key,
        one.turn,
        one.attempt,
        one.tool,
        one.arguments_digest,
        one.outcome,
        one.seconds,
        one.adopted,
        one.rewritten,
    )


def attempt_info(attempt: Attempt) -> AttemptInfo:
    return AttemptInfo(
        id=attempt.id,
        session=attempt.session,
        turn=attempt.turn,
        number=attempt.number,
        status=attempt.status.value,
        base=attempt.base,
        replaces=None if attempt.base == attempt.head else attempt.head,
        fence=attempt.fence,
        agent_key=attempt.agent_key,
        agent_digest=attempt.agent_digest,
        model=attempt.model,
        decision=attempt.decision,
        error_code=attempt.error_code,
        error_message=attempt.error_message,
        continues=attempt.continues,
        question=attempt.question,
        started_at=_moment(attempt.started_at),
        ended_at=None if attempt.ended_at is None else _moment(attempt.ended_at),
        task=attempt.task,
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
