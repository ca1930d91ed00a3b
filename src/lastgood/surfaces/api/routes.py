"""The routes of the session API, as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lastgood.model.tokens import Scope
from lastgood.surfaces.api import request_parameters as params
from lastgood.surfaces.api import response_schemas as shapes
from lastgood.surfaces.api.agents import AgentHandlers
from lastgood.surfaces.api.approvals import ANSWERED, PENDING, ApprovalHandlers
from lastgood.surfaces.api.audit import EFFECTS, FILTERS, RECORDS, AuditHandlers
from lastgood.surfaces.api.branches import BranchHandlers
from lastgood.surfaces.api.resources import AGENT, ATTEMPT, QUEUED_TURN, SESSION, TURN
from lastgood.surfaces.api.route_rows import ONE, json_of, reads, takes
from lastgood.surfaces.api.runs import RunHandlers
from lastgood.surfaces.api.schemas import (
    ContinueBody,
    ElicitationBody,
    LaterBody,
    MetadataBody,
    ModelBody,
    PermissionsBody,
    RebindBody,
    ResumeBody,
    RunBody,
    SafetyBody,
    StarredBody,
    TitleBody,
    TurnBody,
)
from lastgood.surfaces.api.session_fields import FieldHandlers
from lastgood.surfaces.api.session_routes import docker_agent_routes, document_routes, life_routes
from lastgood.surfaces.api.sessions import SessionHandlers
from lastgood.surfaces.api.tickets import TICKET, TicketHandlers
from lastgood.surfaces.api.usage import QUERY, REPORT, UsageHandlers
from lastgood.surfaces.http.app import Contents, Route
from lastgood.surfaces.http.asgi import JSON, Request, Response, json_reply
from lastgood.surfaces.http.json_schema import schema_of
from lastgood.surfaces.http.session_gate import SessionGate

#: An attempt, or a turn whose task no worker has claimed.
_BEGUN: dict[str, Any] = {"anyOf": [ATTEMPT.schema, QUEUED_TURN.schema]}
_STREAM: dict[int, Contents] = {200: {"text/event-stream": None}}


async def _ping(request: Request) -> Response:
    return json_reply({"status": "ok"})


def session_routes(
    life: SessionHandlers,
    fields: FieldHandlers,
    runs: RunHandlers,
    agents: AgentHandlers,
    branches: BranchHandlers,
    approvals: ApprovalHandlers,
    audit: AuditHandlers,
    usage: UsageHandlers,
    tickets: TicketHandlers,
    gate: SessionGate,
    *,
    import_bytes: int,
) -> Sequence[Route]:
    listed = [
        Route(
            "GET",
            "/api/ping",
            _ping,
            Scope.READ,
            "Check that the API responds",
            gives=json_of(shapes.PING),
            probe=True,
        ),
        reads("/api/agents", agents.list, "List agents", json_of(shapes.AGENTS)),
        reads("/api/agents/{agent}", agents.read, "Get an agent and its team", json_of(AGENT.schema)),
        *life_routes(life),
        *document_routes(life, import_bytes),
        reads(
            f"{ONE}/branches",
            branches.list,
            "List branches replaced by edits",
            json_of(shapes.BRANCHES),
            query=params.PAGE,
        ),
        *_of_fields(fields),
        *_of_runs(runs),
        *_of_approvals(approvals),
        *_of_audit(audit),
        Route(
            "POST",
            f"{ONE}/events/ticket",
            tickets.issue,
            Scope.READ,
            "Create a ticket for the event stream, for pages that cannot send a header",
            gives={201: {JSON: TICKET}},
        ),
        reads("/api/usage", usage.usage, "Get usage and cost over time", json_of(REPORT), query=QUERY),
        *docker_agent_routes(life),
    ]
    submitting = _of_submissions(runs)
    return [*map(gate.guard, listed), *map(gate.guard_stream, submitting)]


def _of_fields(fields: FieldHandlers) -> Sequence[Route]:
    one = json_of(SESSION.schema)
    return [
        takes("PATCH", f"{ONE}/title", fields.set_title, "Set the title", TitleBody, one),
        takes(
            "PATCH",
            f"{ONE}/starred",
            fields.set_starred,
            "Star a session: retention keeps it",
            StarredBody,
            one,
        ),
        takes("PATCH", f"{ONE}/metadata", fields.set_metadata, "Set the metadata", MetadataBody, one),
        takes("PATCH", f"{ONE}/model", fields.set_model, "Set the model of later turns", ModelBody, one),
        takes(
            "PATCH",
            f"{ONE}/permissions",
            fields.set_permissions,
            "Set the tool permissions",
            PermissionsBody,
            one,
        ),
        takes("PATCH", f"{ONE}/safety-policy", fields.set_safety, "Set the safety mode", SafetyBody, one),
        takes(
            "POST",
            f"{ONE}/tools/toggle",
            fields.toggle_tools,
            "Toggle the autonomous safety mode",
            None,
            one,
        ),
        takes("POST", f"{ONE}/rebind", fields.rebind, "Rebind a session to another agent", RebindBody, one),
    ]


#: What a request for a turn returns if it does not stream.
_ACCEPTED: dict[int, Contents] = {200: {JSON: TURN.schema}, 202: {JSON: _BEGUN}}


def _of_submissions(runs: RunHandlers) -> Sequence[Route]:
    run = "Run a turn and stream its events"
    return [
        *(
            takes("POST", path, runs.run, run, RunBody, _STREAM, headers=params.RUNS, query=params.NAMED)
            for path in (f"{ONE}/agent/{{agent}}", f"{ONE}/agent/{{agent}}/{{name}}")
        ),
        takes(
            "POST",
            f"{ONE}/turns",
            runs.turn,
            "Create a turn; return at once, or wait for its end",
            TurnBody,
            _ACCEPTED,
            headers=params.RUNS,
        ),
    ]


def _of_runs(runs: RunHandlers) -> Sequence[Route]:
    queued = json_of(shapes.QUEUED, 202)
    return [
        reads(
            f"{ONE}/events",
            runs.events,
            "Stream session events, past and live",
            _STREAM,
            query=params.SINCE,
        ),
        takes("POST", f"{ONE}/cancel", runs.cancel, "Cancel the running turn", None, json_of(_BEGUN)),
        takes(
            "POST",
            f"{ONE}/attempts/{{attempt}}/continue",
            runs.continue_from,
            "Continue a failed attempt after its finished steps",
            ContinueBody,
            _ACCEPTED,
            may_be_empty=True,
            headers=params.USER,
        ),
        takes(
            "POST",
            f"{ONE}/steer",
            runs.steer,
            "Steer the running turn",
            LaterBody,
            queued,
            headers=params.KEY,
        ),
        takes(
            "POST",
            f"{ONE}/followup",
            runs.followup,
            "Queue a follow-up turn",
            LaterBody,
            queued,
            headers=params.KEY,
        ),
        reads(f"{ONE}/queue", runs.queue, "List the queue", json_of(shapes.QUEUE)),
        takes(
            "DELETE",
            f"{ONE}/queue/{{entry}}",
            runs.drop,
            "Delete a queue entry",
            None,
            json_of(shapes.STATUS),
        ),
        takes(
            "POST",
            f"{ONE}/queue/{{entry}}/retry",
            runs.retry,
            "Retry a parked queue entry",
            None,
            json_of(shapes.STATUS, 202),
        ),
    ]


def _of_approvals(approvals: ApprovalHandlers) -> Sequence[Route]:
    return [
        reads(
            f"{ONE}/pending", approvals.pending, "List the questions that wait for a person", json_of(PENDING)
        ),
        Route(
            "POST",
            f"{ONE}/resume",
            approvals.resume,
            Scope.APPROVE,
            "Answer a question: approve or reject a tool call",
            takes=schema_of(ResumeBody),
            gives=json_of(ANSWERED),
        ),
        Route(
            "POST",
            f"{ONE}/elicitation",
            approvals.elicitation,
            Scope.APPROVE,
            "Answer a question that a tool asked",
            takes=schema_of(ElicitationBody),
            gives=json_of(ANSWERED),
        ),
    ]


def _of_audit(audit: AuditHandlers) -> Sequence[Route]:
    return [
        reads(
            f"{ONE}/effects",
            audit.effects,
            "List tool calls with their keys and outcomes",
            json_of(EFFECTS),
            query=params.PAGE,
        ),
        Route(
            "GET",
            "/api/audit",
            audit.audit,
            Scope.ADMIN,
            "List audit records, oldest first",
            gives=json_of(RECORDS),
            query=FILTERS,
        ),
    ]
