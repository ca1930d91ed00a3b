"""The nouns of the session API, each defined once: one list of fields gives its JSON and its JSON schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lastgood.core.approval import shown
from lastgood.core.history import open_calls
from lastgood.core.session_rules import modes_of, permissions_of
from lastgood.flows.session_export import rules_as_json
from lastgood.flows.task_queue import QueuedTask
from lastgood.flows.turn_handle import QueuedTurn
from lastgood.model.agents import AgentSpec, Permissions
from lastgood.model.attempts import Attempt, AttemptStatus, Step
from lastgood.model.messages import Message, as_json
from lastgood.model.queue import Queued, QueueKind
from lastgood.model.rules import RuleLayer
from lastgood.model.sessions import Branch, Session, SessionStatus, Turn, TurnKind, Usage
from lastgood.model.tasks import TaskStatus
from lastgood.surfaces.http.error_responses import code_fields
from lastgood.surfaces.http.json_schema import COUNT, TEXT, object_of, or_null
from lastgood.surfaces.http.resource import (
    ANY,
    FLAG,
    NUMBER,
    Resource,
    ResourceField,
    list_of,
    timestamp,
)
from lastgood.surfaces.http.resource import optional as _optional

# -- messages and usage ------------------------------------------------------------------

MESSAGE = object_of(
    {"role": {"enum": ["system", "user", "assistant", "tool"]}, "content": {"type": ["string", "array"]}},
    {"tool_calls": {"type": "array"}, "tool_call_id": TEXT, "reasoning": TEXT, "turn": TEXT},
)


def message_json(message: Message) -> dict[str, Any]:
    """Without the parts of the reasoning that only its provider can read."""
    plain = as_json(message)
    if message.reasoning is not None:
        plain["reasoning"] = message.reasoning.text
    return plain


USAGE: Resource[Usage] = Resource(
    ResourceField("input_tokens", COUNT, lambda usage: usage.input_tokens),
    ResourceField("output_tokens", COUNT, lambda usage: usage.output_tokens),
    ResourceField("cost", NUMBER, lambda usage: usage.cost),
)


# -- sessions ----------------------------------------------------------------------------

RULES = object_of({"allow": list_of(TEXT), "ask": list_of(TEXT), "deny": list_of(TEXT)})

RULE_LAYER: Resource[RuleLayer] = Resource(
    ResourceField("set_by", {"enum": ["session", "approve", "admin"]}, lambda layer: layer.set_by.value),
    ResourceField("token", TEXT, lambda layer: layer.token),
    _optional("permissions", RULES, lambda layer: _permissions_json(layer.permissions)),
    _optional("safety_policy", TEXT, lambda layer: layer.safety.value if layer.safety else None),
)


def _permissions_json(permissions: Permissions | None) -> dict[str, Any] | None:
    return None if permissions in (None, Permissions()) else rules_as_json(permissions)


def _effective_permissions(session: Session) -> dict[str, Any] | None:
    permissions = permissions_of(session.rules) if session.rules else None
    return None if permissions is None else rules_as_json(permissions)


def _effective_safety(session: Session) -> str | None:
    modes = modes_of(session.rules) if session.rules else ()
    return modes[0].value if modes else None


def _fork_json(session: Session) -> dict[str, Any] | None:
    fork = session.forked_from
    return None if fork is None else {"session": fork[0], "turn": fork[1]}


def _scope_json(session: Session) -> dict[str, str] | None:
    scope = session.scope
    return None if scope is None else {"kind": scope.kind.value, "id": scope.id}


SESSION: Resource[Session] = Resource(
    ResourceField("id", TEXT, lambda session: session.id),
    ResourceField("title", TEXT, lambda session: session.title),
    ResourceField("agent", TEXT, lambda session: session.agent_key),
    ResourceField("agent_key", TEXT, lambda session: session.agent_key),
    ResourceField("model", or_null(TEXT), lambda session: session.model),
    ResourceField("working_dir", or_null(TEXT), lambda session: session.working_dir),
    ResourceField("created_at", TEXT, lambda session: timestamp(session.created_at)),
    ResourceField("updated_at", TEXT, lambda session: timestamp(session.updated_at)),
    ResourceField("head", or_null(TEXT), lambda session: session.head.turn if session.head else None),
    ResourceField("turns", COUNT, lambda session: session.turns),
    ResourceField("streaming", FLAG, lambda session: session.status is SessionStatus.RUNNING),
    ResourceField("status", {"enum": [*SessionStatus]}, lambda session: session.status.value),
    ResourceField("attempt", or_null(TEXT), lambda session: session.attempt),
    ResourceField("input_tokens", COUNT, lambda session: session.usage.input_tokens),
    ResourceField("output_tokens", COUNT, lambda session: session.usage.output_tokens),
    ResourceField("cost", NUMBER, lambda session: session.usage.cost),
    ResourceField("last_event_seq", COUNT, lambda session: session.last_event_seq),
    ResourceField("starred", FLAG, lambda session: session.starred),
    ResourceField("metadata", ANY, lambda session: session.metadata),
    # What holds; below `rules`, which part of it was set by whom.
    _optional("permissions", RULES, _effective_permissions),
    _optional("safety_policy", TEXT, _effective_safety),
    _optional(
        "rules", list_of(RULE_LAYER.schema), lambda session: [*map(RULE_LAYER.json, session.rules)] or None
    ),
    _optional("forked_from", ANY, _fork_json),
    _optional("conversation", TEXT, lambda session: session.conversation),
    _optional("owner", TEXT, lambda session: session.owner or None),
    _optional("scope", object_of({"kind": TEXT, "id": TEXT}), _scope_json),
    # Of its newest task. `runtime_pinned`: it stays there, whatever its agent is bound to.
    _optional("runtime", TEXT, lambda session: session.runtime_id),
    _optional("runtime_pinned", FLAG, lambda session: session.runtime_pinned or None),
    _optional("messages", list_of(MESSAGE)),
    _optional("num_messages", COUNT),
    _optional("damage", TEXT),
)


# -- turns, attempts, branches -----------------------------------------------------------

TURN: Resource[Turn] = Resource(
    ResourceField("id", TEXT, lambda turn: turn.id),
    ResourceField("seq", COUNT, lambda turn: turn.seq),
    ResourceField("parent", or_null(TEXT), lambda turn: turn.parent),
    ResourceField("attempt", TEXT, lambda turn: turn.attempt),
    ResourceField("kind", {"enum": [*TurnKind]}, lambda turn: turn.kind.value),
    ResourceField("messages", list_of(MESSAGE), lambda turn: [*map(message_json, turn.messages)]),
    ResourceField("inputs", COUNT, lambda turn: turn.inputs),
    ResourceField("agent_key", TEXT, lambda turn: turn.agent_key),
    ResourceField("agent_digest", TEXT, lambda turn: turn.agent_digest),
    ResourceField("model", TEXT, lambda turn: turn.model),
    ResourceField("usage", USAGE.schema, lambda turn: USAGE.json(turn.usage)),
    ResourceField("decision", ANY, lambda turn: turn.decision),
    ResourceField("created_at", TEXT, lambda turn: timestamp(turn.created_at)),
    _optional("user", TEXT, lambda turn: turn.user or None),
    _optional("damage", TEXT, lambda turn: turn.damage or None),
    _optional(
        "open_calls", list_of(TEXT), lambda turn: [call.id for call in open_calls(turn.messages)] or None
    ),
    _optional("status", {"const": "added"}),
)


def _attempt_error(attempt: Attempt) -> dict[str, Any] | None:
    if attempt.error_code is None:
        return None
    return code_fields(attempt.error_code) | {"message": attempt.error_message or ""}


STEP: Resource[Step] = Resource(
    ResourceField("kind", TEXT, lambda step: step.kind.value),
    ResourceField("message", MESSAGE, lambda step: message_json(step.message)),
    ResourceField("usage", USAGE.schema, lambda step: USAGE.json(step.usage)),
    _optional("within", TEXT, lambda step: step.within or None),
    _optional("full", TEXT, lambda step: step.full),
    _optional("hook", TEXT, lambda step: step.hook or None),
    _optional("ruling", TEXT, lambda step: step.ruling or None),
    _optional("reason", TEXT, lambda step: step.reason or None),
)

ATTEMPT: Resource[Attempt] = Resource(
    ResourceField("id", TEXT, lambda attempt: attempt.id),
    ResourceField("session", TEXT, lambda attempt: attempt.session),
    ResourceField("turn", TEXT, lambda attempt: attempt.turn),
    ResourceField("number", COUNT, lambda attempt: attempt.number),
    ResourceField("status", {"enum": [*AttemptStatus]}, lambda attempt: attempt.status.value),
    ResourceField("base", or_null(TEXT), lambda attempt: attempt.base),
    ResourceField("fence", COUNT, lambda attempt: attempt.fence),
    ResourceField("agent_key", TEXT, lambda attempt: attempt.agent_key),
    ResourceField("agent_digest", TEXT, lambda attempt: attempt.agent_digest),
    ResourceField("model", TEXT, lambda attempt: attempt.model),
    ResourceField("decision", ANY, lambda attempt: attempt.decision),
    ResourceField("started_at", TEXT, lambda attempt: timestamp(attempt.started_at)),
    _optional(
        "ended_at",
        TEXT,
        lambda attempt: None if attempt.ended_at is None else timestamp(attempt.ended_at),
    ),
    _optional("error", object_of({"code": TEXT, "message": TEXT}, {"kind": TEXT}), _attempt_error),
    # Of an edit: the head that its commit replaces.
    _optional("replaces", TEXT, lambda attempt: attempt.head if attempt.base != attempt.head else None),
    _optional("continues", TEXT, lambda attempt: attempt.continues),
    # Of a turn on a runtime: the task that a worker has claimed.
    _optional("task", TEXT, lambda attempt: attempt.task),
    # Of the agent CLI; "(untested)" at its end if its kind was not tested with it.
    _optional("cli_version", TEXT, lambda attempt: attempt.cli_version or None),
    _optional("question", ANY, lambda attempt: None if attempt.question is None else shown(attempt.question)),
    _optional("usage", USAGE.schema),
    _optional("steps", list_of(STEP.schema)),
)

#: Instead of an attempt, until a worker has claimed the turn's task.
QUEUED_TURN: Resource[QueuedTurn] = Resource(
    ResourceField("task", TEXT, lambda queued: queued.task.id),
    ResourceField("session", TEXT, lambda queued: queued.task.session),
    ResourceField("turn", TEXT, lambda queued: queued.task.turn),
    ResourceField("status", {"enum": [*TaskStatus]}, lambda queued: queued.task.status.value),
    ResourceField("why", TEXT, lambda queued: queued.why),
    ResourceField("runtime", TEXT, lambda queued: queued.task.runtime),
    ResourceField("agent_key", TEXT, lambda queued: queued.task.agent_key),
    ResourceField("created_at", TEXT, lambda queued: timestamp(queued.task.created_at)),
)

BRANCH: Resource[Branch] = Resource(
    ResourceField("head", TEXT, lambda branch: branch.head),
    ResourceField("turns", COUNT, lambda branch: branch.seq),
    ResourceField("after", or_null(TEXT), lambda branch: branch.after),
    ResourceField("replaced_by", TEXT, lambda branch: branch.replaced_by),
    ResourceField("created_at", TEXT, lambda branch: timestamp(branch.created_at)),
)


# -- queue entries and agents ------------------------------------------------------------

QUEUE_ENTRY: Resource[Queued] = Resource(
    ResourceField("id", COUNT, lambda entry: entry.number),
    ResourceField("turn", TEXT, lambda entry: entry.turn),
    ResourceField("kind", {"enum": [*QueueKind]}, lambda entry: entry.kind.value),
    ResourceField("messages", list_of(MESSAGE), lambda entry: [*map(message_json, entry.messages)]),
    ResourceField("failures", COUNT, lambda entry: entry.failures),
    ResourceField("created_at", TEXT, lambda entry: timestamp(entry.created_at)),
    _optional("attempt", TEXT, lambda entry: entry.attempt),
    _optional("parked", TEXT, lambda entry: entry.parked),
    # Of a session on a runtime.
    _optional("task", TEXT),
    _optional("why", TEXT),
)

#: The same shape. A task that is held after a cancel is parked.
TASK_ENTRY: Resource[QueuedTask] = Resource(
    ResourceField("id", COUNT, lambda entry: entry.number),
    ResourceField("turn", TEXT, lambda entry: entry.task.turn),
    ResourceField("kind", {"enum": [*QueueKind]}, lambda _: QueueKind.FOLLOWUP.value),
    ResourceField("messages", list_of(MESSAGE), lambda entry: [*map(message_json, entry.messages)]),
    ResourceField("failures", COUNT, lambda entry: entry.task.failures),
    ResourceField("created_at", TEXT, lambda entry: timestamp(entry.task.created_at)),
    ResourceField("task", TEXT, lambda entry: entry.task.id),
    ResourceField("why", TEXT, lambda entry: entry.why),
    _optional("attempt", TEXT, lambda entry: entry.task.attempt),
    _optional("parked", TEXT, lambda entry: entry.why if entry.task.held else None),
)


@dataclass(frozen=True, slots=True)
class ListedAgent:
    """`agent` is None if it cannot be loaded; `error` is the code that says why."""

    key: str
    agent: AgentSpec | None
    error: str | None = None


def _commands(listed: ListedAgent) -> dict[str, dict[str, str]] | None:
    """As docker-agent's clients decode them."""
    commands = listed.agent.commands if listed.agent else ()
    return {command.name: {"description": command.description} for command in commands} or None


AGENT: Resource[ListedAgent] = Resource(
    ResourceField("name", TEXT, lambda listed: listed.key),
    ResourceField("description", TEXT, lambda listed: listed.agent.description if listed.agent else ""),
    ResourceField("multi", FLAG, lambda listed: bool(listed.agent and listed.agent.members)),
    _optional("welcome_message", TEXT, lambda listed: listed.agent and listed.agent.welcome_message),
    _optional("model", TEXT, lambda listed: listed.agent and listed.agent.model),
    _optional("commands", ANY, _commands),
    _optional("error", TEXT, lambda listed: listed.error),
    # Only of one agent, read by its key.
    _optional("digest", TEXT),
    _optional("decision", ANY),
    _optional("agents", list_of(ANY)),
    _optional("warnings", list_of(TEXT)),
)
