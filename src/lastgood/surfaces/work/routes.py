"""The routes of the work API, as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from lastgood.model.tasks import TaskStatus
from lastgood.model.tokens import Scope
from lastgood.surfaces.http.app import Contents, Route
from lastgood.surfaces.http.asgi import JSON, Handler
from lastgood.surfaces.http.json_schema import schema_of
from lastgood.surfaces.work import resources as shapes
from lastgood.surfaces.work.schemas import (
    AnswerBody,
    AskBody,
    BindBody,
    ClaimBody,
    CompleteBody,
    ContinueTaskBody,
    DeregisterBody,
    EnrollBody,
    EnrollmentBody,
    FailBody,
    HeartbeatBody,
    MessagesBody,
    NewTaskBody,
    PinBody,
    PinRuntimeBody,
    RegisterBody,
    ReportBody,
    RerunBody,
    RetireBody,
    ShareBody,
    SnapshotBody,
    TokenBody,
    UsageBody,
)
from lastgood.surfaces.work.users import RuntimeHandlers, TaskHandlers, TokenHandlers
from lastgood.surfaces.work.worker_handlers import WorkerHandlers

#: A snapshot of 16 MiB in base64, and the fields beside it.
SNAPSHOT_BYTES = 23 * 1024 * 1024

_TASK = "/api/tasks/{task}"
_CLAIM = "/api/worker/tasks/{task}"
_SCOPE = "/api/scopes/{kind}/{id}/pointers"
_TEXT: dict[str, Any] = {"type": "string"}
_KEY = {
    "idempotency-key": (
        "Requests with the same key and body queue one task; repeats return it",
        {"type": "string", "pattern": r"^[\x21-\x7e]{1,255}$"},
    ),
    "x-user-id": ("End user of this request; recorded with the turn", {"type": "string", "maxLength": 512}),
}
_PAGE = {
    "limit": ("Page size", {"type": "integer", "minimum": 1, "maximum": 200}),
    "cursor": ("X-Next-Cursor of the previous page", {"type": "integer", "minimum": 0}),
}
_CLAIM_QUERY = {"claim_token": ("Token of the claim", _TEXT)}


def _json(schema: Any, status: int = 200) -> dict[int, Contents]:
    return {status: {JSON: schema}}


def _route(
    method: str,
    path: str,
    handler: Handler,
    scope: Scope | None,
    summary: str,
    body: type[BaseModel] | None,
    gives: dict[int, Contents],
    **more: Any,
) -> Route:
    takes = None if body is None else schema_of(body)
    return Route(method, path, handler, scope, summary, takes=takes, gives=gives, **more)


def work_routes(
    worker: WorkerHandlers, tasks: TaskHandlers, runtimes: RuntimeHandlers, tokens: TokenHandlers
) -> Sequence[Route]:
    return [
        *_of_workers(worker),
        *_of_reports(worker),
        *_of_tasks(tasks),
        *_of_task_runs(tasks),
        *_of_runtimes(runtimes),
        *_of_bindings(runtimes),
        *_of_pointers(runtimes),
        *_of_tokens(tokens),
    ]


def _of_workers(worker: WorkerHandlers) -> Sequence[Route]:
    start = "/api/worker"
    listed: list[tuple[str, Handler, str, type[BaseModel], Any]] = [
        ("register", worker.register, "Register a worker and its runtimes", RegisterBody, shapes.REGISTERED),
        ("heartbeat", worker.heartbeat, "Renew live claims of a worker", HeartbeatBody, shapes.BEAT),
        ("deregister", worker.deregister, "Set a worker offline", DeregisterBody, shapes.STATUS),
        ("claim", worker.claim, "Claim tasks, waiting up to 25 s", ClaimBody, shapes.CLAIMED),
    ]
    return [
        *(
            _route("POST", f"{start}/{name}", handler, Scope.WORKER, summary, body, _json(gives))
            for name, handler, summary, body, gives in listed
        ),
        _route(
            "POST",
            f"{start}/enroll",
            worker.enroll,
            None,
            "Exchange a one-time code for a worker token",
            EnrollBody,
            _json(shapes.ENROLLED, 201),
        ),
    ]


def _of_reports(worker: WorkerHandlers) -> Sequence[Route]:
    listed: list[tuple[str, Handler, str, type[BaseModel], Any]] = [
        ("start", worker.start, "Report that a run started", ReportBody, shapes.NEWS),
        ("session", worker.session, "Pin the native session of a run", PinBody, shapes.NEWS),
        ("messages", worker.messages, "Report the activity of a run", MessagesBody, shapes.ACKED),
        ("usage", worker.usage, "Report the usage of a run", UsageBody, shapes.NEWS),
        ("ask", worker.ask, "Ask a person, or poll for the answer", AskBody, shapes.ASKED),
        ("complete", worker.complete, "Commit the turn of a task", CompleteBody, shapes.ENDED),
        ("fail", worker.fail, "Report that a run failed", FailBody, shapes.ENDED),
        ("cancel-ack", worker.acknowledge, "Acknowledge a cancel", ReportBody, shapes.STATUS),
    ]
    return [
        *(
            _route("POST", f"{_CLAIM}/{name}", handler, Scope.WORKER, summary, body, _json(gives))
            for name, handler, summary, body, gives in listed
        ),
        _route(
            "POST",
            f"{_CLAIM}/snapshot",
            worker.upload,
            Scope.WORKER,
            "Upload a snapshot of the working directory",
            SnapshotBody,
            _json(shapes.NEWS),
            limit_bytes=SNAPSHOT_BYTES,
        ),
        _route(
            "GET",
            f"{_CLAIM}/snapshot",
            worker.download,
            Scope.WORKER,
            "Download a snapshot of the working directory",
            None,
            _json(shapes.SNAPSHOT),
            query={**_CLAIM_QUERY, "attempt": ("Attempt that uploaded it", _TEXT)},
        ),
        _route(
            "GET",
            f"{_CLAIM}/status",
            worker.status,
            Scope.WORKER,
            "Get the state of a claim",
            None,
            _json(shapes.CLAIM_STATUS),
            query=_CLAIM_QUERY,
        ),
    ]


def _of_tasks(tasks: TaskHandlers) -> Sequence[Route]:
    one = _json(shapes.TASK.schema)
    queued: dict[int, Contents] = {201: {JSON: shapes.TASK.schema}, 200: {JSON: shapes.TASK.schema}}
    filters = {
        **_PAGE,
        "session": ("Filter by session", _TEXT),
        "agent": ("Filter by agent key", _TEXT),
        "runtime": ("Filter by runtime", _TEXT),
        "status": ("Filter by status", {"enum": [*TaskStatus]}),
    }
    read, write = Scope.READ, Scope.SESSION
    return [
        _route("POST", "/api/tasks", tasks.add, write, "Queue a task", NewTaskBody, queued, headers=_KEY),
        _route("GET", "/api/tasks", tasks.list, read, "List tasks", None, _json(shapes.TASKS), query=filters),
        _route("GET", _TASK, tasks.read, read, "Get a task", None, one, takes_task_token=True),
        _route("POST", f"{_TASK}/cancel", tasks.cancel, write, "Cancel a task", None, one),
        _route(
            "POST",
            f"{_TASK}/rerun",
            tasks.rerun,
            write,
            "Run a task again",
            RerunBody,
            queued,
            may_be_empty=True,
            headers=_KEY,
        ),
        _route(
            "POST",
            f"{_TASK}/continue",
            tasks.continue_held,
            write,
            "Continue a held task",
            ContinueTaskBody,
            one,
            may_be_empty=True,
        ),
    ]


def _of_task_runs(tasks: TaskHandlers) -> Sequence[Route]:
    """What a task has done, and what it asks."""
    read = Scope.READ
    after = {
        "after": ("Number of the last message received", {"type": "integer", "minimum": 0}),
        "limit": ("Page size", {"type": "integer", "minimum": 1, "maximum": 500}),
    }
    return [
        _route(
            "GET",
            f"{_TASK}/messages",
            tasks.messages,
            read,
            "List the messages of the newest run of a task",
            None,
            _json(shapes.MESSAGES),
            query=after,
        ),
        _route(
            "GET",
            f"{_TASK}/diff",
            tasks.diff,
            read,
            "Get the changes of a task in its working directory",
            None,
            _json(shapes.DIFF),
        ),
        _route(
            "GET",
            f"{_TASK}/questions",
            tasks.questions,
            read,
            "List the pending questions of a task",
            None,
            _json(shapes.QUESTIONS),
        ),
        _route(
            "POST",
            f"{_TASK}/questions/{{question}}",
            tasks.answer,
            Scope.APPROVE,
            "Answer a question of a task",
            AnswerBody,
            _json(shapes.QUESTION.schema),
        ),
    ]


def _of_runtimes(runtimes: RuntimeHandlers) -> Sequence[Route]:
    one = "/api/runtimes/{runtime}"
    read, write = Scope.READ, Scope.SESSION
    return [
        _route("GET", "/api/runtimes", runtimes.list, read, "List runtimes", None, _json(shapes.RUNTIMES)),
        _route(
            "GET",
            "/api/runtimes/explain",
            runtimes.explain,
            read,
            "Explain what the next claim of a session would resume",
            None,
            _json(shapes.EXPLANATION),
            query={
                "session": ("Session to explain", _TEXT),
                "runtime": ("Explain it for this runtime instead of its own", _TEXT),
            },
        ),
        _route("GET", one, runtimes.read, read, "Get a runtime", None, _json(shapes.RUNTIME.schema)),
        _route(
            "PATCH", one, runtimes.share, write, "Share a runtime", ShareBody, _json(shapes.RUNTIME.schema)
        ),
        _route("DELETE", one, runtimes.remove, write, "Remove a runtime", None, _json(shapes.STATUS)),
    ]


def _of_bindings(runtimes: RuntimeHandlers) -> Sequence[Route]:
    read, write = Scope.READ, Scope.SESSION
    return [
        _route(
            "PUT",
            "/api/agents/{agent}/runtime",
            runtimes.bind,
            write,
            "Bind an agent to a runtime",
            BindBody,
            _json({"type": "object"}),
        ),
        _route(
            "GET",
            "/api/agents/{agent}/runtime",
            runtimes.binding,
            read,
            "Get the runtime of an agent",
            None,
            _json(shapes.BINDING.schema),
        ),
        _route(
            "PATCH",
            "/api/sessions/{session}/runtime",
            runtimes.pin,
            write,
            "Bind a session to a runtime",
            PinRuntimeBody,
            _json(shapes.PINNED),
        ),
    ]


def _of_pointers(runtimes: RuntimeHandlers) -> Sequence[Route]:
    of_runtime = {"runtime": ("Only this runtime", _TEXT)}
    return [
        _route(
            "GET",
            _SCOPE,
            runtimes.pointers,
            Scope.READ,
            "List native sessions of a scope, and whether they would be resumed",
            None,
            _json(shapes.POINTERS),
            query={**of_runtime, "agent": ("Agent key", _TEXT)},
        ),
        _route(
            "POST",
            f"{_SCOPE}/retire",
            runtimes.retire,
            Scope.SESSION,
            "Retire a native session",
            RetireBody,
            _json(shapes.STATUS),
        ),
    ]


def _of_tokens(tokens: TokenHandlers) -> Sequence[Route]:
    return [
        _route(
            "POST",
            "/api/enrollments",
            tokens.enroll,
            Scope.SESSION,
            "Create a one-time code for a new worker",
            EnrollmentBody,
            _json(shapes.ENROLLMENT, 201),
            may_be_empty=True,
        ),
        _route(
            "POST",
            "/api/tokens",
            tokens.create,
            Scope.SESSION,
            "Create a token",
            TokenBody,
            _json(shapes.TOKEN.schema, 201),
        ),
        _route("GET", "/api/tokens", tokens.list, Scope.SESSION, "List tokens", None, _json(shapes.TOKENS)),
        _route(
            "DELETE",
            "/api/tokens/{token}",
            tokens.revoke,
            Scope.SESSION,
            "Revoke a token",
            None,
            _json(shapes.TOKEN.schema),
        ),
    ]
