"""Handlers for questions that wait for a person: list them, answer one."""

from __future__ import annotations

from lastgood.core.approval import Confirmation
from lastgood.flows.approvals import Approvals, Approver, PendingQuestion
from lastgood.surfaces.api.schemas import ElicitationBody, ResumeBody
from lastgood.surfaces.http.asgi import Request, Response, json_reply
from lastgood.surfaces.http.body_parser import parse
from lastgood.surfaces.http.json_schema import TEXT, object_of, or_null
from lastgood.surfaces.http.principal import Principal
from lastgood.surfaces.http.resource import ANY, Resource, ResourceField, list_of, timestamp
from lastgood.surfaces.http.turn_headers import session_of

QUESTION: Resource[PendingQuestion] = Resource(
    ResourceField("id", TEXT, lambda one: one.id),
    ResourceField("attempt", TEXT, lambda one: one.attempt),
    ResourceField("turn", or_null(TEXT), lambda one: one.turn),
    ResourceField("task", or_null(TEXT), lambda one: one.task),
    ResourceField("kind", TEXT, lambda one: one.question["kind"]),
    ResourceField("tool", TEXT, lambda one: one.question.get("tool", "")),
    ResourceField("arguments", ANY, lambda one: one.question.get("arguments", one.question.get("input"))),
    ResourceField("agent", TEXT, lambda one: one.question.get("agent", "")),
    ResourceField("reason", TEXT, lambda one: one.question.get("reason", one.question.get("title", ""))),
    ResourceField("message", TEXT, lambda one: one.question.get("message", "")),
    ResourceField("schema", ANY, lambda one: one.question.get("schema")),
    ResourceField("url", or_null(TEXT), lambda one: one.question.get("url")),
    ResourceField(
        "deadline_at",
        or_null(TEXT),
        lambda one: None if one.deadline_at is None else timestamp(one.deadline_at),
    ),
)
PENDING = list_of(QUESTION.schema)
ANSWERED = object_of({"status": TEXT})


def approver(caller: Principal) -> Approver:
    return Approver(caller.tenant, caller.name, caller.user, caller.setter)


class ApprovalHandlers:
    def __init__(self, approvals: Approvals) -> None:
        self._approvals = approvals

    async def pending(self, request: Request) -> Response:
        caller = request.caller
        found = await self._approvals.pending(caller.tenant, session_of(request), caller.user)
        return json_reply([QUESTION.json(one) for one in found])

    async def resume(self, request: Request) -> Response:
        """docker-agent's route. The turn continues after the response; its events show how."""
        body = parse(ResumeBody, await request.json())
        await self._approvals.answer(
            session_of(request),
            Confirmation(body.confirmation),
            approver(request.caller),
            reason=body.reason or "",
            question=body.question,
            tool=body.tool_name,
        )
        return json_reply({"status": "resumed"})

    async def elicitation(self, request: Request) -> Response:
        """docker-agent's route. Without an id, the only pending question is meant."""
        body = parse(ElicitationBody, await request.json())
        await self._approvals.answer(
            session_of(request),
            Confirmation(body.action),
            approver(request.caller),
            content=body.content,
            question=body.elicitation_id or None,
        )
        return json_reply({"status": "resumed"})
