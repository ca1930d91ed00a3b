"""The first page: talk to an agent at once, and what needs attention."""

from __future__ import annotations

from typing import Any

from lastgood.flows.attention import FailingWebhook
from lastgood.model.tokens import Scope
from lastgood.surfaces.console.agents import AgentSummaries
from lastgood.surfaces.console.console_flows import ConsoleFlows
from lastgood.surfaces.console.pages import Page
from lastgood.surfaces.console.session_list import listed_views
from lastgood.surfaces.console.text_format import moment
from lastgood.surfaces.console.views import question_view, queue_view, runtime_view, session_view, task_view
from lastgood.surfaces.http.asgi import Request
from lastgood.surfaces.http.session_gate import SessionGate

_NEWEST = 8


class HomePage:
    def __init__(self, flows: ConsoleFlows, gate: SessionGate) -> None:
        self._flows = flows
        self._gate = gate
        self._summaries = AgentSummaries(flows)

    async def show(self, request: Request) -> Page:
        caller = request.caller

        async def may_read(session: Any) -> bool:
            return await self._gate.may_read(caller, session)

        newest = await self._flows.sessions.list(caller.tenant, limit=_NEWEST, may_read=may_read)
        agents = await self._summaries.views(caller)
        data: dict[str, Any] = {
            "agents": agents,
            "sessions": await listed_views(self._flows, caller.tenant, newest.sessions),
            "attention": await self._attention(request, agents),
        }
        found = data["attention"]
        more = {
            "parked": _grouped(found["parked"], "session", "why"),
            "held": _grouped(found["tasks"], "agent", "status", "why"),
        }
        return Page("home.html", "Home", data, more=more)

    async def _attention(self, request: Request, agents: list[dict[str, Any]]) -> dict[str, Any]:
        attention, caller = self._flows.attention, request.caller
        waiting = await attention.questions(caller.tenant, caller.user)
        failures = await attention.failures(caller.tenant, caller.user)
        return {
            "questions": [
                {
                    "session": session_view(one.session),
                    "questions": [question_view(asked, one.session) for asked in one.questions],
                }
                for one in waiting
            ],
            "failures": [
                {
                    "code": one.code,
                    "count": one.count,
                    "sessions": one.sessions,
                    "message": one.newest.error_message or "",
                    "session": one.newest.session,
                    "turn": one.newest.turn,
                    "at": moment(one.newest.ended_at),
                }
                for one in failures
            ],
            "parked": [*map(queue_view, await attention.parked(caller.tenant, caller.user))],
            "tasks": [*map(task_view, await attention.held(caller.tenant, caller.user))],
            "runtimes": [*map(runtime_view, await attention.offline(caller.tenant, caller.user))],
            "agents": [one for one in agents if one["problem"] or one["warnings"] or one["is_stale"]],
            "webhooks": [*map(_webhook, await self._failing_webhooks(request))],
        }

    async def _failing_webhooks(self, request: Request) -> tuple[FailingWebhook, ...]:
        """Webhooks are for admins."""
        caller = request.caller
        return await self._flows.attention.webhooks(caller.tenant) if caller.may(Scope.ADMIN) else ()


def _webhook(failing: FailingWebhook) -> dict[str, Any]:
    newest = failing.newest
    return {
        "id": failing.id,
        "url": failing.url,
        "is_disabled": failing.is_disabled,
        "dead": failing.dead,
        "error": (newest.last_error or "") if newest is not None else "",
        "at": moment(newest.created_at) if newest is not None else None,
    }


def _grouped(entries: list[dict[str, Any]], *names: str) -> list[tuple[dict[str, Any], int]]:
    """Entries that would read the same are one, with how many there are."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for entry in entries:
        groups.setdefault(tuple(entry[name] for name in names), []).append(entry)
    return [(same[0], len(same)) for same in groups.values()]
