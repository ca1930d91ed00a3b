"""Handlers for branches: turns that edits have replaced."""

from __future__ import annotations

from lastgood.flows.session_reader import MOST_IN_PAGE, SessionReader
from lastgood.surfaces.api.resources import BRANCH
from lastgood.surfaces.http.asgi import Request, Response, json_reply
from lastgood.surfaces.http.body_parser import whole_number
from lastgood.surfaces.http.turn_headers import session_of


class BranchHandlers:
    def __init__(self, sessions: SessionReader) -> None:
        self._sessions = sessions

    async def list(self, request: Request) -> Response:
        """Oldest first, page by page."""
        after = whole_number(request.query, "cursor", 0, most=2**62)
        limit = whole_number(request.query, "limit", 50, least=1, most=MOST_IN_PAGE)
        found = await self._sessions.branches(
            request.caller.tenant, session_of(request), after=after, limit=limit + 1
        )
        page = found[:limit]
        headers = {"x-next-cursor": str(page[-1].number)} if len(found) > limit else {}
        return json_reply([BRANCH.json(branch) for branch in page], 200, headers)
