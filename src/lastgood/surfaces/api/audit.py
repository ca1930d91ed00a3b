"""Handlers for what was done: the tool calls of a session, and the audit record of a tenant."""

from __future__ import annotations

from typing import Any

from lastgood.core.tool_ledger import ToolEffect
from lastgood.flows.audit import AuditReader
from lastgood.model.attempts import ToolOutcome
from lastgood.model.audit import AuditFilter, AuditKind, AuditRecord
from lastgood.surfaces.http.asgi import Request, Response, json_reply
from lastgood.surfaces.http.body_parser import whole_number
from lastgood.surfaces.http.json_schema import COUNT, TEXT, or_null
from lastgood.surfaces.http.resource import ANY, FLAG, NUMBER, Resource, ResourceField, list_of, timestamp
from lastgood.surfaces.http.turn_headers import session_of

MOST_IN_PAGE = 200

EFFECT: Resource[ToolEffect] = Resource(
    ResourceField("key", TEXT, lambda one: one.key),
    ResourceField("turn", TEXT, lambda one: one.turn),
    ResourceField("attempt", TEXT, lambda one: one.attempt),
    ResourceField("tool", TEXT, lambda one: one.tool),
    ResourceField("arguments_sha256", TEXT, lambda one: one.arguments_digest),
    ResourceField("outcome", or_null({"enum": [*ToolOutcome]}), lambda one: one.outcome),
    ResourceField("seconds", NUMBER, lambda one: one.seconds),
    ResourceField("adopted", FLAG, lambda one: one.adopted),
    ResourceField("rewritten", FLAG, lambda one: one.rewritten),
)
RECORD: Resource[AuditRecord] = Resource(
    ResourceField("number", COUNT, lambda one: one.number),
    ResourceField("at", TEXT, lambda one: timestamp(one.at)),
    ResourceField("kind", {"enum": [*AuditKind]}, lambda one: one.entry.kind.value),
    ResourceField("token", TEXT, lambda one: one.entry.actor),
    ResourceField("user", TEXT, lambda one: one.entry.user),
    ResourceField("machine", TEXT, lambda one: one.entry.machine),
    ResourceField("subject", TEXT, lambda one: one.entry.subject),
    ResourceField("detail", ANY, lambda one: dict(one.entry.detail)),
)
EFFECTS, RECORDS = list_of(EFFECT.schema), list_of(RECORD.schema)

FILTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "limit": ("Page size", {"type": "integer", "minimum": 1, "maximum": MOST_IN_PAGE}),
    "cursor": ("X-Next-Cursor of the previous page", {"type": "integer", "minimum": 0}),
    "kind": ("Filter by kind", {"enum": [*AuditKind]}),
    "subject": ("Filter by the id of the changed object", {"type": "string"}),
    "user": ("Filter by the user of the token", {"type": "string"}),
}


class AuditHandlers:
    def __init__(self, reader: AuditReader) -> None:
        self._reader = reader

    async def effects(self, request: Request) -> Response:
        """By attempt, oldest first; a page is so many attempts."""
        after = whole_number(request.query, "cursor", 0, most=2**62)
        limit = whole_number(request.query, "limit", 50, least=1, most=MOST_IN_PAGE)
        found, next_cursor = await self._reader.effects(
            request.caller.tenant, session_of(request), after=after, limit=limit
        )
        headers = {} if next_cursor is None else {"x-next-cursor": str(next_cursor)}
        return json_reply([EFFECT.json(one) for one in found], 200, headers)

    async def audit(self, request: Request) -> Response:
        after = whole_number(request.query, "cursor", 0, most=2**62)
        limit = whole_number(request.query, "limit", 50, least=1, most=MOST_IN_PAGE)
        kind = request.query.get("kind")
        wanted = AuditFilter(
            self._reader.kind_of(kind) if kind else None,
            request.query.get("subject") or None,
            request.query.get("user"),
        )
        found = await self._reader.audit(request.caller.tenant, wanted, after=after, limit=limit)
        headers = {"x-next-cursor": str(found[-1].number)} if len(found) == limit else {}
        return json_reply([RECORD.json(one) for one in found], 200, headers)
