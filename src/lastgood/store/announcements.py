"""Parameters of webhook messages, for the statements that write what they announce.

The statements `announce_…` add a row for each webhook of the tenant that subscribes to the kind: none, and
next to no work, where there are no webhooks. No message holds text of a conversation: a receiver reads that
over the API.
"""

from __future__ import annotations

import secrets
from typing import Any

import orjson

from lastgood.model.attempts import AttemptStatus
from lastgood.model.tasks import TaskEnd, TaskStatus
from lastgood.model.webhooks import WebhookKind
from lastgood.store.rows import writable


def announcement(kind: str | None, **about: Any) -> dict[str, Any]:
    """Without a kind, nothing is announced."""
    return {
        "announcement": f"msg_{secrets.token_hex(16)}",
        "announces": kind,
        "about": orjson.dumps({name: value for name, value in about.items() if value is not None}).decode(),
    }


def of_failure(status: AttemptStatus, error: tuple[str, str] | None, task: TaskEnd | None) -> dict[str, Any]:
    """The attempt of a task may be one of several, and its task says how it ended. An interrupted or
    superseded turn is not over, and a cancelled one was ended on purpose."""
    if status is not AttemptStatus.FAILED or task is not None:
        return announcement(None)
    return announcement(WebhookKind.TURN_FAILED, error=as_error(error))


def of_task(status: TaskStatus, error: tuple[str, str] | None) -> dict[str, Any]:
    return announcement(WebhookKind.TASK_ENDED, status=status.value, error=as_error(error))


def of_question(question: dict[str, Any]) -> dict[str, Any]:
    tool = question.get("tool")
    return announcement(WebhookKind.APPROVAL_WAITING, tool=writable(tool) if isinstance(tool, str) else None)


def as_error(error: tuple[str, str] | None) -> dict[str, str] | None:
    return {"code": error[0], "message": writable(error[1])} if error else None
