"""Asking for a turn of a conversation: what of a request is new, and whether it was asked before."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from lastgood.core.disconnect import Origin, on_disconnect
from lastgood.errors import InvalidRequest, SessionBusy, StaleHead, StoreError, TooMany
from lastgood.flows.conversations import Conversations
from lastgood.flows.parts import Parts
from lastgood.flows.refused_requests import RefusedRequests
from lastgood.flows.turn_handle import TurnHandle
from lastgood.flows.turns import Turns
from lastgood.model.agents import AgentSpec
from lastgood.model.attempts import Ask, OnLeave
from lastgood.model.messages import Message, Role
from lastgood.model.sessions import Session
from lastgood.surfaces.asking import fingerprint, user_of
from lastgood.surfaces.chat_wire import ChatRequest, options_of
from lastgood.surfaces.http import Request
from lastgood.surfaces.limiting import Limiter

_MOST_TRIES = 3

#: A client that goes and asks anew at once, over another connection, may be read before the end of its
#: first one is. For so long a turn that somebody seems to wait for may turn out to be left.
_UNNOTICED_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was understood."""

    request: Request
    chat: ChatRequest
    plain: Any
    body: tuple[Message, ...]
    agent: AgentSpec
    key: str | None
    reconciles: bool

    @property
    def user(self) -> str:
        return user_of(self.request, self.chat.user)

    @property
    def streams(self) -> bool:
        return bool(self.chat.stream)

    @property
    def with_usage(self) -> bool:
        options = self.chat.stream_options
        return options is not None and bool(options.include_usage)


class ChatAsking:
    def __init__(self, parts: Parts, turns: Turns, conversations: Conversations, limiter: Limiter) -> None:
        self._parts = parts
        self._turns = turns
        self._conversations = conversations
        self._limiter = limiter
        self._refused = RefusedRequests(parts)

    async def submit(self, asked: Asked, conversation: str) -> TurnHandle:
        try:
            submitted = await self._let_in(asked, conversation)
        except (SessionBusy, TooMany):
            await self.remember_refused(asked.request, asked.plain, conversation)
            raise
        except StoreError:
            if _is_first_try(asked.request):
                self._refused.remember_here(**_body(asked.request, asked.plain, conversation))
            raise
        if self._refused:
            self._refused.forget(**_body(asked.request, asked.plain, conversation))
        return submitted

    async def remember_refused(self, request: Request, plain: Any, conversation: str) -> None:
        """Its retry must not be taken for a retry of an older turn that was made by the same body."""
        if _is_first_try(request):
            await self._refused.remember(**_body(request, plain, conversation))

    async def _let_in(self, asked: Asked, conversation: str) -> TurnHandle:
        try:
            taken = self._limiter.take(asked.request.caller, asked.user)
        except TooMany:
            # It may be the very turn that runs: whoever asks for it again begins nothing.
            known = await self._known(asked, conversation)
            if known is None:
                raise
            return known
        with taken:
            try:
                begun = await self._submit(asked, conversation)
            except SessionBusy:
                if not await self._may_be_left(asked, conversation):
                    raise
                await asyncio.sleep(_UNNOTICED_SECONDS)
                begun = await self._submit(asked, conversation)
            taken.until_ended(begun)
            return begun

    async def _may_be_left(self, asked: Asked, conversation: str) -> bool:
        """Whether what stands in the way is a turn that is orphaned when its client goes."""
        store, tenant = self._parts.store, asked.request.caller.tenant
        session = await store.find_conversation(tenant, conversation)
        if session is None or session.attempt is None:
            return False
        attempt = await store.get_attempt(tenant, session.attempt)
        held = None if attempt is None else await store.read_request(tenant, attempt.turn)
        return held is not None and held.on_leave is OnLeave.ORPHAN

    async def _submit(self, asked: Asked, conversation: str) -> TurnHandle:
        for last in range(_MOST_TRIES, 0, -1):
            try:
                return await self._submit_once(asked, conversation)
            except StaleHead:  # a turn was committed at this moment, so other messages are new
                if asked.key is not None and last == 1:
                    raise  # or its first try meant a head that is gone, which no repetition brings back
        raise SessionBusy("other requests for this conversation were faster each time; try again")

    async def _known(self, asked: Asked, conversation: str) -> TurnHandle | None:
        session = await self._parts.store.find_conversation(asked.request.caller.tenant, conversation)
        return None if session is None else await self._turns.known(self._ask(asked, conversation, session))

    async def _submit_once(self, asked: Asked, conversation: str) -> TurnHandle:
        session = await self._conversations.find(
            asked.request.caller.tenant,
            conversation,
            asked.chat.model,
            asked.body,
            asked.request.caller.setter,
        )
        ask = self._ask(asked, conversation, session)
        # What was done already must not look like a wish for another answer.
        if asked.reconciles and (known := await self._turns.known(ask)) is not None:
            return known
        try:
            place = await self._conversations.place(session, asked.body, reconciles=asked.reconciles)
        except InvalidRequest:
            # Nothing new, because it was committed already: then that is the answer.
            known = await self._turns.known(ask)
            if known is None:
                raise
            return known
        head = place.session.head
        ask = replace(
            ask,
            messages=place.messages,
            edit=place.edit,
            is_first=head is None,
            # What is new was found by comparing with this head.
            expected_head=head.turn if head and asked.reconciles else None,
        )
        return await self._turns.submit(ask, place.session)

    def _ask(self, asked: Asked, conversation: str, session: Session) -> Ask:
        """All of it but its messages: what of them is new is found out next."""
        request = asked.request
        body = _body(request, asked.plain, conversation)
        return Ask(
            request.caller.tenant,
            session.id,
            (),
            agent_key=None if asked.chat.model == session.agent_key else asked.chat.model,
            options=options_of(asked.chat),
            key=asked.key,
            fingerprint=body["fingerprint"],
            caller=body["caller"],
            user=asked.user,
            is_retry=asked.key is None and _is_retry(request) and not self._refused.was_refused(**body),
            has_history=any(message.role is Role.ASSISTANT for message in asked.body),
            on_leave=on_disconnect(Origin.OPENAI_API, asked.key, conversation=conversation),
            accepted=asked.key is not None,
        )


def _body(request: Request, plain: Any, conversation: str) -> dict[str, Any]:
    """What a retry without a key is known by."""
    return {
        "tenant": request.caller.tenant,
        "conversation": conversation,
        "fingerprint": fingerprint(request, plain, conversation),
        "caller": request.caller.name,
    }


def _is_first_try(request: Request) -> bool:
    """Of a request without a key: those are known by their body alone."""
    return request.headers.get("idempotency-key") is None and not _is_retry(request)


def _is_retry(request: Request) -> bool:
    count = request.headers.get("x-stainless-retry-count", "0")
    return count.isdecimal() and int(count[:9]) > 0
