"""Handlers that set one field of a session: title, model, permissions, agent and the like."""

from __future__ import annotations

from lastgood.core.session_rules import NO_RULES, modes_of
from lastgood.flows.agent_directory import AgentDirectory
from lastgood.flows.sessions import Sessions
from lastgood.model.agents import Safety
from lastgood.surfaces.api.resources import SESSION
from lastgood.surfaces.api.schemas import (
    MetadataBody,
    ModelBody,
    PermissionsBody,
    RebindBody,
    SafetyBody,
    StarredBody,
    TitleBody,
    safety_of,
)
from lastgood.surfaces.http.asgi import Request, Response, json_reply
from lastgood.surfaces.http.body_parser import parse
from lastgood.surfaces.http.turn_headers import etag, session_of


class FieldHandlers:
    def __init__(self, sessions: Sessions, agents: AgentDirectory) -> None:
        self._sessions = sessions
        self._agents = agents

    async def set_title(self, request: Request) -> Response:
        body = parse(TitleBody, await request.json())
        await self._sessions.rename(request.caller.tenant, session_of(request), body.title)
        return await self._as_it_is(request)

    async def set_starred(self, request: Request) -> Response:
        body = parse(StarredBody, await request.json())
        await self._sessions.star(request.caller.tenant, session_of(request), body.starred)
        return await self._as_it_is(request)

    async def set_metadata(self, request: Request) -> Response:
        body = parse(MetadataBody, await request.json())
        await self._sessions.set_metadata(request.caller.tenant, session_of(request), body.metadata)
        return await self._as_it_is(request)

    async def set_model(self, request: Request) -> Response:
        body = parse(ModelBody, await request.json())
        await self._sessions.set_model(request.caller.tenant, session_of(request), body.model)
        return await self._as_it_is(request)

    async def set_permissions(self, request: Request) -> Response:
        body = parse(PermissionsBody, await request.json())
        wanted = body.permissions.wanted() if body.permissions else NO_RULES
        await self._sessions.set_permissions(
            request.caller.tenant, session_of(request), wanted, request.caller.setter
        )
        return await self._as_it_is(request)

    async def set_safety(self, request: Request) -> Response:
        body = parse(SafetyBody, await request.json())
        await self._set_safety(request, safety_of(body.safety_policy))
        return await self._as_it_is(request)

    async def toggle_tools(self, request: Request) -> Response:
        """docker-agent's switch between the autonomous mode and the default mode of the server."""
        session = await self._sessions.get(request.caller.tenant, session_of(request))
        is_on = modes_of(session.rules) == (Safety.AUTONOMOUS,)
        await self._set_safety(request, None if is_on else Safety.AUTONOMOUS)
        return await self._as_it_is(request)

    async def _set_safety(self, request: Request, mode: Safety | None) -> None:
        caller = request.caller
        await self._sessions.set_safety(caller.tenant, session_of(request), mode, caller.setter)

    async def rebind(self, request: Request) -> Response:
        body = parse(RebindBody, await request.json())
        key = self._agents.canonical_key(body.agent)
        await self._sessions.get(request.caller.tenant, session_of(request))
        await self._agents.resolve(key)
        await self._sessions.rebind(request.caller.tenant, session_of(request), key, request.caller.setter)
        return await self._as_it_is(request)

    async def _as_it_is(self, request: Request) -> Response:
        session = await self._sessions.get(request.caller.tenant, session_of(request))
        return json_reply(SESSION.json(session), 200, etag(session))
