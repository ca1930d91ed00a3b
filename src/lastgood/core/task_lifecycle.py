"""Every legal transition of a task, in one table. An illegal transition is a missing row.

The statements that change a task name the states that they start from; tests/contract/test_task_moves.py
compares each of them with this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from lastgood.model.tasks import TaskStatus


class TaskMove(StrEnum):
    DEFER = "defer"  # until a due time
    CLAIM = "claim"  # once it is due; also of a task whose claim has expired
    START = "start"
    ASK = "ask"  # a person
    ANSWER = "answer"
    COMPLETE = "complete"
    FAIL = "fail"
    RETRY = "retry"  # the attempt failed; the task goes back to the queue
    CANCEL = "cancel"


_S = TaskStatus
_ENDS = {TaskMove.FAIL: _S.FAILED, TaskMove.CANCEL: _S.CANCELLED}
_HELD = _ENDS | {TaskMove.COMPLETE: _S.COMPLETED, TaskMove.RETRY: _S.QUEUED, TaskMove.DEFER: _S.DEFERRED}

TASK: Mapping[TaskStatus, Mapping[TaskMove, TaskStatus]] = {
    _S.QUEUED: _ENDS | {TaskMove.CLAIM: _S.CLAIMED},
    _S.DEFERRED: _ENDS | {TaskMove.CLAIM: _S.CLAIMED},
    # A worker may complete a task, or ask about it, that it never reported as started: that report was lost.
    _S.CLAIMED: _HELD | {TaskMove.START: _S.RUNNING, TaskMove.ASK: _S.WAITING, TaskMove.CLAIM: _S.CLAIMED},
    _S.RUNNING: _HELD | {TaskMove.ASK: _S.WAITING, TaskMove.CLAIM: _S.CLAIMED},
    _S.WAITING: _HELD | {TaskMove.ANSWER: _S.RUNNING, TaskMove.CLAIM: _S.CLAIMED},
    _S.COMPLETED: {},
    _S.FAILED: {},
    _S.CANCELLED: {},
}


def is_task_over(status: TaskStatus) -> bool:
    return not TASK[status]
