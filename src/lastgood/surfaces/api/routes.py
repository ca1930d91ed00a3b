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
from lastgood.surfaces.api.route_rows import ONE as _ONE
from lastgood.surfaces.api.route_rows import json_of as _json
from lastgood.surfaces.api.route_rows import reads as _reads
from lastgood.surfaces.api.route_rows import takes as _takes
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
            gives=_json(shapes.PING),
            probe=True,
        ),
        _reads("/api/agents", agents.list, "List agents", _json(shapes.AGENTS)),
        _reads("/api/agents/{agent}", agents.read, "Get an agent and its team", _json(AGENT.schema)),
        *life_routes(life),
        *document_routes(life, import_bytes),
        _reads(
            f"{_ONE}/branches",
            branches.list,
            "List branches replaced by edits",
            _json(shapes.BRANCHES),
            query=params.PAGE,
        ),
        *_of_fields(fields),
        *_of_runs(runs),
        *_of_approvals(approvals),
        *_of_audit(audit),
        Route(
            "POST",
            f"{_ONE}/events/ticket",
            tickets.issue,
            Scope.READ,
            "Create a ticket for the event stream, for pages that cannot send a header",
            gives={201: {JSON: TICKET}},
        ),
        _reads("/api/usage", usage.usage, "Get usage and cost over time", _json(REPORT), query=QUERY),
        *docker_agent_routes(life),
    ]
    submitting = _of_submissions(runs)
    return [*map(gate.guard, listed), *map(gate.guard_stream, submitting)]


def _of_fields(fields: FieldHandlers) -> Sequence[Route]:
    one = _json(SESSION.schema)
    return [
        _takes("PATCH", f"{_ONE}/title", fields.set_title, "Set the title", TitleBody, one),
        _takes(
            "PATCH",
            f"{_ONE}/starred",
            fields.set_starred,
            "Star a session: retention keeps it",
            StarredBody,
            one,
        ),
        _takes("PATCH", f"{_ONE}/metadata", fields.set_metadata, "Set the metadata", MetadataBody, one),
        _takes("PATCH", f"{_ONE}/model", fields.set_model, "Set the model of later turns", ModelBody, one),
        _takes(
            "PATCH",
            f"{_ONE}/permissions",
            fields.set_permissions,
            "Set the tool permissions",
            PermissionsBody,
            one,
        ),
        _takes("PATCH", f"{_ONE}/safety-policy", fields.set_safety, "Set the safety mode", SafetyBody, one),
        _takes(
            "POST",
            f"{_ONE}/tools/toggle",
            fields.toggle_tools,
            "Toggle the autonomous safety mode",
            None,
            one,
        ),
        _takes("POST", f"{_ONE}/rebind", fields.rebind, "Rebind a session to another agent", RebindBody, one),
    ]


#: What a request for a turn returns if it does not stream.
_ACCEPTED: dict[int, Contents] = {200: {JSON: TURN.schema}, 202: {JSON: _BEGUN}}


def _of_submissions(runs: RunHandlers) -> Sequence[Route]:
    run = "Run a turn and stream its events"
    return [
        *(
            _takes("POST", path, runs.run, run, RunBody, _STREAM, headers=params.RUNS, query=params.NAMED)
            for path in (f"{_ONE}/agent/{{agent}}", f"{_ONE}/agent/{{agent}}/{{name}}")
        ),
        _takes(
            "POST",
            f"{_ONE}/turns",
            runs.turn,
            "Create a turn; return at once, or wait for its end",
            TurnBody,
            _ACCEPTED,
            headers=params.RUNS,
        ),
    ]


def _of_runs(runs: RunHandlers) -> Sequence[Route]:
    queued = _json(shapes.QUEUED, 202)
    return [
        _reads(
            f"{_ONE}/events",
            runs.events,
            "Stream session events, past and live",
            _STREAM,
            query=params.SINCE,
        ),
        _takes("POST", f"{_ONE}/cancel", runs.cancel, "Cancel the running turn", None, _json(_BEGUN)),
        _takes(
            "POST",
            f"{_ONE}/attempts/{{attempt}}/continue",
            runs.continue_from,
            "Continue a failed attempt after its finished steps",
            ContinueBody,
            _ACCEPTED,
            may_be_empty=True,
            headers=params.USER,
        ),
        _takes(
            "POST",
            f"{_ONE}/steer",
            runs.steer,
            "Steer the running turn",
            LaterBody,
            queued,
            headers=params.KEY,
        ),
        _takes(
            "POST",
            f"{_ONE}/followup",
            runs.followup,
            "Queue a follow-up turn",
            LaterBody,
            queued,
            headers=params.KEY,
        ),
        _reads(f"{_ONE}/queue", runs.queue, "List the queue", _json(shapes.QUEUE)),
        _takes(
            "DELETE", f"{_ONE}/queue/{{entry}}", runs.drop, "Delete a queue entry", None, _json(shapes.STATUS)
        ),
        _takes(
            "POST",
            f"{_ONE}/queue/{{entry}}/retry",
            runs.retry,
            "Retry a parked queue entry",
            None,
            _json(shapes.STATUS, 202),
        ),
    ]


def _of_approvals(approvals: ApprovalHandlers) -> Sequence[Route]:
    return [
        _reads(
            f"{_ONE}/pending", approvals.pending, "List the questions that wait for a person", _json(PENDING)
        ),
        Route(
            "POST",
            f"{_ONE}/resume",
            approvals.resume,
            Scope.APPROVE,
            "Answer a question: approve or reject a tool call",
            takes=schema_of(ResumeBody),
            gives=_json(ANSWERED),
        ),
        Route(
            "POST",
            f"{_ONE}/elicitation",
            approvals.elicitation,
            Scope.APPROVE,
            "Answer a question that a tool asked",
            takes=schema_of(ElicitationBody),
            gives=_json(ANSWERED),
        ),
    ]


def _of_audit(audit: AuditHandlers) -> Sequence[Route]:
    return [
        _reads(
            f"{_ONE}/effects",
            audit.effects,
            "List tool calls with their keys and outcomes",
            _json(EFFECTS),
            query=params.PAGE,
        ),
        Route(
            "GET",
            "/api/audit",
            audit.audit,
            Scope.ADMIN,
            "List audit records, oldest first",
            gives=_json(RECORDS),
            query=FILTERS,
        ),
    ]
