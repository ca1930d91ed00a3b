"""The routes of the session API, as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from lastgood.model.tokens import Scope
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
from lastgood.surfaces.api.sessions import SessionHandlers
from lastgood.surfaces.http.app import Contents, Route
from lastgood.surfaces.http.asgi import JSON, Handler, Request, Response, json_reply
from lastgood.surfaces.http.json_schema import schema_of
from lastgood.surfaces.http.session_gate import SessionGate

_ONE = "/api/sessions/{session}"
_STREAM: dict[int, Contents] = {200: {"text/event-stream": None}}

#: An attempt, or a turn whose task no worker has claimed.
_BEGUN: dict[str, Any] = {"anyOf": [ATTEMPT.schema, QUEUED_TURN.schema]}

_VISIBLE: dict[str, Any] = {"type": "string", "pattern": r"^[\x21-\x7e]{1,255}$"}
_KEY = {
    "idempotency-key": ("Requests with the same key and body run once; repeats replay the result", _VISIBLE)
}
_USER = {
    "x-user-id": ("End user of this request; recorded with the turn", {"type": "string", "maxLength": 512})
}
_HEAD = {"if-match": ("Turn id that must be the head of the session, else 412", _VISIBLE)}
_ASKS = {**_KEY, **_USER, **_HEAD}
_RUNS = {**_ASKS, "if-none-match": ("*: run only if the session has no turn, else 412", {"const": "*"})}

_PAGE = {
    "limit": ("Page size", {"type": "integer", "minimum": 1, "maximum": 200}),
    "cursor": ("X-Next-Cursor of the previous page", {"type": "integer", "minimum": 0}),
}
_FILTERS = {
    **_PAGE,
    "q": ("Filter by words in the title", {"type": "string"}),
    "agent": ("Filter by agent key", {"type": "string"}),
    "status": ("Filter by status", {"enum": ["idle", "running", "waiting", "queued"]}),
}
_NAMED = {"named": ("1: SSE frames have an event name", {"enum": ["0", "1"]})}
_SINCE = {**_NAMED, "since": ("Id of the last event received", {"type": "integer", "minimum": 0})}


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
    runs: RunHandlers,
    agents: AgentHandlers,
    branches: BranchHandlers,
    approvals: ApprovalHandlers,
    audit: AuditHandlers,
    gate: SessionGate,
    *,
    import_bytes: int,
) -> Sequence[Route]:
    listed = [
        Route("GET", "/api/ping", _ping, Scope.READ, "Check that the API responds", gives=_json(shapes.PING)),
        _reads("/api/agents", agents.list, "List agents", _json(shapes.AGENTS)),
        _reads("/api/agents/{agent}", agents.read, "Get an agent and its team", _json(AGENT.schema)),
        *_of_life(life, import_bytes),
        _reads(
            f"{_ONE}/branches",
            branches.list,
            "List branches replaced by edits",
            _json(shapes.BRANCHES),
            query=_PAGE,
        ),
        *_of_fields(life),
        *_of_runs(runs),
        *_of_approvals(approvals),
        *_of_audit(audit),
        *_of_docker_agent(life),
    ]
    return [gate.guard(route) for route in listed]


def _of_life(life: SessionHandlers, import_bytes: int) -> Sequence[Route]:
    one = _json(SESSION.schema)
    return [
        _takes("POST", "/api/sessions", life.create, "Create a session", CreateBody, one, may_be_empty=True),
        _reads(
            "/api/sessions", life.list, "List sessions, newest first", _json(shapes.SESSIONS), query=_FILTERS
        ),
        _reads(_ONE, life.read, "Get a session with its messages", one, query=shapes.WITH_MESSAGES),
        _reads(f"{_ONE}/turns", life.turns, "List committed turns", _json(shapes.TURNS), query=_PAGE),
        _reads(f"{_ONE}/turns/{{turn}}", life.turn, "Get a turn", _json(TURN.schema)),
        _reads(
            f"{_ONE}/turns/{{turn}}/prompt", life.prompt, "Get the prompt of a turn", _json(shapes.PROMPT)
        ),
        _reads(f"{_ONE}/attempts", life.attempts, "List attempts", _json(shapes.ATTEMPTS), query=_PAGE),
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
            headers=_ASKS,
        ),
        _takes("POST", f"{_ONE}/rebind", life.rebind, "Rebind a session to another agent", RebindBody, one),
        _takes(
            "POST",
            f"{_ONE}/messages",
            life.append,
            "Append messages without a model call",
            AppendBody,
            _json(TURN.schema, 201),
            headers=_ASKS,
        ),
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


def _of_fields(life: SessionHandlers) -> Sequence[Route]:
    one = _json(SESSION.schema)
    return [
        _takes("PATCH", f"{_ONE}/title", life.set_title, "Set the title", TitleBody, one),
        _takes(
            "PATCH",
            f"{_ONE}/starred",
            life.set_starred,
            "Star a session: retention keeps it",
            StarredBody,
            one,
        ),
        _takes("PATCH", f"{_ONE}/metadata", life.set_metadata, "Set the metadata", MetadataBody, one),
        _takes("PATCH", f"{_ONE}/model", life.set_model, "Set the model of later turns", ModelBody, one),
        _takes(
            "PATCH",
            f"{_ONE}/permissions",
            life.set_permissions,
            "Set the tool permissions",
            PermissionsBody,
            one,
        ),
        _takes("PATCH", f"{_ONE}/safety-policy", life.set_safety, "Set the safety mode", SafetyBody, one),
        _takes(
            "POST", f"{_ONE}/tools/toggle", life.toggle_tools, "Toggle the autonomous safety mode", None, one
        ),
    ]


def _of_runs(runs: RunHandlers) -> Sequence[Route]:
    queued = _json(shapes.QUEUED, 202)
    accepted: dict[int, Contents] = {
        200: {JSON: TURN.schema},
        202: {JSON: _BEGUN},
    }
    run = "Run a turn and stream its events"
    return [
        *(
            _takes("POST", path, runs.run, run, RunBody, _STREAM, headers=_RUNS, query=_NAMED)
            for path in (f"{_ONE}/agent/{{agent}}", f"{_ONE}/agent/{{agent}}/{{name}}")
        ),
        _takes(
            "POST",
            f"{_ONE}/turns",
            runs.turn,
            "Create a turn; return at once, or wait for its end",
            TurnBody,
            accepted,
            headers=_RUNS,
        ),
        _reads(
            f"{_ONE}/events",
            runs.events,
            "Stream session events, past and live",
            _STREAM,
            query=_SINCE,
        ),
        _takes("POST", f"{_ONE}/cancel", runs.cancel, "Cancel the running turn", None, _json(_BEGUN)),
        _takes(
            "POST",
            f"{_ONE}/attempts/{{attempt}}/continue",
            runs.continue_from,
            "Continue a failed attempt after its finished steps",
            ContinueBody,
            accepted,
            may_be_empty=True,
            headers=_USER,
        ),
        _takes(
            "POST", f"{_ONE}/steer", runs.steer, "Steer the running turn", LaterBody, queued, headers=_KEY
        ),
        _takes(
            "POST",
            f"{_ONE}/followup",
            runs.followup,
            "Queue a follow-up turn",
            LaterBody,
            queued,
            headers=_KEY,
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
    ]


def _of_audit(audit: AuditHandlers) -> Sequence[Route]:
    return [
        _reads(
            f"{_ONE}/effects",
            audit.effects,
            "List tool calls with their keys and outcomes",
            _json(EFFECTS),
            query=_PAGE,
        ),
        Route(
            "GET",
            "/api/audit",
            audit.audit,
            Scope.ADMIN,
            "List who decided what, oldest first",
            gives=_json(RECORDS),
            query=FILTERS,
        ),
    ]


def _of_docker_agent(life: SessionHandlers) -> Sequence[Route]:
    """What its clients ask for beside the above."""
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
            headers=_ASKS,
        ),
    ]
