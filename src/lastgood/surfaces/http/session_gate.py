"""Access to one session, in front of every route of a session.

A session that ran on a private runtime is only for users who may use that runtime. For others the route is
called with an id that does not exist: so the response is that for an unknown session, byte for byte, whatever
else is wrong with the request.
"""

from __future__ import annotations

from dataclasses import replace

from lastgood.errors import SessionNotFound
from lastgood.flows.work.visibility import WorkAccess
from lastgood.model.ids import SessionId
from lastgood.model.sessions import Session
from lastgood.surfaces.http.app import Route
from lastgood.surfaces.http.asgi import Handler, Request, Response
from lastgood.surfaces.http.principal import Principal
from lastgood.surfaces.http.turn_headers import session_of

#: Ids of sessions start with `ses_`.
NOBODYS = "nobody's"


class SessionGate:
    def __init__(self, access: WorkAccess) -> None:
        self._access = access

    def guard(self, route: Route) -> Route:
        """For routes whose flow does not check the caller."""
        return replace(route, handler=self._guarded(route.handler)) if "{session}" in route.path else route

    def guard_stream(self, route: Route) -> Route:
        """For a route that submits a turn: `submit` checks the reader of the session that it reads anyway."""

        async def handle(request: Request) -> Response:
            self._keep_checking(request)
            return await route.handler(request)

        return replace(route, handler=handle)

    def _guarded(self, handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            await self.conceal(request)
            return await handler(request)

        return handle

    async def conceal(self, request: Request) -> None:
        """Before anything reads the session of the path."""
        hidden = await self.hides(request.caller, session_of(request))
        self._keep_checking(request)
        if hidden:
            request.path = {**request.path, "session": NOBODYS}

    def _keep_checking(self, request: Request) -> None:
        session, check_caller = session_of(request), request.check_caller

        async def check_both() -> None:
            """While a stream is open: sharing may end as tokens do."""
            await check_caller()
            if await self.hides(request.caller, session):
                raise SessionNotFound()

        request.check_caller = check_both

    async def hides(self, caller: Principal, session: SessionId) -> bool:
        return await self._access.hides(caller.tenant, session, caller.user)

    async def may_read(self, caller: Principal, session: Session) -> bool:
        return await self._access.may_read(session, caller.user)
