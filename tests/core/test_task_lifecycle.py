"""What may become of a task (I32): every legal transition, and no other."""

import pytest

from lastgood.core.lifecycle import IllegalMove
from lastgood.core.task_lifecycle import TASK, TaskMove, after_task_move, is_task_over
from lastgood.model.tasks import TaskStatus

OVER = {TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED}


@pytest.mark.parametrize("status", TaskStatus)
@pytest.mark.parametrize("move", TaskMove)
def test_I32_a_move_is_in_the_table_or_refused(status: TaskStatus, move: TaskMove) -> None:
    if move in TASK[status]:
        assert after_task_move(status, move) is TASK[status][move]
    else:
        with pytest.raises(IllegalMove, match=f"a task that is {status} cannot {move}"):
            after_task_move(status, move)


def test_I32_every_task_that_is_not_over_can_be_cancelled_and_can_fail() -> None:
    for status in TaskStatus:
        assert is_task_over(status) == (status in OVER)
        assert ({TaskMove.CANCEL, TaskMove.FAIL} <= TASK[status].keys()) == (status not in OVER)


def test_only_a_held_task_is_completed() -> None:
    held = {TaskStatus.CLAIMED, TaskStatus.RUNNING, TaskStatus.WAITING}
    assert {status for status in TaskStatus if TaskMove.COMPLETE in TASK[status]} == held
    assert {status for status in TaskStatus if TaskMove.CLAIM in TASK[status]} == held | {TaskStatus.QUEUED}


def test_I32_every_status_is_reached_from_queued() -> None:
    reached = {TaskStatus.QUEUED}
    while more := {after for status in reached for after in TASK[status].values()} - reached:
        reached |= more
    assert reached == set(TaskStatus)
