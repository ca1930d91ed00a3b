"""The queue of tasks: what is added, listed, held, released, moved and ended unclaimed (I12, I20, I32)."""

import asyncio
from dataclasses import replace

import pytest

from lastgood.model.attempts import AttemptStatus, Edit, OnLeave
from lastgood.model.ids import SessionId, TaskId, TurnId
from lastgood.model.runtimes import AgentBinding, OnQueued
from lastgood.model.sessions import ScopeKind, SessionStatus, TaskScope
from lastgood.model.tasks import Directive, Task, TaskConflict, TaskEnd, TaskFilter, TaskStatus
from lastgood.ports import Store
from tests.contract import builders, work_builders
from tests.contract.builders import STRANGER, TENANT
from tests.contract.conftest import Backend, dump
from tests.contract.work_builders import OWNER, RUNTIME
from tests.present import present

pytestmark = pytest.mark.anyio

ISSUE = TaskScope(ScopeKind.ISSUE, "org/repo#7")


# --- enqueue -----------------------------------------------------------------------------------------------


async def test_a_task_is_read_back_as_it_was_queued(store: Store) -> None:
    session = await builders.session(store, scope=ISSUE)
    directive = Directive(fresh=True, rerun_of=TaskId("t"), note="carefully")
    made = await work_builders.task(
        store,
        session,
        priority=3,
        directive=directive,
        created_by="tok",
        user="ann",
        max_wait_seconds=60.0,
        deadline_seconds=7.0,
        ephemeral=True,
    )
    assert (made.status, made.priority, made.directive) == (TaskStatus.QUEUED, 3, directive)
    assert (made.scope, made.runtime, made.agent_key) == (ISSUE, RUNTIME, "agent")
    assert (made.created_by, made.user, made.ephemeral) == ("tok", "ann", True)
    assert (made.claims, made.failures, made.held, made.why) == (0, 0, False, "")
    assert (made.worker, made.attempt, made.lease_until, made.deadline_at) == (None, None, None, None)
    assert made.expires_at is not None
    assert 0 < made.expires_at - made.created_at <= 60.5
    assert made.deadline_seconds == 7.0
    assert await store.get_task(TENANT, made.id) == made
    assert await store.task_of_turn(TENANT, made.turn) == made
    assert await store.open_tasks(TENANT, session.id) == (made,)
    request = await store.read_request(TENANT, made.turn)
    assert request is not None
    assert not request.durable, "recovery must not run it on this server"


async def test_a_queued_task_stamps_its_session_and_makes_it_queued(store: Store) -> None:
    session = await builders.session(store)
    await work_builders.task(store, session)
    now = await builders.again(store, session)
    assert (now.runtime_id, now.runtime_pinned, now.status) == (RUNTIME, False, SessionStatus.QUEUED)
    assert await store.interrupted_asks(9, deaths_below=9) == ()


async def test_a_pin_outlives_a_task_on_another_runtime(store: Store) -> None:
    session = await builders.session(store)
    await store.pin_runtime(TENANT, session.id, "own", OnQueued.KEEP, OWNER)
    await work_builders.task(store, session)
    now = await builders.again(store, session)
    assert (now.runtime_id, now.runtime_pinned) == ("own", True)


async def test_the_session_of_a_scope_is_made_once(store: Store) -> None:
    made = await asyncio.gather(
        *(store.session_of_scope(builders.new_session(scope=ISSUE)) for _ in range(8))
    )
    assert len({each.id for each in made}) == 1
    assert made[0].scope == ISSUE
    other = await store.session_of_scope(builders.new_session(scope=ISSUE, agent_key="other"))
    foreign = await store.session_of_scope(builders.new_session(STRANGER, scope=ISSUE))
    assert len({made[0].id, other.id, foreign.id}) == 3


async def test_I35_a_scope_is_found_in_its_own_tenant_only(store: Store) -> None:
    made = await store.session_of_scope(builders.new_session(scope=ISSUE))
    found = await store.find_scope(TENANT, ISSUE, made.agent_key)
    assert present(found).id == made.id
    assert await store.find_scope(TENANT, ISSUE, "other") is None
    assert await store.find_scope(STRANGER, ISSUE, made.agent_key) is None


async def test_I20_of_many_tasks_with_one_key_one_is_queued(store: Store) -> None:
    sessions = [await builders.session(store) for _ in range(4)]
    found = await asyncio.gather(
        *(work_builders.enqueue(store, each, asked={"key": "k"}) for each in sessions for _ in range(2))
    )
    (task,) = [each for each in found if isinstance(each, Task)]
    for each in found:
        if isinstance(each, TaskConflict):
            assert each.prior is not None
            assert each.prior_task is not None
            assert (each.prior.turn, each.prior_task.id) == (task.turn, task.id)


async def test_I13_a_refused_task_changes_nothing(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    await work_builders.task(store, session, asked={"key": "k"})
    before = await dump(backend)
    for refused in ({"asked": {"key": "k"}}, {"only_if_idle": True}, {"most": 1}):
        assert isinstance(await work_builders.enqueue(store, session, **refused), TaskConflict)
    assert await dump(backend) == before


async def test_only_if_idle_refuses_a_session_that_has_something_to_do(store: Store) -> None:
    session = await builders.session(store)
    queued = await work_builders.task(store, session, only_if_idle=True)
    refused = await work_builders.enqueue(store, session, only_if_idle=True)
    assert isinstance(refused, TaskConflict)
    assert refused.open_task == queued
    assert refused.holder is None
    local = await builders.session(store)
    tried = await builders.start(store, builders.ask(local))
    refused = await work_builders.enqueue(store, local, only_if_idle=True)
    assert isinstance(refused, TaskConflict)
    assert refused.holder is not None
    assert refused.holder.id == tried.hold.attempt
    assert isinstance(await work_builders.enqueue(store, local), Task), "otherwise it waits for its turn"


async def test_only_if_idle_refuses_another_head_than_expected(store: Store) -> None:
    session = await builders.session(store)
    first = await builders.commit(store, session)
    head = await builders.commit(store, session)
    for asked in (
        {"expected_head": first.id},
        {"is_first": True},
        {"edit": Edit(None, first.id)},
        {"expected_head": TurnId("unknown")},
    ):
        refused = await work_builders.enqueue(store, session, only_if_idle=True, asked=asked)
        assert isinstance(refused, TaskConflict), asked
        assert refused.open_task is None
    expected = {"expected_head": head.id}
    assert isinstance(await work_builders.enqueue(store, session, only_if_idle=True, asked=expected), Task)


async def test_only_so_many_tasks_of_a_session_are_unfinished(store: Store) -> None:
    session = await builders.session(store)
    made = await asyncio.gather(*(work_builders.enqueue(store, session, most=5) for _ in range(12)))
    assert sum(isinstance(each, Task) for each in made) == 5
    assert all(each.is_full for each in made if isinstance(each, TaskConflict))
    numbers = [each.number for each in await store.open_tasks(TENANT, session.id)]
    assert numbers == sorted(numbers)


async def test_a_failed_turn_is_tried_by_a_new_task(store: Store) -> None:
    await work_builders.register(store)
    session = await builders.session(store)
    task = await work_builders.task(store, session, asked={"key": "k"})
    again = {"turn": task.turn, "again": True, "asked": {"key": "k"}}
    refused = await work_builders.enqueue(store, session, **again)  # type: ignore[arg-type]
    assert isinstance(refused, TaskConflict), "it is still queued"
    claim = await work_builders.claim(store)
    assert await claim.fail(store)
    found = await store.look_up_task(builders.ask(session, key="k"))
    assert found.prior_task is not None
    assert found.prior_attempt is not None
    assert (found.prior_task.status, found.prior_age_seconds >= 0) == (TaskStatus.FAILED, True)
    second = await work_builders.task(store, session, **again)
    assert (second.turn, second.id != task.id) == (task.turn, True)
    claim = await work_builders.claim(store)
    assert claim.claimed.attempt.number == 2
    await claim.complete(store)
    refused = await work_builders.enqueue(store, session, **again)  # type: ignore[arg-type]
    assert isinstance(refused, TaskConflict), "it is committed"
    assert len(await store.read_turns(TENANT, claim.plan().turn.id)) == 1


async def test_I21_an_sdk_retry_finds_an_unclaimed_task(store: Store) -> None:
    session = await builders.session(store)
    asked = {"fingerprint": "f", "caller": "c", "on_leave": OnLeave.ORPHAN}
    task = await work_builders.task(store, session, asked=asked)
    await store.close_requests(TENANT, session.id, fingerprint="f", caller="c")
    retry = builders.ask(session, is_retry=True, **asked)
    found = await store.look_up_task(retry)
    assert found.prior_task == task
    assert found.prior_attempt is None
    assert (await store.look_up_task(replace(retry, fingerprint="g"))).prior is None


async def test_a_task_for_an_unknown_session_is_refused(store: Store) -> None:
    session = await builders.session(store)
    unknown = replace(session, id=SessionId("unknown"))
    assert await work_builders.enqueue(store, unknown) == TaskConflict(None)


# --- lists -------------------------------------------------------------------------------------------------


async def test_tasks_are_listed_newest_first_page_by_page(store: Store) -> None:
    await work_builders.register(store, "a", "b")
    sessions = [await builders.session(store, agent_key=f"agent{n % 2}") for n in range(6)]
    made = [await work_builders.task(store, each, runtime="ab"[n // 3]) for n, each in enumerate(sessions)]
    claim = await work_builders.claim(store, "a")
    await claim.complete(store)

    async def listed(**fields: object) -> list[int]:
        found: list[int] = []
        cursor = None
        while True:
            filter = TaskFilter(**fields)  # type: ignore[arg-type]
            page = await store.list_tasks(TENANT, filter, limit=2, cursor=cursor)
            found += [made.index(next(each for each in made if each.id == one.id)) for one in page.tasks]
            cursor = page.next_cursor
            if cursor is None:
                return found

    assert await listed() == [5, 4, 3, 2, 1, 0]
    assert await listed(agent_key="agent1") == [5, 3, 1]
    assert await listed(runtimes=("b",)) == [5, 4, 3]
    assert await listed(runtimes=()) == []
    assert await listed(session=sessions[2].id) == [2]
    assert await listed(statuses=(TaskStatus.COMPLETED,)) == [0]
    assert await listed(statuses=(TaskStatus.QUEUED, TaskStatus.CLAIMED), runtimes=("a",)) == [2, 1]
    assert (await store.list_tasks(STRANGER, TaskFilter(), limit=9)).tasks == ()


# --- held, released, ended unclaimed -----------------------------------------------------------------------


async def test_after_a_cancel_of_a_queued_task_the_others_are_held(store: Store) -> None:
    await work_builders.register(store)
    session = await builders.session(store)
    first, second, third = [await work_builders.task(store, session, max_wait_seconds=60.0) for _ in range(3)]
    end = TaskEnd(first.id, TaskStatus.CANCELLED, holds_others=True, holding_reason="held after a cancel")
    assert await store.end_queued_task(TENANT, end, builders.events("end"))
    assert not await store.end_queued_task(TENANT, end, builders.events("end")), "it has ended"
    assert (await work_builders.again(store, first)).status is TaskStatus.CANCELLED
    for task in (second, third):
        now = await work_builders.again(store, task)
        assert (now.status, now.held, now.why) == (TaskStatus.QUEUED, True, "held after a cancel")
    assert (await builders.again(store, session)).last_event_seq == 1
    assert await work_builders.claim_some(store) == []
    assert await store.release_task(TENANT, second.id)
    assert not await store.release_task(TENANT, second.id)
    assert (await work_builders.again(store, second)).why == ""
    assert await store.release_tasks(TENANT, session.id) == 1
    assert (await work_builders.claim(store)).task == second.id


async def test_a_task_that_a_worker_has_is_not_ended_as_queued(store: Store) -> None:
    await work_builders.register(store)
    task = await work_builders.task(store, await builders.session(store))
    await work_builders.claim(store)
    assert not await store.end_queued_task(TENANT, TaskEnd(task.id, TaskStatus.CANCELLED), [])
    assert (await work_builders.again(store, task)).status is TaskStatus.CLAIMED


async def test_I32_a_task_past_its_expiry_is_overdue_and_not_claimed(backend: Backend) -> None:
    store = backend.store
    await work_builders.register(store)
    await work_builders.task(store, await builders.session(store), max_wait_seconds=3600.0)
    await work_builders.task(store, await builders.session(store))
    late = await work_builders.task(store, await builders.session(store), max_wait_seconds=3600.0)
    held = await work_builders.task(store, await builders.session(store), max_wait_seconds=3600.0)
    assert await store.overdue_tasks(9) == ()
    await backend.execute(f"UPDATE tasks SET expires_at = 1 WHERE id IN ('{late.id}', '{held.id}')")
    # SQLite has no boolean literals of its own, and PostgreSQL takes no numbers for them.
    await backend.execute(f"UPDATE tasks SET held = true WHERE id = '{held.id}'")
    assert [each.id for each in await store.overdue_tasks(9)] == [late.id]
    assert late.id not in {each.task for each in await work_builders.claim_some(store)}
    assert await store.release_task(TENANT, held.id), "it expires as if it had been queued now"
    assert (await work_builders.claim(store)).task == held.id


async def test_I32_a_claim_past_its_deadline_is_overdue(backend: Backend) -> None:
    store = backend.store
    await work_builders.register(store)
    task = await work_builders.task(store, await builders.session(store))
    await work_builders.claim(store)
    assert await store.overdue_tasks(9) == ()
    await backend.execute("UPDATE tasks SET deadline_at = 1")
    assert [each.id for each in await store.overdue_tasks(9)] == [task.id]


# --- moving ------------------------------------------------------------------------------------------------


async def test_binding_an_agent_moves_its_queued_tasks_or_keeps_them(store: Store) -> None:
    await work_builders.register(store, RUNTIME, "new")
    running, queued, pinned, other = [
        await builders.session(store, agent_key="other" if n == 3 else "agent") for n in range(4)
    ]
    await work_builders.task(store, running)
    await work_builders.claim(store)
    behind = await work_builders.task(store, running)
    await store.pin_runtime(TENANT, pinned.id, RUNTIME, OnQueued.KEEP, OWNER)
    tasks = [await work_builders.task(store, each) for each in (queued, pinned, other)]
    new = AgentBinding(TENANT, "agent", "new", bound_by=OWNER)
    assert await store.bind_agent(new, OnQueued.KEEP) == 0
    assert await store.bind_agent(replace(new, tenant=STRANGER), OnQueued.MOVE) == 0
    assert {(await work_builders.again(store, each)).runtime for each in (behind, *tasks)} == {RUNTIME}
    assert await store.bind_agent(new, OnQueued.MOVE) == 2
    runtimes = [(await work_builders.again(store, each)).runtime for each in (behind, *tasks)]
    assert runtimes == ["new", "new", RUNTIME, RUNTIME]
    assert [task.runtime for task in await store.open_tasks(TENANT, running.id)] == [RUNTIME, "new"]
    of_sessions = [
        (await builders.again(store, each)).runtime_id for each in (running, queued, pinned, other)
    ]
    assert of_sessions == ["new", "new", RUNTIME, RUNTIME]


async def test_pinning_a_session_moves_its_queued_tasks_or_keeps_them(store: Store) -> None:
    await work_builders.register(store, RUNTIME, "new", "agents")
    session = await builders.session(store)
    task = await work_builders.task(store, session)
    assert await store.pin_runtime(TENANT, session.id, "new", OnQueued.KEEP, OWNER) == 0
    assert (await work_builders.again(store, task)).runtime == RUNTIME
    assert await store.pin_runtime(TENANT, session.id, "new", OnQueued.MOVE, OWNER) == 1
    assert (await work_builders.again(store, task)).runtime == "new"
    await store.bind_agent(AgentBinding(TENANT, "agent", "agents", bound_by=OWNER), OnQueued.MOVE)
    assert (await work_builders.again(store, task)).runtime == "new", "it is pinned"
    assert await store.pin_runtime(TENANT, session.id, None, OnQueued.MOVE, OWNER) == 1
    assert (await work_builders.again(store, task)).runtime == "agents", "it follows its agent again"


# --- delete ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claimed", [False, True])
async def test_I15_deleting_a_session_erases_everything_of_its_tasks(backend: Backend, claimed: bool) -> None:
    store = backend.store
    await work_builders.register(store)
    empty = await dump(backend)
    session = await builders.session(store)
    await work_builders.task(store, session)
    await work_builders.task(store, session)
    if claimed:
        claim = await work_builders.claim(store)
        state = await claim.state(store)
        await work_builders.report_everything(store, claim)
    assert await store.delete_session(TENANT, session.id)
    after = await dump(backend)
    assert after == empty, "nothing is left"
    if claimed:
        # A late report finds nothing, and writes nothing.
        assert await store.find_claim(TENANT, claim.task, claim.token, OWNER, claim.worker) is None
        assert (await claim.complete(store)).value == "lost"
        assert not await claim.fail(store)
        assert not await store.start_task(state, claim.token)
        assert await work_builders.report_everything(store, claim, state) == [False, None, None, False]
        assert not await store.keep_late_output(TENANT, claim.task, claim.token, "late")
        assert await dump(backend) == after


async def test_a_session_with_an_unfinished_task_is_not_unused(store: Store) -> None:
    session = await builders.session(store)
    task = await work_builders.task(store, session)
    now = (await builders.again(store, session)).updated_at + 3600
    assert not await store.delete_session(TENANT, session.id, unused_since=now)
    assert await store.end_queued_task(TENANT, TaskEnd(task.id, TaskStatus.CANCELLED), [])
    assert await store.delete_session(TENANT, session.id, unused_since=now)


async def test_sweeps_of_ordinary_attempts_leave_claims_alone(store: Store) -> None:
    await work_builders.register(store)
    session = await builders.session(store)
    await work_builders.task(store, session)
    claim = await work_builders.claim(store, prepare_seconds=-1)
    assert await store.running_attempts(9) == ()
    assert await store.expired_attempts(9) == ()
    assert not await store.finish_if_held(
        claim.hold, AttemptStatus.INTERRUPTED, None, [], only_if_expired=True
    )
    assert not (await store.look_up(builders.ask(session))).lease_expired
    assert (await builders.again(store, session)).status is SessionStatus.RUNNING
