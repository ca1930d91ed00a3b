"""Each statement that changes the state of a task makes a transition of core/task_lifecycle.py (I32)."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lastgood.core.task_lifecycle import TASK, TaskMove
from lastgood.model.tasks import Task, TaskEnd, TaskStatus
from lastgood.ports import Store
from lastgood.store.statements import named
from tests.contract import builders, work_builders
from tests.contract.builders import TENANT
from tests.contract.work_builders import Claim

pytestmark = pytest.mark.anyio

S = TaskStatus
#: A lease that is over when it begins.
EXPIRED = -60.0

#: Every statement that writes the state of a task, and what it is for.
WRITERS = {
    "insert_task": (),
    "claim_task": (TaskMove.CLAIM,),
    "fail_unreadable_task": (TaskMove.FAIL,),
    "start_task": (TaskMove.START,),
    "task_waits": (TaskMove.ASK,),
    "task_runs_on": (TaskMove.ANSWER,),
    "end_queued_task": (TaskMove.FAIL, TaskMove.CANCEL),
    "end_claim": (TaskMove.COMPLETE, TaskMove.FAIL, TaskMove.CANCEL, TaskMove.RETRY, TaskMove.DEFER),
}
_WRITES = re.compile(r"INSERT INTO tasks\b|UPDATE tasks\b(?=.*?\bSET\b(?:(?!\bWHERE\b).)*?\bstatus = )", re.S)


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_I32_every_statement_that_changes_the_state_of_a_task_is_known(dialect: str) -> None:
    writers = {name for name, text in named(dialect).items() if _WRITES.match(text)}
    imports = {name for name in writers if name.startswith("import_")}
    assert writers - imports == WRITERS.keys()
    moves = {move for moves in WRITERS.values() for move in moves}
    assert moves == set(TaskMove), "a transition that no statement makes"


async def held(store: Store, status: TaskStatus) -> Claim:
    """A task in that state, and its newest claim, whose lease is over."""
    await work_builders.register(store)
    session = await builders.session(store)
    await work_builders.task(store, session)
    claim = await work_builders.claim(store, prepare_seconds=EXPIRED)
    match status:
        case S.RUNNING:
            await started(store, claim)
        case S.WAITING:
            await asked(store, claim)
        case S.QUEUED | S.FAILED:
            await claim.fail(store, status)
        case S.DEFERRED:
            await claim.fail(store, status, due_seconds=EXPIRED)
        case S.COMPLETED:
            await claim.complete(store)
        case S.CANCELLED:
            await claim.cancel(store)
        case S.CLAIMED:
            pass
    assert (await now(store, claim)).status is status
    return claim


async def now(store: Store, claim: Claim) -> Task:
    return await work_builders.again(store, claim.claimed.task)


async def started(store: Store, claim: Claim) -> None:
    await store.start_task(await claim.state(store), claim.token)


async def asked(store: Store, claim: Claim) -> None:
    question = work_builders.question(claim)
    await store.ask_question(await claim.state(store), claim.token, question, builders.events("asks"))


async def answered(store: Store, claim: Claim) -> None:
    await store.answer_question(TENANT, claim.task, "q", {}, "ann")


async def claimed_again(store: Store, claim: Claim) -> None:
    await work_builders.claim_some(store)


async def completed(store: Store, claim: Claim) -> None:
    await claim.complete(store)


async def retried(store: Store, claim: Claim) -> None:
    await claim.fail(store, S.QUEUED)


async def deferred(store: Store, claim: Claim) -> None:
    await claim.fail(store, S.DEFERRED, due_seconds=60.0)


async def failed(store: Store, claim: Claim) -> None:
    await store.end_queued_task(TENANT, TaskEnd(claim.task, S.FAILED), [])
    await claim.fail(store)


async def cancelled(store: Store, claim: Claim) -> None:
    await store.end_queued_task(TENANT, TaskEnd(claim.task, S.CANCELLED), [])
    await claim.cancel(store)


MOVES: dict[TaskMove, Callable[[Store, Claim], Awaitable[Any]]] = {
    TaskMove.CLAIM: claimed_again,
    TaskMove.START: started,
    TaskMove.ASK: asked,
    TaskMove.ANSWER: answered,
    TaskMove.COMPLETE: completed,
    TaskMove.FAIL: failed,
    TaskMove.RETRY: retried,
    TaskMove.DEFER: deferred,
    TaskMove.CANCEL: cancelled,
}


@pytest.mark.parametrize("status", TaskStatus)
@pytest.mark.parametrize("move", TaskMove)
async def test_I32_a_task_moves_as_the_table_says_or_not_at_all(
    store: Store, status: TaskStatus, move: TaskMove
) -> None:
    claim = await held(store, status)
    before = await now(store, claim)
    await MOVES[move](store, claim)
    after = await now(store, claim)
    assert after.status is TASK[status].get(move, status)
    if move is TaskMove.CLAIM:
        assert after.claims - before.claims == (move in TASK[status])


async def test_I32_a_deferred_task_is_claimed_once_it_is_due(store: Store) -> None:
    claim = await held(store, S.CLAIMED)
    await deferred(store, claim)
    assert await work_builders.claim_some(store) == []
