"""Conversations: sessions that clients of the OpenAI-compatible API name themselves.

A client that only sends what is new appends. One that resends its history is reconciled: if it continues from
an earlier turn, because the user regenerated an answer or edited a message, its turn is an edit. The name
stays with the session, whatever the outcome of the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lastgood.core.conversation import Append, Change, new_input, reconcile
from lastgood.core.history import open_calls
from lastgood.core.input_checks import check_input
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.sessions import Sessions
from lastgood.model.attempts import Edit
from lastgood.model.ids import TenantId
from lastgood.model.messages import Message
from lastgood.model.rules import LOCAL, Setter
from lastgood.model.sessions import Session, TurnKind


@dataclass(frozen=True, slots=True)
class ConversationMatch:
    """Where a request continues, and with which messages. `session` is as it was compared with the
    request."""

    session: Session
    messages: tuple[Message, ...]
    edit: Edit | None = None


class Conversations:
    def __init__(self, deps: Dependencies, sessions: Sessions) -> None:
        self._deps = deps
        self._sessions = sessions

    async def open(
        self,
        tenant: TenantId,
        name: str,
        agent_key: str,
        body: Sequence[Message],
        setter: Setter = LOCAL,
    ) -> Session:
        """Returns the session of a conversation. Creates it if it is new, but not for a request that would be
        rejected."""
        check_input(body, TurnKind.RUN, self._deps.limits.input_bytes)
        return await self._sessions.of_conversation(tenant, name, agent_key, setter)

    async def place(
        self, session: Session, body: Sequence[Message], *, reconciles: bool
    ) -> ConversationMatch:
        """InvalidRequest: there is nothing new in the body."""
        if session.head is None:
            return ConversationMatch(session, new_input(body, is_first=True, open_calls=()))
        if reconciles:
            return await self._reconciled(session, body)
        history = await self._deps.histories.at(session.tenant, session.head)
        return ConversationMatch(
            session, new_input(body, is_first=False, open_calls=open_calls(history.tail))
        )

    async def _reconciled(self, session: Session, body: Sequence[Message]) -> ConversationMatch:
        assert session.head is not None, "there is nothing to compare with in an empty session"
        match reconcile(body, await self._deps.histories.turns(session.tenant, session.head)):
            case Append(messages):
                return ConversationMatch(session, messages)
            case Change(after, messages):
                return ConversationMatch(session, messages, Edit(after, session.head.turn))
