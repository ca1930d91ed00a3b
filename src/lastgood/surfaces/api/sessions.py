"""Handlers for sessions: create, list, read, fork, reset, export, import and delete."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from lastgood.core.disconnect import RequestOrigin, on_disconnect
from lastgood.core.session_rules import NO_RULES
from lastgood.errors import (
    AgentInvalid,
    Forbidden,
    InvalidRequest,
    LastgoodError,
    SessionNotFound,
    TurnFailed,
)
from lastgood.flows.agent_directory import AgentDirectory
from lastgood.flows.session_export import SessionImport, as_evidence, document_pieces
from lastgood.flows.session_reader import MOST_IN_PAGE
from lastgood.flows.sessions import Sessions
from lastgood.flows.submission import Submission
from lastgood.flows.submit import Submitter
from lastgood.model.attempts import Ask
from lastgood.model.ids import AttemptId, SessionId, TurnId
from lastgood.model.messages import Message, Role
from lastgood.model.sessions import Session, SessionStatus, Turn, TurnKind
from lastgood.model.tokens import Scope
from lastgood.surfaces.api.resources import ATTEMPT, SESSION, STEP, TURN, USAGE, message_json
from lastgood.surfaces.api.schemas import (
    ApiMessage,
    AppendBody,
    CreateBody,
    ForkBody,
    IdsBody,
    SummaryBody,
    TokensBody,
)
from lastgood.surfaces.api.session_documents import batch_pieces, session_pieces, turn_pieces
from lastgood.surfaces.api.turn_requests import TurnRequests
from lastgood.surfaces.http.asgi import Request, Response, json_reply
from lastgood.surfaces.http.body_parser import flag, parse, parse_paced, whole_number
from lastgood.surfaces.http.json_stream import json_document
from lastgood.surfaces.http.resource import timestamp
from lastgood.surfaces.http.session_gate import SessionGate
from lastgood.surfaces.http.turn_headers import (
    etag,
    expected_head,
    fingerprint,
    key_of,
    session_of,
    user_of,
)

_STATUSES = tuple(SessionStatus)


class SessionHandlers:
    """`folders`: --working-dir-root is set, so sessions of any token may set `working_dir` below it."""

    def __init__(
        self,
        sessions: Sessions,
        submitter: Submitter,
        importing: SessionImport,
        agents: AgentDirectory,
        asking: TurnRequests,
        gate: SessionGate,
        *,
        folders: bool,
    ) -> None:
        self._folders = folders
        self._gate = gate
        self._sessions = sessions
        self._submitter = submitter
        self._agents = agents
        self._asking = asking
        self._importing = importing

    # -- making and finding --------------------------------------------------------------

    async def create(self, request: Request) -> Response:
        body = parse(CreateBody, await request.json() if await request.body() else {})
        agent = self._agents.default_key() if body.agent is None else self._agents.canonical_key(body.agent)
        if body.agent is not None:
            await self._check_agent(agent)
        runtime = await self._runtime_for(request, agent, body)
        session = await self._sessions.create(
            request.caller.tenant,
            agent,
            title=" ".join((body.title or "").split()),
            model=body.asked_model,
            working_dir=body.working_dir,
            rules=body.permissions.wanted() if body.permissions else NO_RULES,
            safety=body.asked_safety(self._sessions.ceiling),
            setter=request.caller.setter,
            metadata=body.metadata,
            runtime=runtime,
            pinned=body.runtime is not None,
        )
        return json_reply(SESSION.json(session))

    async def _runtime_for(self, request: Request, agent: str, body: CreateBody) -> str | None:
        """Returns the runtime whose worker checks the working directory. None: it is on this server, or there
        is none."""
        if body.working_dir is None and body.runtime is None:
            return None
        caller = request.caller
        runtime = await self._submitter.tasks.runtime_for(caller.tenant, caller.user, agent, body.runtime)
        if runtime is None and not self._folders and not caller.may(Scope.ADMIN):
            raise Forbidden(
                "Token may not set `working_dir`; the operator can allow a directory with --working-dir-root"
            )
        return runtime

    async def _check_agent(self, key: str) -> None:
        """AgentNotFound if it is not served. Whether it can be loaded is checked by the first turn."""
        with suppress(AgentInvalid, TurnFailed):
            await self._agents.resolve(key)

    async def list(self, request: Request) -> Response:
        query = request.query
        status = query.get("status") or None
        if status is not None and status not in _STATUSES:
            raise InvalidRequest(f"`status` must be one of {', '.join(_STATUSES)}", param="status")
        limit = whole_number(query, "limit", 50, least=1, most=MOST_IN_PAGE)
        cursor = whole_number(query, "cursor", None, most=2**62)
        page = await self._sessions.list(
            request.caller.tenant,
            limit=limit,
            cursor=cursor,
            query=query.get("q", ""),
            agent=query.get("agent") or None,
            status=SessionStatus(status) if status else None,
            may_read=partial(self._gate.may_read, request.caller),
        )
        headers = {} if page.next_cursor is None else {"x-next-cursor": str(page.next_cursor)}
        return json_reply([SESSION.json(session) for session in page.sessions], 200, headers)

    async def read(self, request: Request) -> Response:
        """With its messages, unless `messages=0`."""
        tenant, id = request.caller.tenant, session_of(request)
        if not flag(request.query, "messages", True):
            session = await self._sessions.get(tenant, id)
            return json_reply(SESSION.json(session), 200, etag(session))
        session = await self._sessions.get(tenant, id)
        return await json_document(session_pieces(self._sessions, session), etag(session))

    async def turns(self, request: Request) -> Response:
        after = whole_number(request.query, "cursor", 0, most=2**62)
        limit = whole_number(request.query, "limit", 50, least=1, most=MOST_IN_PAGE)
        session = await self._sessions.get(request.caller.tenant, session_of(request))
        headers = {"x-next-cursor": str(after + limit)} if after + limit < session.turns else {}
        return await json_document(turn_pieces(self._sessions, session, after, limit), headers)

    async def turn(self, request: Request) -> Response:
        session = await self._sessions.get(request.caller.tenant, session_of(request))
        return json_reply(TURN.json(await self._sessions.turn_of(session, TurnId(request.path["turn"]))))

    async def prompt(self, request: Request) -> Response:
        turn, prompt = await self._sessions.prompt(
            request.caller.tenant, session_of(request), TurnId(request.path["turn"])
        )
        return json_reply(
            {
                "turn": turn.id,
                "agent_digest": turn.agent_digest,
                "model": turn.model,
                "left_out": prompt.left_out,
                "messages": [message_json(message) for message in prompt.messages],
            }
        )

    async def attempts(self, request: Request) -> Response:
        after = whole_number(request.query, "cursor", 0, most=2**62)
        limit = whole_number(request.query, "limit", 50, least=1, most=MOST_IN_PAGE)
        found = await self._sessions.attempts(
            request.caller.tenant, session_of(request), after=after, limit=limit + 1
        )
        page = found[:limit]
        headers = {"x-next-cursor": str(page[-1].fence)} if len(found) > limit else {}
        return json_reply([ATTEMPT.json(attempt) for attempt in page], 200, headers)

    async def attempt(self, request: Request) -> Response:
        tried = await self._sessions.attempt(
            request.caller.tenant, session_of(request), AttemptId(request.path["attempt"])
        )
        steps = [STEP.json(step) for step in tried.steps]
        return json_reply(ATTEMPT.json(tried.attempt) | {"usage": USAGE.json(tried.usage), "steps": steps})

    # -- turns without a model -----------------------------------------------------------

    async def reset(self, request: Request) -> Response:
        await self._without_model(request, None, (), TurnKind.RESET)
        session = await self._sessions.get(request.caller.tenant, session_of(request))
        return json_reply(SESSION.json(session), 200, etag(session))

    async def append(self, request: Request) -> Response:
        plain = await request.json()
        given = (await parse_paced(AppendBody, ApiMessage, plain)).given()
        turn = await self._without_model(request, plain, given, TurnKind.APPEND)
        return json_reply(TURN.json(turn) | {"status": "added"}, 201)

    async def summarize(self, request: Request) -> Response:
        """Later prompts start with the summary, then the kept messages. Nothing is deleted."""
        plain = await request.json()
        body = parse(SummaryBody, plain)
        if not body.summary.strip():
            raise InvalidRequest("`summary` must not be blank", param="summary")
        tenant, id = request.caller.tenant, session_of(request)
        whole = await self._sessions.read(tenant, id)
        kept: tuple[Message, ...] = ()
        if body.first_kept_entry is not None:
            kept = _kept(whole.chain.checked(), body.first_kept_entry)
        summary = Message(Role.SYSTEM, f"Summary of the conversation so far: {body.summary}")
        head = whole.session.head.turn if whole.session.head else None
        turn = await self._without_model(request, plain, (summary, *kept), TurnKind.RESET, head)
        return json_reply(TURN.json(turn) | {"status": "added"}, 201)

    async def _without_model(
        self,
        request: Request,
        plain: Any,
        messages: tuple[Message, ...],
        kind: TurnKind,
        head: TurnId | None = None,
    ) -> Turn:
        self._asking.check_open()
        key = key_of(request)
        ask = Ask(
            tenant=request.caller.tenant,
            session=session_of(request),
            messages=messages,
            kind=kind,
            key=key,
            fingerprint=fingerprint(request, plain),
            caller=request.caller.name,
            request_id=request.id,
            user=user_of(request, None),
            expected_head=expected_head(request) or head,
            on_leave=on_disconnect(RequestOrigin.SESSION_API, key),
            owner=request.caller.user,
        )
        outcome = await (await self._submitter.submit(Submission(ask))).outcome()
        if outcome.turn is None:
            raise outcome.error or TurnFailed(f"The turn ended with status {outcome.status.value}")
        return outcome.turn

    # -- forks, documents, the end -------------------------------------------------------

    async def fork(self, request: Request) -> Response:
        body = parse(ForkBody, await request.json() if await request.body() else {})
        if body.turn is not None and body.user_message_index is not None:
            raise InvalidRequest("Send either `turn` or `user_message_index`")
        forked = await self._sessions.fork(
            request.caller.tenant,
            session_of(request),
            TurnId(body.turn) if body.turn else None,
            user_message=body.user_message_index,
            setter=request.caller.setter,
        )
        return json_reply(SESSION.json(forked))

    async def export(self, request: Request) -> Response:
        session = await self._sessions.get(request.caller.tenant, session_of(request))
        return await json_document(document_pieces(self._sessions, session))

    async def take_in(self, request: Request) -> Response:
        self._asking.check_open()
        plain = await request.document()
        if not isinstance(plain, dict):
            raise InvalidRequest("The body must be an exported session")
        session = await self._importing.take(request.caller.tenant, plain, request.caller.setter)
        return json_reply(SESSION.json(session), 201)

    async def recovery(self, request: Request) -> Response:
        """Returns everything stored of a session, damaged turns and failed attempts included."""
        tenant, id = request.caller.tenant, session_of(request)
        whole = await self._sessions.read(tenant, id)
        failed = [found for found in await self._sessions.attempts(tenant, id) if found.error_code]
        return json_reply(as_evidence(whole) | {"errors": [ATTEMPT.json(attempt) for attempt in failed]})

    async def delete(self, request: Request) -> Response:
        await self._sessions.delete(request.caller.tenant, session_of(request))
        return json_reply({"message": "session deleted"})

    async def delete_many(self, request: Request) -> Response:
        body = parse(IdsBody, await request.json())
        failed: list[str] = []
        for id in dict.fromkeys(body.session_ids):
            try:
                if await self._gate.hides(request.caller, SessionId(id)):
                    raise SessionNotFound
                await self._sessions.delete(request.caller.tenant, SessionId(id))
            except LastgoodError:
                failed.append(id)
        deleted = len(set(body.session_ids)) - len(failed)
        result = {"deleted_count": deleted, "failed_count": len(failed), "failed_ids": failed}
        return json_reply(result)

    async def export_many(self, request: Request) -> Response:
        body = parse(IdsBody, await request.json())
        about = {"export_format": "json", "timestamp": timestamp(time.time())}
        ids = dict.fromkeys(body.session_ids)

        async def find(id: str) -> Session | None:
            found = await self._sessions.find(request.caller.tenant, SessionId(id))
            return found if found is not None and await self._gate.may_read(request.caller, found) else None

        return await json_document(batch_pieces(self._sessions, find, ids, about))

    # -- routes of docker-agent's clients ------------------------------------------------

    async def status(self, request: Request) -> Response:
        session = await self._sessions.get(request.caller.tenant, session_of(request))
        body = SESSION.json(session)
        names = ("id", "title", "streaming", "agent", "status", "turns", "input_tokens", "output_tokens")
        return json_reply({name: body[name] for name in names})

    async def count_tokens(self, request: Request) -> Response:
        """Returns the counts of the server; those in the request are validated and ignored."""
        parse(TokensBody, await request.json())
        session = await self._sessions.get(request.caller.tenant, session_of(request))
        names = ("id", "input_tokens", "output_tokens", "cost")
        return json_reply({name: SESSION.json(session)[name] for name in names})

    async def models(self, request: Request) -> Response:
        """Returns the models of the session's agent, and which one is current."""
        session = await self._sessions.get(request.caller.tenant, session_of(request))
        agent, _ = await self._agents.resolve(session.agent_key)
        current = session.model or agent.model
        models = [
            {
                "name": ref,
                "ref": ref,
                "is_current": ref == current,
                "is_default": ref == agent.model,
                "is_custom": ref not in agent.models and ref != agent.model,
            }
            for ref in dict.fromkeys([agent.model, *agent.models, current])
        ]
        # Empty if the session overrides nothing.
        body = {"agent": agent.name, "current_model_ref": session.model or "", "models": models}
        return json_reply(body)


def _kept(turns: Sequence[Turn], first: int) -> tuple[Message, ...]:
    """Counted as a reader of the session sees them; what a reset has hidden stays hidden."""
    numbered = list(enumerate(message for turn in turns for message in turn.messages))
    if first > len(numbered):
        raise InvalidRequest(f"`first_kept_entry` must be 0 to {len(numbered)}", param="first_kept_entry")
    hidden = 0
    passed = 0
    for turn in turns:
        if turn.kind is TurnKind.RESET:
            hidden = passed
        passed += len(turn.messages)
    return tuple(message for number, message in numbered if number >= max(first, hidden))
