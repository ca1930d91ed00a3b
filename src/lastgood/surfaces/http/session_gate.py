"""The one check of whose a session is, in front of every route of one session.

A session that a private runtime has run is for whoever may use that runtime. For everybody else the route is
called with an id that nobody has: so its answer is that of an unknown session, byte for byte, whatever else
is wrong with the request.
"""

from __future__ import annotations

from dataclasses import replace

from lastgood.errors import SessionNotFound
from lastgood.flows.work.access import WorkAccess
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
        return replace(route, handler=self._guarded(route.handler)) if "{session}" in route.path else route

    def _guarded(self, handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            await self.conceal(request)
            return await handler(request)

        return handle

    async def conceal(self, request: Request) -> None:
        """Before anything reads the session of the path."""
        session, check_caller = session_of(request), request.check_caller
        if await self.hides(request.caller, session):
            request.path = {**request.path, "session": NOBODYS}

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
