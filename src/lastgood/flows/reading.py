"""Looking at sessions. It needs a store and nothing else: no agent, no model."""

from __future__ import annotations

from dataclasses import dataclass

from lastgood.core.commit import broken_link
from lastgood.core.intake import check_text
from lastgood.errors import InvalidRequest, SessionNotFound
from lastgood.model.attempts import Attempt
from lastgood.model.ids import SessionId, TenantId
from lastgood.model.sessions import Session, SessionPage, Turn
from lastgood.ports import Store

MOST_IN_PAGE = 200


@dataclass(frozen=True, slots=True)
class Whole:
    """A session with its committed turns."""

    session: Session
    turns: tuple[Turn, ...]


class SessionReader:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, tenant: TenantId, session: SessionId) -> Session:
        found = await self._store.get_session(tenant, session)
        if found is None:
            raise SessionNotFound()
        return found

    async def list(
        self, tenant: TenantId, *, limit: int = 50, cursor: int | None = None, query: str = ""
    ) -> SessionPage:
        if not 1 <= limit <= MOST_IN_PAGE:
            raise InvalidRequest(f"limit is {limit}; it must be between 1 and {MOST_IN_PAGE}")
        check_text(query, "the query")
        return await self._store.list_sessions(tenant, limit=limit, cursor=cursor, query=query)

    async def newest(self, tenant: TenantId, back: int = 1) -> Session:
        """The `back`-th newest session."""
        cursor: int | None = None
        passed = 0
        while True:
            page = await self.list(tenant, limit=min(back - passed, MOST_IN_PAGE), cursor=cursor)
            passed += len(page.sessions)
            if passed == back:
                return page.sessions[-1]
            if page.next_cursor is None:
                raise SessionNotFound(f"there are only {passed} sessions")
            cursor = page.next_cursor

    async def read(self, tenant: TenantId, session: SessionId) -> Whole:
        """Does not depend on the agent being there."""
        found = await self.get(tenant, session)
        turns = await self._store.read_turns(tenant, found.head.turn) if found.head else ()
        return Whole(found, turns)

    async def attempts(self, tenant: TenantId, session: SessionId) -> tuple[Attempt, ...]:
        await self.get(tenant, session)
        return await self._store.list_attempts(tenant, session)

    async def verify(self, tenant: TenantId, session: SessionId) -> str | None:
        """What is not as it was committed; None: everything is."""
        whole = await self.read(tenant, session)
        head = whole.session.head
        broken = broken_link(whole.turns)
        if broken is not None:
            return f"turn {broken.seq} ({broken.id}) is not as it was committed"
        if head is not None and (not whole.turns or whole.turns[-1].head != head):
            return f"its head does not name turn {head.turn} as it was committed"
        return None
