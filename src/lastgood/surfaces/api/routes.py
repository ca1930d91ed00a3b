"""The addresses of the session API, as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from lastgood.model.tokens import Scope
from lastgood.surfaces.api import response_schemas as shapes
from lastgood.surfaces.api.agents import AgentHandlers
from lastgood.surfaces.api.branches import BranchHandlers
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
from lastgood.surfaces.http.openapi import schema_of

_ONE = "/api/sessions/{session}"
_STREAM: dict[int, Contents] = {200: {"text/event-stream": None}}

_VISIBLE: dict[str, Any] = {"type": "string", "pattern": r"^[\x21-\x7e]{1,255}$"}
_KEY = {"idempotency-key": ("sent again under this key, it is done once", _VISIBLE)}
_USER = {
    "x-user-id": ("for whom this is asked; recorded with the turn", {"type": "string", "maxLength": 512})
}
_HEAD = {"if-match": ("the turn that this one must follow, else 412", _VISIBLE)}
_ASKS = {**_KEY, **_USER, **_HEAD}
_RUNS = {**_ASKS, "if-none-match": ("*: only if there is no turn yet, else 412", {"const": "*"})}

_PAGE = {
    "limit": ("how many", {"type": "integer", "minimum": 1, "maximum": 200}),
    "cursor": ("X-Next-Cursor of the page before", {"type": "integer", "minimum": 0}),
}
_FILTERS = {
    **_PAGE,
    "q": ("words in the title", {"type": "string"}),
    "agent": ("the key of an agent", {"type": "string"}),
    "status": ("what it does now", {"enum": ["idle", "running", "waiting", "queued"]}),
}
_NAMED = {"named": ("1: frames have an event name", {"enum": ["0", "1"]})}
_SINCE = {**_NAMED, "since": ("the number of the last event seen", {"type": "integer", "minimum": 0})}


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
    *,
    import_bytes: int,
) -> Sequence[Route]:
    return [
        Route("GET", "/api/ping", _ping, Scope.READ, "whether it answers", gives=_json(shapes.PING)),
        _reads("/api/agents", agents.list, "the agents that are served", _json(shapes.AGENTS)),
        _reads("/api/agents/{agent}", agents.read, "one agent, and its team", _json(shapes.AGENT)),
        *_of_life(life, import_bytes),
        _reads(
            f"{_ONE}/branches",
            branches.list,
            "List what edits have replaced",
            _json(shapes.BRANCHES),
            query=_PAGE,
        ),
        *_of_fields(life),
        *_of_runs(runs),
        *_of_docker_agent(life),
    ]


def _of_life(life: SessionHandlers, import_bytes: int) -> Sequence[Route]:
    one = _json(shapes.SESSION)
    return [
        _takes("POST", "/api/sessions", life.create, "a new session", CreateBody, one, may_be_empty=True),
        _reads("/api/sessions", life.list, "newest first", _json(shapes.SESSIONS), query=_FILTERS),
        _reads(_ONE, life.read, "one session with its messages", one, query=shapes.WITH_MESSAGES),
        _reads(f"{_ONE}/turns", life.turns, "its committed turns", _json(shapes.TURNS), query=_PAGE),
        _reads(f"{_ONE}/turns/{{turn}}", life.turn, "one of them", _json(shapes.TURN)),
        _reads(f"{_ONE}/turns/{{turn}}/prompt", life.prompt, "what the model saw", _json(shapes.PROMPT)),
        _reads(f"{_ONE}/attempts", life.attempts, "every try", _json(shapes.ATTEMPTS), query=_PAGE),
        _reads(f"{_ONE}/attempts/{{attempt}}", life.attempt, "one try, its steps", _json(shapes.ATTEMPT)),
        _takes(
            "POST", f"{_ONE}/fork", life.fork, "a new session from here", ForkBody, one, may_be_empty=True
        ),
        _takes("POST", f"{_ONE}/reset", life.reset, "prompts start after it", None, one, headers=_ASKS),
        _takes("POST", f"{_ONE}/rebind", life.rebind, "another agent from now on", RebindBody, one),
        _takes(
            "POST",
            f"{_ONE}/messages",
            life.append,
            "a turn without a model",
            AppendBody,
            _json(shapes.TURN, 201),
            headers=_ASKS,
        ),
        _reads(f"{_ONE}/export", life.export, "all of it as a document", _json(shapes.DOCUMENT)),
        _takes(
            "POST",
            "/api/sessions/import",
            life.take_in,
            "a session from a document",
            None,
            _json(shapes.SESSION, 201),
            limit_bytes=import_bytes,
        ),
        _takes("DELETE", _ONE, life.delete, "cancelled, then gone", None, _json(shapes.DELETED)),
        _takes(
            "POST",
            "/api/sessions/batch/delete",
            life.delete_many,
            "several",
            IdsBody,
            _json(shapes.BATCH_DELETED),
        ),
        Route(
            "POST",
            "/api/sessions/batch/export",
            life.export_many,
            Scope.READ,
            "several, as documents",
            takes=schema_of(IdsBody),
            gives=_json(shapes.BATCH_EXPORTED),
        ),
    ]


def _of_fields(life: SessionHandlers) -> Sequence[Route]:
    one = _json(shapes.SESSION)
    return [
        _takes("PATCH", f"{_ONE}/title", life.set_title, "a person's title", TitleBody, one),
        _takes("PATCH", f"{_ONE}/starred", life.set_starred, "kept, whatever its age", StarredBody, one),
        _takes("PATCH", f"{_ONE}/metadata", life.set_metadata, "what clients note", MetadataBody, one),
        _takes("PATCH", f"{_ONE}/model", life.set_model, "the model of later turns", ModelBody, one),
        _takes(
            "PATCH",
            f"{_ONE}/permissions",
            life.set_permissions,
            "Set the rules for its tools",
            PermissionsBody,
            one,
        ),
        _takes("PATCH", f"{_ONE}/safety-policy", life.set_safety, "Set its safety mode", SafetyBody, one),
        _takes("POST", f"{_ONE}/tools/toggle", life.toggle_tools, "all tools may run, or not", None, one),
    ]


def _of_runs(runs: RunHandlers) -> Sequence[Route]:
    queued = _json(shapes.QUEUED, 202)
    accepted: dict[int, Contents] = {200: {JSON: shapes.TURN}, 202: {JSON: shapes.ATTEMPT}}
    run = "asks an agent, and streams what happens"
    return [
        *(
            _takes("POST", path, runs.run, run, RunBody, _STREAM, headers=_RUNS, query=_NAMED)
            for path in (f"{_ONE}/agent/{{agent}}", f"{_ONE}/agent/{{agent}}/{{name}}")
        ),
        _takes(
            "POST", f"{_ONE}/turns", runs.turn, "accepted, or waited for", TurnBody, accepted, headers=_RUNS
        ),
        _reads(
            f"{_ONE}/events",
            runs.events,
            "exactly what is missing, and then what comes",
            _STREAM,
            query=_SINCE,
        ),
        _takes("POST", f"{_ONE}/cancel", runs.cancel, "ends what runs", None, _json(shapes.ATTEMPT)),
        _takes(
            "POST",
            f"{_ONE}/attempts/{{attempt}}/continue",
            runs.continue_from,
            "tries its turn again, after its finished steps",
            ContinueBody,
            accepted,
            may_be_empty=True,
            headers=_USER,
        ),
        _takes("POST", f"{_ONE}/steer", runs.steer, "for the running turn", LaterBody, queued, headers=_KEY),
        _takes("POST", f"{_ONE}/followup", runs.followup, "for after it", LaterBody, queued, headers=_KEY),
        _reads(f"{_ONE}/queue", runs.queue, "what waits", _json(shapes.QUEUE)),
        _takes(
            "DELETE", f"{_ONE}/queue/{{entry}}", runs.drop, "not wanted any more", None, _json(shapes.STATUS)
        ),
        _takes(
            "POST",
            f"{_ONE}/queue/{{entry}}/retry",
            runs.retry,
            "a parked one again",
            None,
            _json(shapes.STATUS, 202),
        ),
    ]


def _of_docker_agent(life: SessionHandlers) -> Sequence[Route]:
    """What its clients ask for beside the above."""
    return [
        _reads(f"{_ONE}/status", life.status, "whether it streams", _json(shapes.BRIEF)),
        _reads(f"{_ONE}/snapshot", life.read, "as it is now", _json(shapes.SESSION)),
        _reads(f"{_ONE}/recovery", life.recovery, "everything, with what failed", _json(shapes.DOCUMENT)),
        _reads(f"{_ONE}/models", life.models, "the models of its agent", _json(shapes.SESSION_MODELS)),
        _takes(
            "PATCH", f"{_ONE}/tokens", life.count_tokens, "what was used", TokensBody, _json(shapes.TOKENS)
        ),
        _takes(
            "POST",
            f"{_ONE}/summaries",
            life.summarize,
            "prompts begin with a summary",
            SummaryBody,
            _json(shapes.TURN, 201),
            headers=_ASKS,
        ),
    ]
