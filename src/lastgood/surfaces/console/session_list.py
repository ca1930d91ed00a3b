"""The list of sessions: searched, filtered, page by page."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from lastgood.errors import InvalidRequest
from lastgood.model.ids import TenantId
from lastgood.model.sessions import Session, SessionStatus
from lastgood.surfaces.console.console_flows import ConsoleFlows
from lastgood.surfaces.console.pages import Page
from lastgood.surfaces.console.views import session_view
from lastgood.surfaces.http.asgi import Request
from lastgood.surfaces.http.body_parser import whole_number
from lastgood.surfaces.http.session_gate import SessionGate

_IN_PAGE = 50


async def listed_views(
    flows: ConsoleFlows, tenant: TenantId, sessions: Collection[Session]
) -> list[dict[str, Any]]:
    """With how the newest attempt ended, if it failed: nothing else shows that a session did not answer."""
    failed = await flows.sessions.failed_last(tenant, sessions)
    views = []
    for one in sessions:
        last = failed.get(one.id)
        ended = {"last_failed": last and last.status.value, "last_failed_turn": last and last.turn}
        views.append(session_view(one) | ended)
    return views


class SessionListPage:
    def __init__(self, flows: ConsoleFlows, gate: SessionGate) -> None:
        self._flows = flows
        self._gate = gate

    async def show(self, request: Request) -> Page:
        query = request.query
        q, status, agent = query.get("q", "").strip(), query.get("status", ""), query.get("agent", "")
        if status and status not in {*SessionStatus}:
            raise InvalidRequest(f"`status` must be one of {', '.join(SessionStatus)}", param="status")
        found = await self._flows.sessions.list(
            request.caller.tenant,
            limit=_IN_PAGE,
            cursor=whole_number(query, "cursor", None, most=2**62),
            query=q,
            agent=agent or None,
            status=SessionStatus(status) if status else None,
            may_read=partial(self._gate.may_read, request.caller),
        )
        exact = [
            one
            for one in await self._named(request, q)
            if (not agent or one.agent_key == agent) and (not status or one.status == status)
        ]
        listed = [*exact, *(one for one in found.sessions if one not in exact)]
        data = {
            "sessions": await listed_views(self._flows, request.caller.tenant, listed),
            "next_cursor": found.next_cursor,
            "q": q,
            "status": status,
            "agent": agent,
            "is_first": "cursor" not in query,
        }
        return Page("sessions.html", "Sessions", data, more={"statuses": [*SessionStatus]})

    async def _named(self, request: Request, q: str) -> list[Session]:
        """A session id, the id of a request or a user finds sessions, whatever their titles are."""
        if not q or "cursor" in request.query:
            return []
        found = await self._flows.sessions.named(request.caller.tenant, q)
        return [one for one in found if await self._gate.may_read(request.caller, one)]
