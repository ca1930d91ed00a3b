"""What may be done to a session besides talking to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lastgood.core.commit import broken_link
from lastgood.core.intake import check_text, check_title
from lastgood.core.lifecycle import Move
from lastgood.errors import InvalidRequest, SessionBusy, SessionNotFound, TurnCancelled, TurnNotFound
from lastgood.flows.live import Live
from lastgood.flows.parts import Parts
from lastgood.flows.run import Stop
from lastgood.model.attempts import Attempt
from lastgood.model.ids import SessionId, TenantId, TurnId
from lastgood.model.sessions import NewSession, Session, SessionPage, TitleBy, Turn

MOST_IN_PAGE = 200


@dataclass(frozen=True, slots=True)
class Whole:
    """A session with its committed turns."""

    session: Session
    turns: tuple[Turn, ...]


class Sessions:
    def __init__(self, parts: Parts, live: Live) -> None:
        self._parts = parts
        self._live = live

    async def create(
        self,
        tenant: TenantId,
        agent_key: str,
        *,
        title: str = "",
        model: str | None = None,
        working_dir: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        conversation: str | None = None,
    ) -> Session:
        for what, text in (("agent", agent_key), ("model", model), ("working directory", working_dir)):
            check_text(text or "", f"the {what}")
        new = NewSession(
            id=self._parts.ids.session(),
            tenant=tenant,
            agent_key=agent_key,
            title=check_title(title) if title else "",
            title_by=TitleBy.PERSON if title else TitleBy.NOBODY,
            model=model,
            working_dir=working_dir,
            metadata=dict(metadata or {}),
            conversation=conversation,
        )
        return await self._parts.store.create_session(new)

    async def get(self, tenant: TenantId, session: SessionId) -> Session:
        found = await self._parts.store.get_session(tenant, session)
        if found is None:
            raise SessionNotFound()
        return found

    async def list(
        self, tenant: TenantId, *, limit: int = 50, cursor: int | None = None, query: str = ""
    ) -> SessionPage:
        if not 1 <= limit <= MOST_IN_PAGE:
            raise InvalidRequest(f"limit is {limit}; it must be between 1 and {MOST_IN_PAGE}")
        check_text(query, "the query")
        return await self._parts.store.list_sessions(tenant, limit=limit, cursor=cursor, query=query)

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
        turns = await self._parts.store.read_turns(tenant, found.head.turn) if found.head else ()
        return Whole(found, turns)

    async def attempts(self, tenant: TenantId, session: SessionId) -> tuple[Attempt, ...]:
        await self.get(tenant, session)
        return await self._parts.store.list_attempts(tenant, session)

    async def rename(self, tenant: TenantId, session: SessionId, title: str) -> None:
        if not await self._parts.store.set_title(tenant, session, check_title(title), TitleBy.PERSON):
            raise SessionNotFound()

    async def star(self, tenant: TenantId, session: SessionId, starred: bool) -> None:
        await self._set(tenant, session, "starred", starred)

    async def set_metadata(self, tenant: TenantId, session: SessionId, metadata: Mapping[str, Any]) -> None:
        await self._set(tenant, session, "metadata", dict(metadata))

    async def set_model(self, tenant: TenantId, session: SessionId, model: str | None) -> None:
        """The override of every later turn; None: the agent's own model."""
        if model is not None:
            check_text(model, "the model")
            self._parts.engine.check_model(model)
        await self._set(tenant, session, "model", model)

    async def rebind(self, tenant: TenantId, session: SessionId, agent_key: str) -> None:
        """Moves a session to another agent, because a person said so."""
        check_text(agent_key, "the agent")
        await self._set(tenant, session, "agent_key", agent_key)

    async def _set(self, tenant: TenantId, session: SessionId, field: str, value: object) -> None:
        if not await self._parts.store.set_field(tenant, session, field, value):
            await self.get(tenant, session)
            raise SessionBusy()

    async def fork(self, tenant: TenantId, session: SessionId, turn: TurnId | None = None) -> Session:
        """A new session that goes on from `turn` (the head, if none is given). Copies no message."""
        source = await self.get(tenant, session)
        at = await self._turn_of(source, turn) if source.head else None
        if at is None and turn is not None:
            raise TurnNotFound()
        new = NewSession(
            id=self._parts.ids.session(),
            tenant=tenant,
            agent_key=source.agent_key,
            title=f"{source.title} (fork)" if source.title else "",
            title_by=source.title_by,
            model=source.model,
            working_dir=source.working_dir,
            metadata=source.metadata,
        )
        forked = await self._parts.store.fork_session(source, at, new)
        if forked is None:
            raise SessionNotFound()
        return forked

    async def _turn_of(self, source: Session, turn: TurnId | None) -> Turn | None:
        """The turn, if it is in this session's chain: its own, or one it inherited."""
        assert source.head is not None
        found = await self._parts.store.find_turn(source.tenant, turn or source.head.turn)
        if found is None or found.seq > source.head.seq:
            return None
        if found.session == source.id or found.id == source.head.turn:
            return found
        # Inherited by a fork: only the turn at that place of the chain is meant.
        after = found.seq - 1
        chain = await self._parts.store.read_turns(source.tenant, source.head.turn, after_seq=after)
        return found if chain and chain[0].id == found.id else None

    async def delete(self, tenant: TenantId, session: SessionId) -> None:
        """Cancels what runs, then erases. Nothing of the session appears again."""
        found = await self.get(tenant, session)
        run = self._live.get(found.attempt) if found.attempt else None
        if run is not None:
            await self._live.stop(run, Stop(Move.CANCEL, TurnCancelled("the session was deleted")))
        if not await self._parts.store.delete_session(tenant, session):
            raise SessionNotFound()
        self._parts.signals.tell(session)

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
