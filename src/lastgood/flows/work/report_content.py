"""What a worker's report says, and what follows from it: pointers, ends and events. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from lastgood.core.history import valid_text
from lastgood.core.task_retry import FailTask, FailureClass, RetryTask, class_of, outcome_of
from lastgood.core.transcript import cut
from lastgood.errors import StaleClaim
from lastgood.flows.work.claim_tokens import stored_form
from lastgood.model.attempts import Attempt
from lastgood.model.events import (
    Event,
    ModelAnswered,
    ReasoningStreamed,
    RunWarned,
    TextStreamed,
    ToolAnswered,
    ToolCalled,
)
from lastgood.model.ids import AttemptId, TaskId, TenantId, TurnId
from lastgood.model.sessions import Usage
from lastgood.model.tasks import ClaimState, PointerReport, TaskEnd, TaskMessage, TaskStatus


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """How a worker names its claim. `worker` is None for a principal that is bound to no worker; `user`
    is the user that its token acts as: it must be the owner of the worker that claimed."""

    tenant: TenantId
    task: TaskId
    token: str
    worker: str | None
    user: str = ""

    @property
    def hash(self) -> bytes:
        return stored_form(self.token)


@dataclass(frozen=True, slots=True)
class Completion:
    output: str
    native_session: str | None = None
    work_dir: str | None = None
    usage: Usage = Usage()
    model: str | None = None
    retired_session: str | None = None
    disclosure: str = ""
    delivered: tuple[int, ...] = ()  # steers that the run has taken
    cli_version: str = ""


@dataclass(frozen=True, slots=True)
class RunFailure:
    code: str
    error: str
    native_session: str | None = None
    work_dir: str | None = None
    retired_session: str | None = None
    resume_failed: bool = False
    tool_calls: int = 0
    retry_after_seconds: float | None = None
    cli_version: str = ""


def stale(state: ClaimState) -> StaleClaim:
    task = state.task
    return StaleClaim(
        f"This claim of task {task.id} is not current: the task is {task.status.value}"
        + ("" if task.ended_at is not None else " and was claimed again")
        + "; stop its run",
        task=task.id,
        status=task.status.value,
        cancel=True,
    )


def seen_before(state: ClaimState, native_session: str | None) -> TurnId | None:
    """The last turn that the native session had seen before this run; None: nothing that was committed.

    Only of the session that the claim resumed: a new one has seen nothing, even if it got a transcript.
    """
    decision = state.task.decision if state.attempt is None else state.attempt.decision
    if native_session is None or decision.get("native_session") != native_session:
        return None
    if "catch_up_after" in decision:
        behind = decision["catch_up_after"]
        return None if behind is None else TurnId(behind)
    return None if state.attempt is None else state.attempt.base


def pointer_of_failure(state: ClaimState, failure: RunFailure) -> PointerReport:
    decision = state.task.decision if state.attempt is None else state.attempt.decision
    kind = class_of(failure.code, resume_failed=failure.resume_failed)
    # A run that failed to resume names the session that it was given, even if the worker does not.
    native = failure.native_session
    if native is None and kind is FailureClass.RESUME:
        native = decision.get("native_session")
    resumed = native is not None and native == decision.get("native_session")
    was_dirty = resumed and bool(decision.get("is_dirty"))
    return PointerReport(
        native_session=native and valid_text(native),
        work_dir=failure.work_dir and valid_text(failure.work_dir),
        through=seen_before(state, native),
        outcome=outcome_of(failure.code, resume_failed=failure.resume_failed),
        is_dirty=was_dirty or kind not in (FailureClass.NOT_STARTED, FailureClass.RESUME),
        retires=retires(failure.retired_session, f"{failure.code}, as its worker reported"),
    )


def retires(native_session: str | None, reason: str) -> tuple[tuple[str, str], ...]:
    if native_session is None:
        return ()
    return (
        (
            valid_text(native_session),
            cut(valid_text(reason), 500) or "its worker reported that it is not usable",
        ),
    )


def end_of(
    decided: FailTask | RetryTask, key: ClaimRef, error: tuple[str, str], pointer: PointerReport
) -> TaskEnd:
    match decided:
        case FailTask(reason):
            status = TaskStatus.FAILED
            failed: dict[str, Any] = {"status": status.value, "why": reason}
            words = (error[0], f"{error[1]} ({reason})")
            return TaskEnd(key.task, status, key.hash, pointer, failed, error=words, counts_failure=True)
        case RetryTask(seconds, reason, counts):
            status = TaskStatus.DEFERRED
            report: dict[str, Any] = {"status": status.value, "why": reason, "due_seconds": seconds}
            return TaskEnd(
                key.task,
                status,
                key.hash,
                pointer,
                report,
                why=reason,
                due_seconds=seconds,
                error=error,
                counts_failure=counts,
            )


def usage_event(attempt: AttemptId, usage: Usage, model: str) -> Event:
    return Event(attempt, ModelAnswered(model, usage.input_tokens, usage.output_tokens, usage.cost))


def event_of(attempt: Attempt, message: TaskMessage) -> Event:
    """One event for each message, so that every watcher sees a remote run like a local one."""
    body, id = message.body, attempt.id
    call = body.get("call") or f"call_{message.seq}"
    match body.get("type"):
        case "text":
            return Event(id, TextStreamed(body.get("content") or ""))
        case "thinking":
            return Event(id, ReasoningStreamed(body.get("content") or ""))
        case "tool_use":
            given = body.get("input")
            arguments = given if isinstance(given, str) else orjson.dumps(given or {}).decode()
            return Event(id, ToolCalled(call, body.get("tool") or "", arguments))
        case "tool_result":
            return Event(id, ToolAnswered(call, body.get("tool") or "", body.get("output") or ""))
        case _:
            return Event(id, RunWarned(body.get("content") or "unknown event"))


def bounded(value: Any, most: int) -> Any:
    """Every text in it is valid Unicode without NUL, and cut with a mark."""
    match value:
        case str():
            return cut(valid_text(value), most)
        case dict():
            return {valid_text(str(name)): bounded(one, most) for name, one in value.items()}
        case list():
            return [bounded(one, most) for one in value]
        case _:
            return value
