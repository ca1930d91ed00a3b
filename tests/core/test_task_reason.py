"""Every task that is not finished says why (I32)."""

from __future__ import annotations

from typing import Any

import pytest

from lastgood.core.task_reason import why
from lastgood.model.ids import AttemptId, SessionId, TaskId, TenantId, TurnId
from lastgood.model.runtimes import Runtime
from lastgood.model.sessions import ScopeKind, TaskScope
from lastgood.model.tasks import Directive, Task, TaskStatus
from tests.core.test_runtimes import runtime

NOW = 1000.0


def task(status: TaskStatus = TaskStatus.QUEUED, **fields: Any) -> Task:
    known: dict[str, Any] = {
        "number": 1,
        "id": TaskId("task_1"),
        "tenant": TenantId("t"),
        "session": SessionId("s"),
        "turn": TurnId("turn"),
        "agent_key": "coder",
        "scope": TaskScope(ScopeKind.CHAT, "s"),
        "runtime": "rt_a",
        "status": status,
        "priority": 0,
        "directive": Directive(),
        "created_by": "",
        "user": "",
        "why": "",
        "held": False,
        "ephemeral": False,
        "due_at": None,
        "expires_at": None,
        "deadline_seconds": 60.0,
        "worker": "laptop",
        "attempt": AttemptId("a"),
        "claims": 0,
        "failures": 0,
        "lease_until": None,
        "deadline_at": None,
        "cancel_acknowledged": False,
        "decision": {},
        "late_output": None,
        "error_code": None,
        "error_message": None,
        "created_at": 0.0,
        "ended_at": None,
    }
    return Task(**known | fields)


ONLINE = runtime()
S = TaskStatus


@pytest.mark.parametrize(
    ("found", "on", "ahead", "expected"),
    [
        (task(S.COMPLETED), ONLINE, None, ""),
        (task(S.FAILED), None, None, ""),
        (task(S.CANCELLED), ONLINE, None, ""),
        (task(), ONLINE, None, "waits for runtime name of rt_a to claim it"),
        (task(), ONLINE, TaskId("task_0"), "waits for task task_0, which is before it in the same session"),
        (task(), None, None, "runtime rt_a does not exist; move the task, or cancel it"),
        (
            task(),
            runtime(removed_at=1.0),
            None,
            "runtime name of rt_a was removed; register it again, move the task, or cancel it",
        ),
        (
            task(),
            runtime(seen_seconds_ago=400.0),
            None,
            "runtime name of rt_a is offline since 1970-01-01T00:10:00Z",
        ),
        (
            task(),
            runtime(seen_seconds_ago=1.79e9),
            None,
            "runtime name of rt_a is offline: its worker has stopped",
        ),
        (
            task(),
            runtime(status="the disk is full"),
            None,
            "runtime name of rt_a claims no tasks: the disk is full",
        ),
        (task(held=True), ONLINE, None, "held after a cancel; continue or drop it"),
        (
            task(held=True, why="ann cancelled task_0"),
            ONLINE,
            None,
            "ann cancelled task_0; continue or drop it",
        ),
        (task(S.DEFERRED, due_at=1200.0), ONLINE, None, "due at 1970-01-01T00:20:00Z"),
        (
            task(S.DEFERRED, due_at=1200.0, why="rate limited"),
            ONLINE,
            None,
            "due at 1970-01-01T00:20:00Z (rate limited)",
        ),
        (task(S.DEFERRED, due_at=900.0), ONLINE, None, "waits for runtime name of rt_a to claim it"),
        (task(S.CLAIMED, lease_until=1001.0), ONLINE, None, "claimed by worker laptop"),
        (
            task(S.CLAIMED, lease_until=1001.0, why="another task works in /p"),
            ONLINE,
            None,
            "claimed by worker laptop: another task works in /p",
        ),
        (task(S.RUNNING, lease_until=1001.0), ONLINE, None, "worker laptop is running it"),
        (task(S.RUNNING, lease_until=1001.0, why="of before"), ONLINE, None, "worker laptop is running it"),
        (task(S.WAITING, lease_until=1001.0), ONLINE, None, "worker laptop waits for a person's answer"),
        (
            task(S.RUNNING, lease_until=999.0),
            ONLINE,
            None,
            "claimed by worker laptop, lease ended at 1970-01-01T00:16:39Z; claimable",
        ),
        (task(S.CLAIMED), ONLINE, None, "claimed by worker laptop"),
    ],
)
def test_I32_the_reason(found: Task, on: Runtime | None, ahead: TaskId | None, expected: str) -> None:
    assert why(found, on, ahead, NOW) == expected
