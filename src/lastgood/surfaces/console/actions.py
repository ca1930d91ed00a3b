"""What people do to a session: send, cancel, retry, fork, reset, star, rename, delete.

Each is a form. A form that is sent twice, by an impatient click or a reload, has the same key and runs once.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from lastgood.core.disconnect import RequestOrigin, on_disconnect
from lastgood.errors import InvalidRequest, LastgoodError, SessionBusy, TurnFailed
from lastgood.flows.submission import Reserve, Submission
from lastgood.model.attempts import Ask
from lastgood.model.ids import AttemptId, SessionId, TurnId
from lastgood.model.messages import Message, user
from lastgood.model.queue import NewQueued, QueueKind
from lastgood.model.sessions import TurnKind
from lastgood.surfaces.console.console_flows import ConsoleFlows
from lastgood.surfaces.console.forms import Done, form_key, text_of
from lastgood.surfaces.http.asgi import Request
from lastgood.surfaces.http.principal import Principal
from lastgood.surfaces.http.turn_headers import fingerprint, queue_entry, session_of


class SessionActions:
    def __init__(self, flows: ConsoleFlows) -> None:
        self._flows = flows

    # -- talking -------------------------------------------------------------------------

    async def chat(self, request: Request, fields: Mapping[str, str]) -> Done:
        """A new session with its first turn. The same form sent again finds the session that it made."""
        messages, caller = (user(text_of(fields, "text")),), request.caller
        self._flows.check_open()
        agents, sessions = self._flows.agents, self._flows.sessions
        agent = agents.canonical_key(text_of(fields, "agent"))
        await agents.resolve(agent)
        id = _session_of_form(caller, form_key(fields))
        if await sessions.find(caller.tenant, id) is not None:
            await self._submit(request, id, messages, fields)
            return _to(id)
        # A form that is refused leaves no session behind: the limit is checked before there is one.
        with self._flows.limiter.take(caller, caller.user) as taken:
            await sessions.create_once(caller.tenant, id, agent, caller.setter)
            try:
                await self._submit(request, id, messages, fields, lambda: taken)
            except LastgoodError:
                with suppress(LastgoodError):
                    await sessions.delete_if_empty(caller.tenant, id)
                raise
        return _to(id)

    async def send(self, request: Request, fields: Mapping[str, str]) -> Done:
        """A turn; in a busy session, what was said is queued and runs next."""
        text, session = text_of(fields, "text"), session_of(request)
        self._flows.check_open()
        if fields.get("next") == "1":
            await self._queue(request, session, text, fields)
            return _to(session)
        try:
            await self._submit(request, session, (user(text),), fields)
        except SessionBusy:
            await self._queue(request, session, text, fields)
        return _to(session)

    async def _submit(
        self,
        request: Request,
        session: SessionId,
        messages: tuple[Message, ...],
        fields: Mapping[str, str],
        reserve: Reserve | None = None,
    ) -> None:
        key = form_key(fields)
        ask = Ask(
            tenant=request.caller.tenant,
            session=session,
            messages=messages,
            agent_key=fields.get("agent") or None,
            key=key,
            fingerprint=fingerprint(request, {"text": fields.get("text", "")}),
            caller=request.caller.name,
            request_id=request.id,
            on_leave=on_disconnect(RequestOrigin.SESSION_API, key),
            durable=True,
            owner=request.caller.user,
            user=request.caller.user,
        )
        take = partial(self._flows.limiter.take, request.caller, ask.user)
        await self._flows.submitter.submit(Submission(ask), reserve or take)

    async def _queue(
        self, request: Request, session: SessionId, text: str, fields: Mapping[str, str]
    ) -> None:
        new = NewQueued(
            tenant=request.caller.tenant,
            session=session,
            turn=self._flows.queue.new_turn(),
            kind=QueueKind.FOLLOWUP,
            messages=(user(text),),
            key=form_key(fields),
            fingerprint=fingerprint(request, {"text": text}),
            caller=request.caller.name,
            user=request.caller.user,
        )
        with self._flows.limiter.take(request.caller, "", later=True) as taken:
            _, known = await self._flows.queue.put(new, request.caller.user)
            if not known:
                taken.give_back()

    # -- the running or failed turn ------------------------------------------------------

    async def cancel(self, request: Request, fields: Mapping[str, str]) -> Done:
        caller = request.caller
        await self._flows.turns.cancel(caller.tenant, session_of(request), caller.setter)
        return _to(session_of(request))

    async def retry(self, request: Request, fields: Mapping[str, str]) -> Done:
        """Continues after the finished steps of the attempt, so that finished tools do not run again."""
        self._flows.check_open()
        await self._flows.turns.continue_from(
            request.caller.tenant,
            session_of(request),
            AttemptId(request.path["attempt"]),
            owner=request.caller.user,
            reserve=partial(self._flows.limiter.take, request.caller),
        )
        return _to(session_of(request))

    # -- the queue -----------------------------------------------------------------------

    async def drop(self, request: Request, fields: Mapping[str, str]) -> Done:
        await self._flows.queue.drop(request.caller.tenant, session_of(request), queue_entry(request))
        return _to(session_of(request))

    async def requeue(self, request: Request, fields: Mapping[str, str]) -> Done:
        with self._flows.limiter.take(request.caller, "", later=True) as taken:
            await self._flows.queue.retry(request.caller.tenant, session_of(request), queue_entry(request))
            taken.give_back()
        return _to(session_of(request))

    # -- the session ---------------------------------------------------------------------

    async def fork(self, request: Request, fields: Mapping[str, str]) -> Done:
        turn = fields.get("turn")
        forked = await self._flows.sessions.fork(
            request.caller.tenant,
            session_of(request),
            TurnId(turn) if turn else None,
            setter=request.caller.setter,
        )
        return _to(forked.id)

    async def reset(self, request: Request, fields: Mapping[str, str]) -> Done:
        self._flows.check_open()
        ask = Ask(
            tenant=request.caller.tenant,
            session=session_of(request),
            messages=(),
            kind=TurnKind.RESET,
            caller=request.caller.name,
            request_id=request.id,
            on_leave=on_disconnect(RequestOrigin.SESSION_API, None),
            owner=request.caller.user,
        )
        outcome = await (await self._flows.submitter.submit(Submission(ask))).outcome()
        if outcome.turn is None:
            raise outcome.error or TurnFailed(f"The turn ended with status {outcome.status.value}")
        return _to(session_of(request))

    async def star(self, request: Request, fields: Mapping[str, str]) -> Done:
        starred = fields.get("starred") == "1"
        await self._flows.sessions.star(request.caller.tenant, session_of(request), starred)
        return _to(session_of(request))

    async def rename(self, request: Request, fields: Mapping[str, str]) -> Done:
        title = " ".join(text_of(fields, "title").split())
        await self._flows.sessions.rename(request.caller.tenant, session_of(request), title)
        return _to(session_of(request))

    async def delete(self, request: Request, fields: Mapping[str, str]) -> Done:
        if fields.get("sure") != "1":
            raise InvalidRequest("Tick the box to delete the session; it cannot be undone")
        await self._flows.sessions.delete(request.caller.tenant, session_of(request))
        return Done("/sessions")


def _to(session: SessionId) -> Done:
    return Done(f"/sessions/{session}")


def _session_of_form(caller: Principal, key: str | None) -> SessionId:
    """The id of the session that a form with this key makes: two requests with one key agree on it, on any
    node. Without a key, each form makes its own."""
    whose = (caller.tenant, caller.name, caller.user, key or secrets.token_hex(16))
    return SessionId("ses_" + hashlib.sha256("\n".join(whose).encode()).hexdigest()[:32])
