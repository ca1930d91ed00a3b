"""Handlers for tickets: what a page puts into the address of an event stream instead of a header."""

from __future__ import annotations

from urllib.parse import quote

from lastgood.flows.sessions import Sessions
from lastgood.flows.stream_tickets import StreamTickets
from lastgood.model.tickets import StreamTicket
from lastgood.surfaces.http.asgi import Request, Response, json_reply
from lastgood.surfaces.http.json_schema import TEXT, object_of
from lastgood.surfaces.http.resource import timestamp
from lastgood.surfaces.http.turn_headers import session_of

TICKET = object_of({"ticket": TEXT, "expires_at": TEXT, "url": TEXT})


class TicketHandlers:
    def __init__(self, sessions: Sessions, tickets: StreamTickets) -> None:
        self._sessions = sessions
        self._tickets = tickets

    async def issue(self, request: Request) -> Response:
        caller = request.caller
        session = await self._sessions.get(caller.tenant, session_of(request))
        ticket = StreamTicket(caller.tenant, session.id, caller.name, caller.user)
        plain, expires_at = await self._tickets.issue(ticket)
        url = f"/api/sessions/{quote(session.id, safe='')}/events?ticket={plain}"
        about = {"ticket": plain, "expires_at": timestamp(expires_at), "url": url}
        return json_reply(about, 201, {"cache-control": "no-store"})
