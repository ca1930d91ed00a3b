"""What may become of a task (I32): every legal transition. That the database makes these and no others is
tests/contract/test_task_moves.py."""

from lastgood.core.task_lifecycle import TASK, TaskMove, is_task_over
from lastgood.model.tasks import HELD_TASKS, TaskStatus

OVER = {TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED}


def test_I32_every_task_that_is_not_over_can_be_cancelled_and_can_fail() -> None:
    for status in TaskStatus:
        assert is_task_over(status) == (status in OVER)
        assert ({TaskMove.CANCEL, TaskMove.FAIL} <= TASK[status].keys()) == (status not in OVER)


def test_only_a_held_task_is_completed_and_every_other_one_can_be_claimed() -> None:
    assert {status for status in TaskStatus if TaskMove.COMPLETE in TASK[status]} == HELD_TASKS
    assert {status for status in TaskStatus if TaskMove.CLAIM in TASK[status]} == set(TaskStatus) - OVER


def test_I32_every_status_is_reached_from_queued() -> None:
    reached = {TaskStatus.QUEUED}
    while more := {after for status in reached for after in TASK[status].values()} - reached:
        reached |= more
    assert reached == set(TaskStatus)
