"""Conversations: sessions that a client of the OpenAI dialect calls by a name of its own.

A client that only sends what is new appends. One that resends its history is reconciled:
if it goes on from an earlier turn, because somebody asked for another answer or changed
an earlier message, the turn runs on a fork from there.

The name moves to the fork before the turn begins, so from then on there is one session to
hold, to retry on and to recover, whoever dies. If the turn comes to nothing, the name goes
back. Should even that fail, the client's next request, which brings its history along, is
reconciled with the fork.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from lastgood.core.conversation import Append, ForkAt, new_input, reconcile
from lastgood.core.history import open_calls
from lastgood.core.intake import check_input
from lastgood.errors import LastgoodError, NothingPending, SessionBusy, StaleHead
from lastgood.flows.beginning import Submitted
from lastgood.flows.live import Live
from lastgood.flows.parts import Parts
from lastgood.flows.sessions import Sessions
from lastgood.flows.turns import Turns
from lastgood.model.attempts import Ask, AttemptStatus
from lastgood.model.ids import TenantId, TurnId
from lastgood.model.messages import Message
from lastgood.model.sessions import Session, TurnKind


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request goes on, and with what."""

    name: str
    session: Session
    messages: tuple[Message, ...]
    before: Session | None = None  # the session that had the name; it gets it back if the turn fails


class Conversations:
    def __init__(self, parts: Parts, live: Live, turns: Turns, sessions: Sessions) -> None:
        self._parts = parts
        self._live = live
        self._turns = turns
        self._sessions = sessions

    async def find(self, tenant: TenantId, name: str, agent_key: str, body: Sequence[Message]) -> Session:
        """Made if it is not there; but not for a request that would be refused."""
        found = await self._parts.store.find_conversation(tenant, name)
        if found is None:
            check_input(body, TurnKind.RUN, self._parts.limits.input_bytes)
            found = await self._sessions.of_conversation(tenant, name, agent_key)
        return found

    async def place(self, session: Session, name: str, body: Sequence[Message], *, reconciles: bool) -> Place:
        """InvalidRequest: there is nothing new in the body."""
        if session.head is None:
            return Place(name, session, new_input(body, is_first=True, open_calls=()))
        if reconciles:
            return await self._reconciled(session, name, body)
        history = await self._parts.histories.at(session.tenant, session.head)
        return Place(name, session, new_input(body, is_first=False, open_calls=open_calls(history.tail)))

    async def _reconciled(self, session: Session, name: str, body: Sequence[Message]) -> Place:
        whole = await self._sessions.read(session.tenant, session.id)
        match reconcile(body, whole.chain.checked()):
            case Append(messages):
                return Place(name, session, messages)
            case ForkAt(turn, messages):
                if await self._is_attended(whole.session):
                    raise SessionBusy()
                return Place(name, await self._fork(whole.session, name, turn), messages, whole.session)

    async def _is_attended(self, session: Session) -> bool:
        """A turn runs here and somebody waits for it. One whose requester has gone stands in nobody's way."""
        if session.attempt is None:
            return False
        attempt = await self._parts.store.get_attempt(session.tenant, session.attempt)
        return attempt is not None and not attempt.orphaned

    async def _fork(self, session: Session, name: str, turn: TurnId | None) -> Session:
        """A fork that has the name. StaleHead: somebody was faster; look again."""
        tenant = session.tenant
        if session.attempt is not None:
            with suppress(NothingPending):
                await self._turns.cancel(tenant, session.id)
        fork = await self._sessions.fork(tenant, session.id, turn, at_start=turn is None)
        if not await self._parts.store.move_conversation(tenant, name, session, fork.id):
            await self._sessions.delete(tenant, fork.id)
            raise StaleHead()
        return await self._sessions.get(tenant, fork.id)

    async def submit(self, place: Place, ask: Ask) -> tuple[Submitted, asyncio.Future[None]]:
        """The turn, and what is done once it has ended. That belongs to us: whoever asked may leave."""
        try:
            submitted = await self._turns.submit(ask, place.session)
        except LastgoodError:
            await self._go_back(place)
            raise
        if place.before is None:
            nothing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            nothing.set_result(None)
            return submitted, nothing
        return submitted, self._live.spawn(self._settle(place, submitted))

    async def _settle(self, place: Place, submitted: Submitted) -> None:
        outcome = await self._turns.wait(submitted)
        # What was interrupted may be tried again, here or on another node.
        if outcome.status in (AttemptStatus.FAILED, AttemptStatus.CANCELLED, AttemptStatus.SUPERSEDED):
            await self._go_back(place)

    async def _go_back(self, place: Place) -> None:
        """A fork that nothing was added to was for nothing; unless somebody uses it by now."""
        if place.before is None:
            return
        tenant, fork = place.session.tenant, place.session
        if await self._parts.store.move_conversation(tenant, place.name, fork, place.before.id):
            await self._sessions.delete(tenant, fork.id)
