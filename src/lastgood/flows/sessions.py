"""What may be done to a session besides talking to it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lastgood.core.intake import check_text, check_title
from lastgood.core.lifecycle import Move
from lastgood.errors import (
    AgentNotFound,
    Conflict,
    InvalidRequest,
    SessionBusy,
    SessionNotFound,
    TurnCancelled,
    TurnFailed,
    TurnNotFound,
)
from lastgood.flows.live import Live
from lastgood.flows.parts import Parts
from lastgood.flows.reading import SessionReader
from lastgood.flows.resolving import resolve
from lastgood.flows.run import Stop
from lastgood.model.agents import AgentSpec
from lastgood.model.ids import SessionId, TenantId, TurnId
from lastgood.model.sessions import NewSession, Session, TitleBy, Turn

MOST_IN_CONVERSATION = 255


class Sessions(SessionReader):
    def __init__(self, parts: Parts, live: Live) -> None:
        super().__init__(parts.store)
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
        if conversation is not None:
            _check_conversation(conversation)
        if working_dir is not None:
            working_dir = self._parts.engine.check_working_dir(working_dir)
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
        session = await self._parts.store.create_session(new)
        if session is None:
            raise Conflict(f"there is a session for the conversation {conversation!r} already")
        return session

    async def of_conversation(self, tenant: TenantId, conversation: str, agent_key: str) -> Session:
        """The session that a client calls by this name. Of two that ask for a new one, one makes it."""
        _check_conversation(conversation)
        found = await self._parts.store.find_conversation(tenant, conversation)
        if found is None:
            with suppress(Conflict):
                return await self.create(tenant, agent_key, conversation=conversation)
            found = await self._parts.store.find_conversation(tenant, conversation)
        if found is None:
            raise Conflict("the conversation was deleted at this moment; send it again")
        return found

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
            self._parts.engine.check_model(model, await self._agent_of(tenant, session))
        await self._set(tenant, session, "model", model)

    async def _agent_of(self, tenant: TenantId, session: SessionId) -> AgentSpec | None:
        """Its file may name models of its own; without it, a full reference is understood all the same."""
        try:
            agent, _ = await resolve(self._parts.agents, (await self.get(tenant, session)).agent_key)
        except (AgentNotFound, TurnFailed):
            return None
        return agent

    async def rebind(self, tenant: TenantId, session: SessionId, agent_key: str) -> None:
        """Moves a session to another agent, because a person said so."""
        check_text(agent_key, "the agent")
        await self._set(tenant, session, "agent_key", agent_key)

    async def _set(self, tenant: TenantId, session: SessionId, field: str, value: object) -> None:
        if not await self._parts.store.set_field(tenant, session, field, value):
            await self.get(tenant, session)
            raise SessionBusy()

    async def fork(
        self,
        tenant: TenantId,
        session: SessionId,
        turn: TurnId | None = None,
        *,
        before: TurnId | None = None,
    ) -> Session:
        """A new session that goes on from `turn`, or from what was there `before` one. Copies no message.

        Without either, from the head.
        """
        source = await self.get(tenant, session)
        wanted = before or turn
        at = await self._turn_of(source, wanted) if source.head else None
        if at is None and wanted is not None:
            raise TurnNotFound()
        if at is not None and before is not None:
            at = await self._parts.store.find_turn(tenant, at.parent) if at.parent else None
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
        await self._parts.engine.forget(session)


def _check_conversation(name: str) -> None:
    check_text(name, "the conversation's name")
    # Also because an index of PostgreSQL takes no more than some 2,700 bytes.
    if not 1 <= len(name) <= MOST_IN_CONVERSATION:
        raise InvalidRequest(
            f"the conversation's name must have between 1 and {MOST_IN_CONVERSATION} characters"
        )
