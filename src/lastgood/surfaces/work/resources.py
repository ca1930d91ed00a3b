"""The nouns of the work API, each defined once."""

from __future__ import annotations

from typing import Any

from lastgood.core.runtime_choice import is_offline
from lastgood.flows.work.tasks import ShownTask
from lastgood.model.runtimes import AgentBinding, OnAgentChange, OnDirty, OnOffline, Runtime
from lastgood.model.sessions import ScopeKind
from lastgood.model.tasks import Pointer, PointerOutcome, Question, QuestionStatus, TaskMessage, TaskStatus
from lastgood.model.tokens import Scope, Token
from lastgood.surfaces.http.json_schema import COUNT, TEXT, object_of, or_null
from lastgood.surfaces.http.resource import (
    ANY,
    FLAG,
    NUMBER,
    Resource,
    ResourceField,
    list_of,
    optional,
    timestamp,
)


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else timestamp(seconds)


SCOPE = object_of({"kind": {"enum": [*ScopeKind]}, "id": TEXT})


def _error(shown: ShownTask) -> dict[str, Any] | None:
    task = shown.task
    if task.error_code is None:
        return None
    return {"code": task.error_code, "message": task.error_message or ""}


def _directive(shown: ShownTask) -> dict[str, Any]:
    directive = shown.task.directive
    return {"fresh": directive.fresh, "rerun_of": directive.rerun_of, "note": directive.note}


TASK: Resource[ShownTask] = Resource(
    ResourceField("id", TEXT, lambda shown: shown.task.id),
    ResourceField("number", COUNT, lambda shown: shown.task.number),
    ResourceField("status", {"enum": [*TaskStatus]}, lambda shown: shown.task.status.value),
    ResourceField("why", TEXT, lambda shown: shown.why),
    ResourceField("agent", TEXT, lambda shown: shown.task.agent_key),
    ResourceField(
        "scope", SCOPE, lambda shown: {"kind": shown.task.scope.kind.value, "id": shown.task.scope.id}
    ),
    ResourceField("session_id", TEXT, lambda shown: shown.task.session),
    ResourceField("turn", TEXT, lambda shown: shown.task.turn),
    ResourceField("runtime_id", TEXT, lambda shown: shown.task.runtime),
    ResourceField("priority", {"type": "integer"}, lambda shown: shown.task.priority),
    ResourceField("directive", ANY, _directive),
    ResourceField("held", FLAG, lambda shown: shown.task.held),
    ResourceField("claims", COUNT, lambda shown: shown.task.claims),
    ResourceField("failures", COUNT, lambda shown: shown.task.failures),
    ResourceField("lost_claims", COUNT, lambda shown: shown.task.lost_claims),
    ResourceField("created_at", TEXT, lambda shown: timestamp(shown.task.created_at)),
    optional("worker", TEXT, lambda shown: shown.task.worker),
    optional("attempt", TEXT, lambda shown: shown.task.attempt),
    optional("cli_version", TEXT, lambda shown: shown.task.cli_version or None),
    optional("due_at", TEXT, lambda shown: _moment(shown.task.due_at)),
    optional("expires_at", TEXT, lambda shown: _moment(shown.task.expires_at)),
    optional("lease_until", TEXT, lambda shown: _moment(shown.task.lease_until)),
    optional("deadline_at", TEXT, lambda shown: _moment(shown.task.deadline_at)),
    optional("cancel_acknowledged", FLAG, lambda shown: shown.task.cancel_acknowledged or None),
    optional("decision", ANY, lambda shown: shown.task.decision or None),
    optional("late_output", TEXT, lambda shown: shown.task.late_output),
    optional("error", object_of({"code": TEXT, "message": TEXT}), _error),
    optional("ended_at", TEXT, lambda shown: _moment(shown.task.ended_at)),
    # Of a request that was sent before.
    optional("replayed", FLAG),
)

RUNTIME: Resource[Runtime] = Resource(
    ResourceField("id", TEXT, lambda runtime: runtime.id),
    ResourceField("name", TEXT, lambda runtime: runtime.name),
    ResourceField("provider", TEXT, lambda runtime: runtime.identity.provider),
    ResourceField("profile", TEXT, lambda runtime: runtime.profile),
    ResourceField("account", TEXT, lambda runtime: runtime.identity.account),
    ResourceField("worker_id", TEXT, lambda runtime: runtime.identity.worker),
    ResourceField("owner", TEXT, lambda runtime: runtime.owner),
    ResourceField("shared_with", list_of(TEXT), lambda runtime: list(runtime.shared_with)),
    ResourceField("online", FLAG, lambda runtime: not is_offline(runtime)),
    ResourceField("seen_seconds_ago", NUMBER, lambda runtime: round(max(runtime.seen_seconds_ago, 0.0), 1)),
    ResourceField("status", TEXT, lambda runtime: runtime.status),
    ResourceField("cli_version", TEXT, lambda runtime: runtime.cli_version),
    ResourceField("steerable", FLAG, lambda runtime: runtime.steerable),
    ResourceField("enforces", or_null(TEXT), lambda runtime: runtime.enforces.value or None),
    ResourceField("created_at", TEXT, lambda runtime: timestamp(runtime.created_at)),
)

BINDING: Resource[AgentBinding] = Resource(
    ResourceField("agent", TEXT, lambda binding: binding.agent_key),
    ResourceField("runtime_id", TEXT, lambda binding: binding.runtime),
    ResourceField("offline", {"enum": [*OnOffline]}, lambda binding: binding.offline.value),
    ResourceField("max_wait_seconds", NUMBER, lambda binding: binding.max_wait_seconds),
    ResourceField("deadline_seconds", NUMBER, lambda binding: binding.deadline_seconds),
    ResourceField("max_running", or_null(COUNT), lambda binding: binding.max_running),
    ResourceField("published", FLAG, lambda binding: binding.published),
    ResourceField("bound_by", TEXT, lambda binding: binding.bound_by),
    ResourceField(
        "on_agent_change", {"enum": [*OnAgentChange]}, lambda binding: binding.on_agent_change.value
    ),
    ResourceField("on_dirty", {"enum": [*OnDirty]}, lambda binding: binding.on_dirty.value),
    optional("moved", COUNT),
)

POINTER: Resource[Pointer] = Resource(
    ResourceField("number", COUNT, lambda pointer: pointer.number),
    ResourceField("attempt", TEXT, lambda pointer: pointer.attempt),
    ResourceField("task", TEXT, lambda pointer: pointer.task),
    ResourceField("native_session", or_null(TEXT), lambda pointer: pointer.native_session),
    ResourceField(
        "runtime_id", or_null(TEXT), lambda pointer: pointer.runtime.id if pointer.runtime else None
    ),
    ResourceField("worker", TEXT, lambda pointer: pointer.worker),
    ResourceField("work_dir", or_null(TEXT), lambda pointer: pointer.work_dir),
    ResourceField("through", or_null(TEXT), lambda pointer: pointer.through),
    ResourceField("outcome", {"enum": [*PointerOutcome]}, lambda pointer: pointer.outcome.value),
    ResourceField("dirty", FLAG, lambda pointer: pointer.is_dirty),
    optional("retired", TEXT, lambda pointer: pointer.retired),
)

QUESTION: Resource[Question] = Resource(
    ResourceField("id", TEXT, lambda question: question.id),
    ResourceField("task", TEXT, lambda question: question.task),
    ResourceField("session_id", TEXT, lambda question: question.session),
    ResourceField("status", {"enum": [*QuestionStatus]}, lambda question: question.status.value),
    ResourceField("question", ANY, lambda question: question.body),
    ResourceField("deadline_at", TEXT, lambda question: timestamp(question.deadline_at)),
    optional("answer", ANY, lambda question: question.answer),
    optional("answered_by", TEXT, lambda question: question.answered_by or None),
)

MESSAGE: Resource[TaskMessage] = Resource(
    ResourceField("seq", COUNT, lambda message: message.seq),
    ResourceField("created_at", TEXT, lambda message: timestamp(message.created_at)),
    ResourceField("message", ANY, lambda message: message.body),
)

TOKEN: Resource[Token] = Resource(
    ResourceField("id", TEXT, lambda token: token.id),
    ResourceField("name", TEXT, lambda token: token.name),
    ResourceField("user", TEXT, lambda token: token.user),
    ResourceField("worker_id", or_null(TEXT), lambda token: token.worker),
    ResourceField("scopes", list_of({"enum": [*Scope]}), lambda token: sorted(token.scopes)),
    ResourceField("created_at", TEXT, lambda token: timestamp(token.created_at)),
    optional("expires_at", TEXT, lambda token: _moment(token.expires_at)),
    optional("revoked_at", TEXT, lambda token: _moment(token.revoked_at)),
    optional("token", TEXT),
)

TASKS = list_of(TASK.schema)
RUNTIMES = list_of(RUNTIME.schema)
POINTERS = object_of({"session_id": TEXT, "pointers": list_of(POINTER.schema), "decisions": list_of(ANY)})
QUESTIONS = list_of(QUESTION.schema)
MESSAGES = list_of(MESSAGE.schema)
TOKENS = list_of(TOKEN.schema)
STATUS = object_of({"status": TEXT})
EXPLANATION = object_of(
    {"session_id": TEXT, "runtime": RUNTIME.schema, "chosen": TEXT, "decision": ANY, "content": ANY}
)
DIFF = object_of({"task": TEXT, "snapshot": or_null(ANY)})
ENROLLMENT = object_of({"code": TEXT, "worker_id": TEXT, "expires_at": TEXT})
ENROLLED = object_of({"token": TEXT, "worker_id": TEXT, "tenant": TEXT})
PINNED = object_of({"session_id": TEXT, "runtime_id": or_null(TEXT), "moved": COUNT})

REGISTERED = object_of(
    {
        "protocol": COUNT,
        "worker": object_of({"epoch": COUNT, "took_over": FLAG}),
        "runtimes": list_of(object_of({"id": TEXT, "name": TEXT, "provider": TEXT})),
    }
)
BEAT = object_of(
    {
        "renewed": list_of(TEXT),
        "lost": list_of(TEXT),
        "cancel": list_of(TEXT),
        "unknown_runtimes": list_of(TEXT),
        "replaced": FLAG,
    }
)
CLAIMED = object_of({"tasks": list_of(ANY)})
#: Every answer to a report may say that the run must stop, and carry steers for it.
_NEWS = {"cancel": FLAG, "steers": list_of(object_of({"id": COUNT, "text": TEXT}))}
NEWS = object_of({}, _NEWS)
ACKED = object_of({"acked_seq": COUNT}, _NEWS)
ENDED = object_of({"status": TEXT}, {"turn": TEXT, "seq": COUNT, "why": TEXT, "due_seconds": NUMBER})
CLAIM_STATUS = object_of({"status": TEXT, "current": FLAG}, _NEWS)
ASKED = object_of({"question": object_of({"id": TEXT, "status": TEXT}, {"answer": ANY})})
SNAPSHOT = object_of({"attempt": TEXT, "kind": TEXT, "summary": ANY, "body": TEXT})
