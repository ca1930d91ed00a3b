"""Tasks, questions, pointers and snapshots to rows and back, the same for both databases."""

from __future__ import annotations

from typing import Any

import orjson

from lastgood.model.attempts import TurnRequest
from lastgood.model.call_options import options_as_json
from lastgood.model.ids import AttemptId, SessionId, TaskId, TenantId, TurnId
from lastgood.model.messages import encode
from lastgood.model.runtimes import RuntimeIdentity
from lastgood.model.sessions import ScopeKind, TaskScope
from lastgood.model.tasks import (
    Directive,
    NewTask,
    Pointer,
    PointerOutcome,
    Question,
    QuestionStatus,
    Snapshot,
    SnapshotSummary,
    Task,
    TaskMessage,
    TaskStatus,
)
from lastgood.store.checksums import request_checksum
from lastgood.store.rows import Row, writable


def as_text(value: Any) -> str:
    return as_bytes(value).decode()


def as_bytes(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(_writable_json(value))


def _writable_json(value: Any) -> Any:
    match value:
        case str():
            return writable(value)
        case dict():
            return {_writable_json(key): _writable_json(item) for key, item in value.items()}
        case list() | tuple():
            return [_writable_json(item) for item in value]
        case _:
            return value


def to_task(row: Row) -> Task:
    (
        n, id, tenant, session, turn, agent_key, scope_kind, scope_id, runtime, status, priority, directive,
        created_by, user, why, held, ephemeral, due_at, expires_at, deadline_seconds, worker, attempt,
        claims, failures, lease_until, deadline_at, cancel_seen, decision, late_output, error_code,
        error_message, created_at, ended_at, lost_claims, tried_seconds, cli_version,
    ) = row  # fmt: skip
    return Task(
        number=n,
        id=TaskId(id),
        tenant=TenantId(tenant),
        session=SessionId(session),
        turn=TurnId(turn),
        agent_key=agent_key,
        scope=TaskScope(ScopeKind(scope_kind), scope_id),
        runtime=runtime,
        status=TaskStatus(status),
        priority=priority,
        directive=Directive(**orjson.loads(directive)),
        created_by=created_by,
        user=user,
        why=why,
        held=bool(held),
        ephemeral=bool(ephemeral),
        due_at=due_at,
        expires_at=expires_at,
        deadline_seconds=deadline_seconds,
        worker=worker,
        attempt=attempt,
        claims=claims,
        failures=failures,
        lease_until=lease_until,
        deadline_at=deadline_at,
        cancel_acknowledged=bool(cancel_seen),
        decision=orjson.loads(decision),
        late_output=late_output,
        error_code=error_code,
        error_message=error_message,
        created_at=created_at,
        ended_at=ended_at,
        lost_claims=lost_claims,
        tried_seconds=tried_seconds or 0.0,
        cli_version=cli_version or "",
    )


def of_new_task(new: NewTask) -> dict[str, Any]:
    directive = new.directive
    plain = {"fresh": directive.fresh, "rerun_of": directive.rerun_of, "note": directive.note}
    return {
        "id": new.id,
        "tenant": new.tenant,
        "session": new.session,
        "turn": new.turn,
        "agent_key": new.agent_key,
        "scope_kind": new.scope.kind.value,
        "scope_id": new.scope.id,
        "runtime": new.runtime,
        "priority": new.priority,
        "directive": as_text({name: value for name, value in plain.items() if value}),
        "created_by": new.created_by,
        "user": new.user,
        "ephemeral": new.ephemeral,
        "max_wait": new.max_wait_seconds,
        "deadline": new.deadline_seconds,
    }


def of_request(request: TurnRequest) -> dict[str, Any]:
    """As `of_begin` has it: one row, whoever stores it."""
    options = options_as_json(request.options)
    plain = {
        "turn": request.turn,
        "tenant": request.tenant,
        "session": request.session,
        "kind": request.kind.value,
        "key": request.key,
        "fingerprint": request.fingerprint,
        "caller": request.caller,
        "user": request.user,
        "override": request.model,
        "asked_agent_key": request.agent_key,
        "after": request.edit.after if request.edit else None,
        "replaces": request.edit.replaces if request.edit else None,
        "expects": None if request.edit or request.condition is None else request.condition.head or "",
        "options": as_text(options) if options else None,
        "on_leave": request.on_leave.value,
        "durable": request.durable,
        "input": encode(request.messages or ()),
    }
    return plain | {"checksum": request_checksum(plain)}


def to_question(row: Row) -> Question:
    id, tenant, task, attempt, session, body, status, answer, answered_by, deadline_at, created_at = row
    return Question(
        id=id,
        tenant=TenantId(tenant),
        task=TaskId(task),
        attempt=AttemptId(attempt),
        session=SessionId(session),
        body=orjson.loads(body),
        status=QuestionStatus(status),
        answer=orjson.loads(answer) if answer is not None else None,
        answered_by=answered_by,
        deadline_at=deadline_at,
        created_at=created_at,
    )


def to_pointer(row: Row) -> Pointer:
    (
        n, attempt, task, native_session, runtime, worker, provider, account, format, work_dir, base,
        through, outcome, agent_digest, dirty, retired,
    ) = row  # fmt: skip
    return Pointer(
        number=n,
        attempt=AttemptId(attempt),
        task=TaskId(task),
        native_session=native_session,
        runtime=RuntimeIdentity(runtime, worker, provider, account, format) if runtime else None,
        work_dir=work_dir,
        worker=worker,
        base=base,
        through=through,
        outcome=PointerOutcome(outcome),
        agent_digest=agent_digest,
        is_dirty=bool(dirty),
        retired=retired,
    )


def to_snapshot(row: Row) -> Snapshot:
    attempt, tenant, session, turn, kind, summary, body, created_at = row
    return Snapshot(
        AttemptId(attempt),
        TenantId(tenant),
        SessionId(session),
        TurnId(turn),
        kind,
        orjson.loads(summary),
        bytes(body),
        created_at,
    )


def to_snapshot_summary(row: Row) -> SnapshotSummary:
    attempt, session, turn, kind, summary, created_at, size = row
    return SnapshotSummary(
        AttemptId(attempt), SessionId(session), TurnId(turn), kind, orjson.loads(summary), size, created_at
    )


def to_message(row: Row) -> TaskMessage:
    seq, body, created_at = row
    return TaskMessage(seq, orjson.loads(bytes(body)), created_at)
