"""What the flows need of stored sessions and their committed turns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Protocol

from lastgood.model.audit import AuditEntry
from lastgood.model.events import Event
from lastgood.model.ids import SessionId, TenantId, TurnId
from lastgood.model.rules import RuleLayer
from lastgood.model.sessions import (
    Branch,
    EncodedTurn,
    LocatedSession,
    NewSession,
    Session,
    SessionPage,
    SessionStatus,
    TitleBy,
    Turn,
)


class SessionStore(Protocol):
    async def create_session(self, new: NewSession) -> Session | None:
        """None: there is a session for this conversation, or with this id, already."""
        ...

    async def find_conversation(self, tenant: TenantId, conversation: str) -> Session | None: ...

    async def locate_conversation(
        self, tenant: TenantId, conversation: str, agent_key: str | None
    ) -> LocatedSession | None:
        """`agent_key`: the agent of the turn; None: the session's own."""
        ...

    async def locate_session(
        self, tenant: TenantId, session: SessionId, agent_key: str | None
    ) -> LocatedSession | None: ...

    async def get_session(self, tenant: TenantId, session: SessionId) -> Session | None: ...

    async def list_sessions(
        self,
        tenant: TenantId,
        *,
        limit: int,
        cursor: int | None = None,
        query: str = "",
        agent: str | None = None,
        status: SessionStatus | None = None,
    ) -> SessionPage:
        """Newest first, metadata only."""
        ...

    async def set_title(
        self, tenant: TenantId, session: SessionId, title: str, by: TitleBy, events: Sequence[Event] = ()
    ) -> bool:
        """Sets only the title. A generated title never replaces one that a person set."""
        ...

    async def set_field(
        self,
        tenant: TenantId,
        session: SessionId,
        field: str,
        value: object,
        audit: AuditEntry | None = None,
    ) -> bool:
        """Writes one field and nothing else: `model` or `agent_key` only while the session is free;
        `starred` or `metadata` at any time."""
        ...

    async def set_rules_if_unchanged(
        self,
        tenant: TenantId,
        session: SessionId,
        expected: tuple[RuleLayer, ...],
        rules: tuple[RuleLayer, ...],
        audit: AuditEntry | None = None,
    ) -> bool:
        """Replaces the rules, at any time. False: they are not as expected, or the session is gone."""
        ...

    async def fork_session(self, source: Session, at: Turn | None, new: NewSession) -> Session | None:
        """A new session whose head is `at`; copies no message. None: the source is gone, or its rules
        have changed since it was read."""
        ...

    async def count_forks(self, tenant: TenantId, session: SessionId) -> int:
        """How many sessions were forked from this one and live."""
        ...

    async def import_session(self, new: NewSession, turns: Sequence[Turn]) -> Session:
        """A session that was made elsewhere, with its whole chain, in one transaction."""
        ...

    async def usage_of_tenant(self, tenant: TenantId) -> Mapping[str, tuple[int, int]]:
        """Sessions and stored bytes, by the token that made the sessions."""
        ...

    async def walk_sessions(self, *, after: int, limit: int) -> tuple[Session, ...]:
        """Of all tenants, oldest first, those numbered above `after`: for upkeep in bounded steps."""
        ...

    async def existing_sessions(self, ids: Collection[SessionId]) -> frozenset[SessionId]:
        """Those of them that exist, of all tenants."""
        ...

    async def delete_session(
        self, tenant: TenantId, session: SessionId, *, unused_since: float | None = None
    ) -> bool:
        """Ends its attempt and erases its branches and every turn that no other session reaches. With
        `unused_since`, only a session that is free, has no unfinished task, is not starred, and was not
        changed since then."""
        ...


class TurnStore(Protocol):
    async def read_turns(self, tenant: TenantId, head: TurnId, *, after_seq: int = 0) -> tuple[Turn, ...]:
        """The chain that ends in `head`, oldest first, without the first `after_seq` turns."""
        ...

    def stream_turns(
        self, tenant: TenantId, head: TurnId, *, after_seq: int = 0
    ) -> AsyncGenerator[EncodedTurn, None]:
        """The same chain in bounded pages, however long it is; the loop runs between them. It ends before
        `head` if turns are missing, or are deleted meanwhile."""
        ...

    async def find_turn(self, tenant: TenantId, turn: TurnId) -> Turn | None: ...

    async def turn_at(self, tenant: TenantId, head: TurnId, seq: int) -> Turn | None:
        """Turn number `seq` of the chain that ends in `head`, without reading the others."""
        ...

    async def list_branches(
        self, tenant: TenantId, session: SessionId, *, after: int = 0, limit: int
    ) -> tuple[Branch, ...]:
        """What edits have replaced in this session, oldest first, those numbered above `after`."""
        ...

    async def count_branches(self, tenant: TenantId, session: SessionId) -> int: ...
