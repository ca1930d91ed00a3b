"""Stored tasks and runtimes in the models of the client."""

from __future__ import annotations

from datetime import UTC, datetime

from lastgood.client.work_models import (
    BindingInfo,
    QuestionInfo,
    RuntimeInfo,
    TaskInfo,
    TaskMessageInfo,
)
from lastgood.core.runtime_choice import is_offline
from lastgood.flows.work.tasks import ShownTask
from lastgood.model.runtimes import AgentBinding, Runtime
from lastgood.model.tasks import Question, TaskMessage


def task_info(shown: ShownTask) -> TaskInfo:
    task = shown.task
    return TaskInfo(
        id=task.id,
        number=task.number,
        status=task.status.value,
        why=shown.why,
        agent=task.agent_key,
        scope=(task.scope.kind.value, task.scope.id),
        session=task.session,
        turn=task.turn,
        runtime=task.runtime,
        priority=task.priority,
        is_fresh=task.directive.fresh,
        rerun_of=task.directive.rerun_of,
        note=task.directive.note,
        is_held=task.held,
        worker=task.worker,
        attempt=task.attempt,
        claims=task.claims,
        failures=task.failures,
        lost_claims=task.lost_claims,
        cli_version=task.cli_version or None,
        decision=task.decision,
        late_output=task.late_output,
        error_code=task.error_code,
        error_message=task.error_message,
        due_at=_moment(task.due_at),
        expires_at=_moment(task.expires_at),
        deadline_at=_moment(task.deadline_at),
        created_at=datetime.fromtimestamp(task.created_at, UTC),
        ended_at=_moment(task.ended_at),
    )


def question_info(question: Question) -> QuestionInfo:
    return QuestionInfo(
        id=question.id,
        task=question.task,
        status=question.status.value,
        body=question.body,
        answer=question.answer,
        deadline_at=datetime.fromtimestamp(question.deadline_at, UTC),
    )


def runtime_info(runtime: Runtime) -> RuntimeInfo:
    return RuntimeInfo(
        id=runtime.id,
        name=runtime.name,
        provider=runtime.identity.provider,
        profile=runtime.profile,
        account=runtime.identity.account,
        worker=runtime.identity.worker,
        owner=runtime.owner,
        shared_with=runtime.shared_with,
        cli_version=runtime.cli_version,
        is_steerable=runtime.steerable,
        is_online=not is_offline(runtime),
        status=runtime.status,
        seen_seconds_ago=runtime.seen_seconds_ago,
        created_at=datetime.fromtimestamp(runtime.created_at, UTC),
    )


def binding_info(binding: AgentBinding, moved: int) -> BindingInfo:
    return BindingInfo(
        binding.agent_key,
        binding.runtime,
        binding.offline.value,
        binding.max_wait_seconds,
        binding.deadline_seconds,
        binding.max_running,
        binding.published,
        moved,
        binding.on_agent_change.value,
        binding.on_dirty.value,
    )


def message_info(message: TaskMessage) -> TaskMessageInfo:
    at = datetime.fromtimestamp(message.created_at, UTC)
    return TaskMessageInfo(message.seq, str(message.body.get("type", "")), message.body, at)


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
