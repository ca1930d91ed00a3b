"""The routes of the session API, as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from lastgood.model.tokens import Scope
from lastgood.surfaces.api import request_parameters as params
from lastgood.surfaces.api import response_schemas as shapes
from lastgood.surfaces.api.agents import AgentHandlers
from lastgood.surfaces.api.approvals import ANSWERED, PENDING, ApprovalHandlers
from lastgood.surfaces.api.audit import EFFECTS, FILTERS, RECORDS, AuditHandlers
from lastgood.surfaces.api.branches import BranchHandlers
from lastgood.surfaces.api.resources import AGENT, ATTEMPT, QUEUED_TURN, SESSION, TURN
from lastgood.surfaces.api.runs import RunHandlers
from lastgood.surfaces.api.schemas import (
    AppendBody,
    ContinueBody,
    CreateBody,
    ElicitationBody,
    ForkBody,
    IdsBody,
    LaterBody,
    MetadataBody,
    ModelBody,
    PermissionsBody,
    RebindBody,
    ResumeBody,
    RunBody,
    SafetyBody,
    StarredBody,
    SummaryBody,
    TitleBody,
    TokensBody,
    TurnBody,
)
from lastgood.surfaces.api.session_fields import FieldHandlers
from lastgood.surfaces.api.sessions import SessionHandlers
from lastgood.surfaces.api.tickets import TICKET, TicketHandlers
from lastgood.surfaces.api.usage import QUERY, REPORT, UsageHandlers
from lastgood.surfaces.http.app import Contents, Route
from lastgood.surfaces.http.asgi import JSON, Handler, Request, Response, json_reply
from lastgood.surfaces.http.json_schema import schema_of
from lastgood.surfaces.http.session_gate import SessionGate

_ONE = "/api/sessions/{session}"
_STREAM: dict[int, Contents] = {200: {"text/event-stream": None}}

#: An attempt, or a turn whose task no worker has claimed.
_BEGUN: dict[str, Any] = {"anyOf": [ATTEMPT.schema, QUEUED_TURN.schema]}


def _json(schema: Any, status: int = 200) -> dict[int, Contents]:
    return {status: {JSON: schema}}


def _reads(path: str, handler: Handler, summary: str, gives: dict[int, Contents], **more: Any) -> Route:
    return Route("GET", path, handler, Scope.READ, summary, gives=gives, **more)


def _takes(
    method: str,
    path: str,
    handler: Handler,
    summary: str,
    body: type[BaseModel] | None,
    gives: dict[int, Contents],
    **more: Any,
) -> Route:
    takes = None if body is None else schema_of(body)
    return Route(method, path, handler, Scope.SESSION, summary, takes=takes, gives=gives, **more)


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
        *_of_life(life),
        *_of_documents(life, import_bytes),
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
        *_of_docker_agent(life),
    ]
    submitting = _of_submissions(runs)
    return [*map(gate.guard, listed), *map(gate.guard_stream, submitting)]


def _of_life(life: SessionHandlers) -> Sequence[Route]:
    one = _json(SESSION.schema)
    return [
        _takes("POST", "/api/sessions", life.create, "Create a session", CreateBody, one, may_be_empty=True),
        _reads(
            "/api/sessions",
            life.list,
            "List sessions, newest first",
            _json(shapes.SESSIONS),
            query=params.FILTERS,
        ),
        _reads(
            _ONE,
            life.read,
            "Get a session with its messages",
            one,
            query=shapes.WITH_MESSAGES,
            takes_task_token=True,
        ),
        _reads(
            f"{_ONE}/turns",
            life.turns,
            "List committed turns",
            _json(shapes.TURNS),
            query=params.PAGE,
            takes_task_token=True,
        ),
        _reads(f"{_ONE}/turns/{{turn}}", life.turn, "Get a turn", _json(TURN.schema), takes_task_token=True),
        _reads(
            f"{_ONE}/turns/{{turn}}/prompt", life.prompt, "Get the prompt of a turn", _json(shapes.PROMPT)
        ),
        _reads(f"{_ONE}/attempts", life.attempts, "List attempts", _json(shapes.ATTEMPTS), query=params.PAGE),
        _reads(
            f"{_ONE}/attempts/{{attempt}}",
            life.attempt,
            "Get an attempt with its steps",
            _json(ATTEMPT.schema),
        ),
        _takes("POST", f"{_ONE}/fork", life.fork, "Fork a session", ForkBody, one, may_be_empty=True),
        _takes(
            "POST",
            f"{_ONE}/reset",
            life.reset,
            "Reset a session: later prompts start after this point",
            None,
            one,
            headers=params.ASKS,
        ),
        _takes(
            "POST",
            f"{_ONE}/messages",
            life.append,
            "Append messages without a model call",
            AppendBody,
            _json(TURN.schema, 201),
            headers=params.ASKS,
        ),
    ]


def _of_documents(life: SessionHandlers, import_bytes: int) -> Sequence[Route]:
    """Whole sessions: exported, imported and deleted."""
    return [
        _reads(f"{_ONE}/export", life.export, "Export a session", _json(shapes.DOCUMENT)),
        _takes(
            "POST",
            "/api/sessions/import",
            life.take_in,
            "Import a session",
            None,
            _json(SESSION.schema, 201),
            limit_bytes=import_bytes,
        ),
        _takes("DELETE", _ONE, life.delete, "Cancel and delete a session", None, _json(shapes.DELETED)),
        _takes(
            "POST",
            "/api/sessions/batch/delete",
            life.delete_many,
            "Delete sessions",
            IdsBody,
            _json(shapes.BATCH_DELETED),
        ),
        Route(
            "POST",
            "/api/sessions/batch/export",
            life.export_many,
            Scope.READ,
            "Export sessions",
            takes=schema_of(IdsBody),
            gives=_json(shapes.BATCH_EXPORTED),
        ),
    ]


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


def _of_docker_agent(life: SessionHandlers) -> Sequence[Route]:
    """Routes of docker-agent's clients beyond those above."""
    return [
        _reads(f"{_ONE}/status", life.status, "Get the status of a session", _json(shapes.BRIEF)),
        _reads(f"{_ONE}/snapshot", life.read, "Get a snapshot of a session", _json(SESSION.schema)),
        _reads(
            f"{_ONE}/recovery",
            life.recovery,
            "Get a session with its failed attempts and damage",
            _json(shapes.DOCUMENT),
        ),
        _reads(f"{_ONE}/models", life.models, "List the models of the agent", _json(shapes.SESSION_MODELS)),
        _takes(
            "PATCH",
            f"{_ONE}/tokens",
            life.count_tokens,
            "Get the token counts",
            TokensBody,
            _json(shapes.TOKENS),
        ),
        _takes(
            "POST",
            f"{_ONE}/summaries",
            life.summarize,
            "Replace earlier messages in prompts with a summary",
            SummaryBody,
            _json(TURN.schema, 201),
            headers=params.ASKS,
        ),
    ]
