"""What a request for a task means if it could not simply be queued (I20)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lastgood.core.task_admission import KnownAttempt, KnownTask, QueueTask, TaskRejected, admit_task
from lastgood.errors import IdempotencyMismatch, QueueFull, SessionBusy, SessionNotFound, StaleHead
from lastgood.model.attempts import Ask, AttemptStatus, Edit, OnLeave, TurnRequest
from lastgood.model.ids import SessionId, TenantId, TurnId
from lastgood.model.messages import user
from lastgood.model.sessions import TurnKind
from lastgood.model.tasks import TaskConflict, TaskStatus
from tests.core.builders import HEAD, attempt, session
from tests.core.test_task_reason import task

ASK = Ask(TenantId("t"), session().id, (user("hi"),), key="k", fingerprint="f")
PRIOR = TurnRequest(
    turn=TurnId("first"),
    tenant=ASK.tenant,
    session=ASK.session,
    kind=TurnKind.RUN,
    key="k",
    fingerprint="f",
    caller="",
    user="",
    model=None,
    agent_key=None,
    edit=None,
    condition=None,
    options=ASK.options,
    on_leave=OnLeave.CONTINUE,
    durable=False,
    messages=None,
)
FREE = TaskConflict(session())
AGAIN = QueueTask(TurnId("first"))


def decide(found: TaskConflict, *, only_if_idle: bool = True, **ask: Any) -> Any:
    decided = admit_task(replace(ASK, **ask), found, only_if_idle=only_if_idle)
    return type(decided.error) if isinstance(decided, TaskRejected) else decided


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (TaskStatus.QUEUED, False),
        (TaskStatus.DEFERRED, False),
        (TaskStatus.RUNNING, False),
        (TaskStatus.COMPLETED, True),
        (TaskStatus.CANCELLED, True),
    ],
)
def test_I20_the_same_request_again_is_the_same_task(status: TaskStatus, expected: bool) -> None:
    known = task(status)
    assert decide(replace(FREE, prior=PRIOR, prior_task=known)) == KnownTask(known, is_replay=expected)


def test_I20_a_failed_task_is_queued_again_for_the_same_turn() -> None:
    assert decide(replace(FREE, prior=PRIOR, prior_task=task(TaskStatus.FAILED))) == AGAIN


@pytest.mark.parametrize(
    ("status", "is_known"),
    [
        (AttemptStatus.COMMITTED, True),
        (AttemptStatus.RUNNING, True),
        (AttemptStatus.CANCELLED, True),
        (AttemptStatus.FAILED, False),
        (AttemptStatus.INTERRUPTED, False),
    ],
)
def test_a_turn_of_this_server_keeps_its_outcome_after_a_move(status: AttemptStatus, is_known: bool) -> None:
    tried = attempt(status=status)
    found = replace(FREE, prior=PRIOR, prior_attempt=tried)
    assert decide(found) == (KnownAttempt(tried) if is_known else AGAIN)


def test_a_request_that_was_never_tried_is_queued() -> None:
    assert decide(replace(FREE, prior=PRIOR)) == AGAIN
    assert decide(FREE) == QueueTask()


@pytest.mark.parametrize(
    ("found", "only_if_idle", "ask", "expected"),
    [
        (TaskConflict(None), True, {}, SessionNotFound),
        (replace(FREE, prior=replace(PRIOR, fingerprint="g")), True, {}, IdempotencyMismatch),
        (replace(FREE, prior=replace(PRIOR, session=SessionId("o"))), True, {}, IdempotencyMismatch),
        (replace(FREE, is_full=True), False, {}, QueueFull),
        (replace(FREE, open_task=task()), True, {}, SessionBusy),
        (replace(FREE, open_task=task()), False, {}, QueueTask()),
        (replace(FREE, holder=attempt()), True, {}, SessionBusy),
        (replace(FREE, holder=attempt()), False, {}, QueueTask()),
        (FREE, True, {"expected_head": TurnId("gone")}, StaleHead),
        (FREE, True, {"edit": Edit(None, TurnId("gone"))}, StaleHead),
        (FREE, False, {"expected_head": TurnId("gone")}, QueueTask()),
    ],
)
def test_others_learn_what_stands_in_their_way(
    found: TaskConflict, only_if_idle: bool, ask: dict[str, Any], expected: Any
) -> None:
    assert decide(found, only_if_idle=only_if_idle, **ask) == expected


def test_a_first_turn_is_refused_once_there_is_one() -> None:
    assert decide(FREE, is_first=True) is StaleHead
    assert decide(TaskConflict(session(head=None)), is_first=True) == QueueTask()
    assert decide(FREE, expected_head=HEAD.turn) == QueueTask()


# -- an SDK's own retry: without a key, with the same body ------------------------------------

FIRST = replace(PRIOR, key=None, on_leave=OnLeave.ORPHAN)
RETRY: dict[str, Any] = {"key": None, "is_retry": True}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (TaskStatus.QUEUED, False),
        (TaskStatus.RUNNING, False),
        (TaskStatus.COMPLETED, True),
    ],
)
def test_I21_an_sdk_retry_attaches_to_its_task_or_replays_it(status: TaskStatus, expected: bool) -> None:
    known = task(status)
    assert decide(replace(FREE, prior=FIRST, prior_task=known), **RETRY) == KnownTask(known, expected)


def test_I21_an_sdk_retry_of_a_failed_task_is_the_same_turn() -> None:
    assert decide(replace(FREE, prior=FIRST, prior_task=task(TaskStatus.FAILED)), **RETRY) == AGAIN


@pytest.mark.parametrize(
    "found",
    [
        replace(FREE, prior=FIRST, prior_task=task(TaskStatus.CANCELLED)),
        replace(FREE, prior=FIRST, prior_task=task(TaskStatus.COMPLETED), prior_age_seconds=3600.0),
        replace(FREE, prior=PRIOR, prior_task=task(TaskStatus.QUEUED)),
        FREE,
    ],
    ids=["cancelled", "long ago", "no conversation", "unknown"],
)
def test_I21_what_an_sdk_retry_cannot_mean_is_a_new_turn(found: TaskConflict) -> None:
    assert decide(found, **RETRY) == QueueTask(None)


def test_I21_an_sdk_retry_finds_a_turn_that_ran_before_its_agent_was_bound() -> None:
    running = attempt(status=AttemptStatus.RUNNING)
    assert decide(replace(FREE, prior=FIRST, prior_attempt=running), **RETRY) == KnownAttempt(running)
    assert decide(replace(FREE, prior=FIRST), **RETRY) == AGAIN


def test_a_failed_edit_that_is_sent_again_on_another_head_is_refused() -> None:
    prior = replace(PRIOR, edit=Edit(None, TurnId("gone")))
    found = replace(FREE, prior=prior, prior_task=task(TaskStatus.FAILED))
    assert decide(found) is StaleHead
