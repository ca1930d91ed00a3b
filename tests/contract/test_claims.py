"""Claims: one worker has a task, under a token that fences every report (I9, I10, I12, I31, I34)."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from lastgood.model.attempts import AttemptStatus, Edit
from lastgood.model.events import TERMINAL, EventKind
from lastgood.model.ids import AttemptId
from lastgood.model.runtimes import AgentBinding, Heartbeat, HeartbeatResult, LiveClaim, OnQueued
from lastgood.model.sessions import SessionStatus
from lastgood.model.tasks import Task, TaskStatus
from lastgood.ports import Store
from tests.contract import builders, work_builders
from tests.contract.builders import STRANGER, TENANT
from tests.contract.conftest import Backend, dump
from tests.contract.work_builders import OWNER, RUNTIME, WORKER

pytestmark = pytest.mark.anyio


async def queue(store: Store, count: int, **fields: Any) -> list[Task]:
    """So many tasks, each of a session of its own."""
    agent = fields.pop("agent_key", "agent")
    return [
        await work_builders.task(store, await builders.session(store, agent_key=agent), **fields)
        for _ in range(count)
    ]


async def taken(store: Store, *runtimes: str, wanted: int = 100, **fields: Any) -> list[str]:
    """The ids of what is claimed, in the order in which it is handed out."""
    return [each.task for each in await work_builders.claim_some(store, *runtimes, wanted=wanted, **fields)]


# --- what is claimed ---------------------------------------------------------------------------------------


async def test_I9_a_claim_holds_the_session_under_a_new_fence(store: Store) -> None:
    await work_builders.register(store)
    session = await builders.session(store)
    turn = await builders.commit(store, session)
    task = await work_builders.task(store, session)
    claim = await work_builders.claim(store)
    claimed = claim.claimed
    now = await builders.again(store, session)
    assert claimed.session == now
    assert (now.attempt, now.fence, now.status) == (claim.hold.attempt, 2, SessionStatus.RUNNING)
    assert (claimed.task.status, claimed.task.worker, claimed.task.claims) == (TaskStatus.CLAIMED, WORKER, 1)
    assert claimed.task.attempt == claim.hold.attempt
    now_stored = await work_builders.again(store, task)
    assert claimed.task == replace(now_stored, tried_seconds=claimed.task.tried_seconds)
    attempt = claimed.attempt
    assert (attempt.task, attempt.number, attempt.base, attempt.head) == (task.id, 1, turn.id, turn.id)
    assert attempt.status is AttemptStatus.RUNNING
    assert claimed.request.messages is not None
    assert await taken(store) == [], "nobody else has it"
    await builders.refused(store, builders.ask(session))


async def test_an_edit_continues_from_its_own_base(store: Store) -> None:
    await work_builders.register(store)
    session = await builders.session(store)
    first, second = await builders.talk(store, session, 2)
    await work_builders.task(store, session, asked={"edit": Edit(first.id, second.id)})
    attempt = (await work_builders.claim(store)).claimed.attempt
    assert (attempt.base, attempt.head) == (first.id, second.id)


async def test_I34_only_the_workers_own_runtimes_are_claimed_from(store: Store) -> None:
    await work_builders.register(store, "a", "b")
    await work_builders.register(store, "theirs", worker="other")
    await work_builders.register(store, "foreign", tenant=STRANGER)
    for runtime in ("a", "b", "theirs", "foreign", "unknown"):
        await queue(store, 1, runtime=runtime)
    found = await work_builders.claim_some(store, "b", "theirs", "foreign", "unknown")
    assert [each.claimed.task.runtime for each in found] == ["b"]
    assert await taken(store, "a", tenant=STRANGER) == []
    assert await taken(store, "a", worker="other") == []


async def test_a_removed_runtime_claims_nothing_until_it_is_there_again(store: Store) -> None:
    await work_builders.register(store)
    (task,) = await queue(store, 1)
    await store.remove_runtime(TENANT, RUNTIME)
    assert await taken(store) == []
    await work_builders.register(store)
    assert await taken(store) == [task.id]


async def test_a_replaced_instance_claims_nothing_more(store: Store) -> None:
    await work_builders.register(store)
    (task,) = await queue(store, 1)
    await work_builders.register(store, instance="second")
    assert await taken(store, epoch=1) == []
    assert await taken(store, epoch=2) == [task.id]


async def test_tasks_of_a_session_are_claimed_one_after_the_other(store: Store) -> None:
    await work_builders.register(store)
    session = await builders.session(store)
    tasks = [await work_builders.task(store, session, priority=n) for n in range(3)]
    for task in tasks:
        (claim,) = await work_builders.claim_some(store)
        assert claim.task == task.id, "their order is that of the session, whatever their priorities"
        assert (await claim.complete(store)).value == "yes"
    assert (await builders.again(store, session)).turns == 3


async def test_a_task_waits_for_a_local_attempt_and_for_its_due_time(backend: Backend) -> None:
    store = backend.store
    await work_builders.register(store)
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    await work_builders.task(store, session)
    assert await taken(store) == []
    await store.finish_if_held(tried.hold, AttemptStatus.FAILED, None, [])
    claim = await work_builders.claim(store)
    assert await claim.fail(store, TaskStatus.DEFERRED, due_seconds=3600.0, why="rate limited")
    assert await taken(store) == []
    await backend.execute("UPDATE tasks SET due_at = 1")
    assert len(await taken(store)) == 1


async def test_the_most_urgent_task_is_first_and_age_makes_urgent(backend: Backend) -> None:
    store = backend.store
    await work_builders.register(store)
    low, middle, high, old = [(await queue(store, 1, priority=n))[0] for n in (0, 1, 2, 0)]
    # It has waited for two times the ageing time and a half, so it counts two more.
    await backend.execute(
        f"UPDATE tasks SET created_at = created_at - 1500, priority = 1 WHERE id = '{old.id}'"
    )
    assert await taken(store, wanted=1) == [old.id]
    assert await taken(store) == [high.id, middle.id, low.id]


async def test_agents_take_turns(store: Store) -> None:
    await work_builders.register(store)
    busy = [task.id for task in await queue(store, 4, agent_key="busy")]
    rare = [task.id for task in await queue(store, 2, agent_key="rare")]
    assert await taken(store, wanted=4) == [busy[0], rare[0], busy[1], rare[1]]
    more = [task.id for task in await queue(store, 2, agent_key="new")]
    # It runs nothing yet, the other one two.
    assert await taken(store) == [more[0], more[1], busy[2], busy[3]]


async def test_no_more_tasks_of_an_agent_run_than_its_limit(backend: Backend) -> None:
    store = backend.store
    await work_builders.register(store)
    limit = AgentBinding(TENANT, "agent", RUNTIME, max_running=2)
    await store.bind_agent(limit, OnQueued.KEEP)
    await queue(store, 5)
    await queue(store, 1, agent_key="other")
    claims = await work_builders.claim_some(store)
    assert Counter(each.claimed.task.agent_key for each in claims) == {"agent": 2, "other": 1}
    assert await taken(store) == []
    await next(each for each in claims if each.claimed.task.agent_key == "agent").complete(store)
    assert len(await taken(store)) == 1
    # A claim whose lease is over counts no more: whether it still runs is not known.
    await backend.execute(
        "UPDATE tasks SET lease_until = 1 WHERE lease_until IS NOT NULL AND agent_key = 'agent'"
    )
    assert len(await taken(store)) == 2


async def test_I18_a_task_with_damaged_input_fails_and_the_next_one_runs(backend: Backend) -> None:
    store = backend.store
    await work_builders.register(store)
    session = await builders.session(store)
    broken, good = [await work_builders.task(store, session) for _ in range(2)]
    await backend.execute(f"UPDATE requests SET caller = 'x' WHERE turn_id = '{broken.turn}'")
    assert await taken(store) == []
    now = await work_builders.again(store, broken)
    assert (now.status, now.error_code) == (TaskStatus.FAILED, "history_damaged")
    assert await taken(store) == [good.id]


# --- no double claims --------------------------------------------------------------------------------------


async def test_I31_no_task_is_claimed_twice_however_many_workers_claim(store: Store) -> None:
    workers = 4
    for number in range(workers):
        await work_builders.register(store, f"r{number}", worker=f"w{number}")
    for agent in ("a", "b", "c"):
        for number in range(workers):
            await queue(store, 40, agent_key=agent, runtime=f"r{number}")
    await store.bind_agent(AgentBinding(TENANT, "c", "r0", max_running=7), OnQueued.KEEP)

    async def claimer(number: int) -> list[work_builders.Claim]:
        worker = number % workers  # two claimers of each
        found = []
        while some := await work_builders.claim_some(store, f"r{worker}", worker=f"w{worker}", wanted=5):
            found += some
        return found

    found = [each for some in await asyncio.gather(*map(claimer, range(2 * workers))) for each in some]
    assert len({each.task for each in found}) == len(found)
    assert len({each.hold.session for each in found}) == len(found)
    agents = Counter(each.claimed.task.agent_key for each in found)
    assert (agents["a"], agents["b"]) == (160, 160)
    assert 0 < agents["c"] <= 7
    for each in found[::20]:
        assert (await each.state(store)).is_current


# --- leases ------------------------------------------------------------------------------------------------


async def confirm(store: Store, claim: work_builders.Claim, **fields: Any) -> bool:
    return await store.confirm_claim(
        claim.hold, claim.token, {"decision": "fresh"}, 90.0, builders.events("begins"), **fields
    )


async def test_I26_confirming_stores_the_decision_and_starts_lease_and_deadline(store: Store) -> None:
    await work_builders.register(store)
    (task,) = await queue(store, 1, deadline_seconds=1000.0)
    claim = await work_builders.claim(store, prepare_seconds=5.0)
    before = claim.claimed.task
    assert before.lease_until is not None
    assert await confirm(store, claim, agent_digest="sha256:1", model="m")
    now = await work_builders.again(store, task)
    assert now.decision == {"decision": "fresh"}
    assert now.lease_until is not None
    assert now.deadline_at is not None
    assert 80 < now.lease_until - before.lease_until < 90
    assert 900 < now.deadline_at - now.lease_until < 920
    attempt = await store.get_attempt(TENANT, claim.hold.attempt)
    assert attempt is not None
    assert (attempt.decision, attempt.agent_digest, attempt.model) == ({"decision": "fresh"}, "sha256:1", "m")
    assert len(await store.read_events(TENANT, claim.hold.session, after=0)) == 1


async def test_I12_an_expired_lease_only_makes_a_task_claimable(backend: Backend) -> None:
    store = backend.store
    await work_builders.register(store)
    await queue(store, 1)
    claim = await work_builders.claim(store, prepare_seconds=-1.0)
    before = await dump(backend)
    assert await store.expired_attempts(9) == ()
    assert await store.overdue_tasks(9) == ()
    assert await dump(backend) == before
    assert (await claim.state(store)).is_current
    assert await store.start_task(await claim.state(store), claim.token)
    assert (await claim.complete(store)).value == "yes", "nobody has claimed it meanwhile"


async def test_I31_a_claimed_again_task_is_the_new_claims_alone(backend: Backend) -> None:
    store = backend.store
    await work_builders.register(store)
    (task,) = await queue(store, 1)
    old = await work_builders.claim(store, prepare_seconds=-1.0)
    await work_builders.report_everything(store, old)
    state = await old.state(store)
    new = await work_builders.claim(store)
    assert new.task == task.id
    assert new.hold.fence == old.hold.fence + 1
    assert (new.claimed.task.claims, new.claimed.attempt.number) == (2, 2)
    ended = await store.get_attempt(TENANT, old.hold.attempt)
    assert ended is not None
    assert ended.status is AttemptStatus.INTERRUPTED
    assert await store.list_questions(TENANT, new.hold.session) == (), "who asked is gone"
    # Whatever the old claim reports writes nothing.
    before = await dump(backend)
    assert not (await old.state(store)).is_current
    assert not await confirm(store, old)
    assert not await store.start_task(state, old.token)
    assert await work_builders.report_everything(store, old, state) == [False, None, None, False]
    assert (await old.complete(store)).value == "lost"
    assert not await old.fail(store)
    assert await dump(backend) == before
    assert (await new.complete(store)).value == "yes"


async def test_only_a_claim_that_was_sent_can_be_lost(store: Store) -> None:
    await work_builders.register(store)
    await queue(store, 1)
    await work_builders.claim(store, prepare_seconds=-1.0)
    sent = await work_builders.claim(store)
    assert sent.claimed.task.lost_claims == 0
    assert await store.confirm_claim(sent.hold, sent.token, {"decision": "fresh"}, -1.0, [])
    again = await work_builders.claim(store)
    assert (again.claimed.task.claims, again.claimed.task.lost_claims) == (3, 1)
    assert again.claimed.task.tried_seconds >= sent.claimed.task.tried_seconds >= 0


async def test_I24_the_end_of_an_expired_claim_is_stored_in_the_transaction_of_the_next(store: Store) -> None:
    await work_builders.register(store)
    (task,) = await queue(store, 1)
    old = await work_builders.claim(store, prepare_seconds=-1.0)
    assert await store.append_events_if_held(old.hold, builders.events("said", attempt=old.hold.attempt))
    new = await work_builders.claim(store, prepare_seconds=-1.0)
    said, ended = await store.read_events(TENANT, task.session, after=0)
    assert (ended.attempt, ended.kind) == (old.hold.attempt, EventKind.TURN_FAILED)
    assert ended.seq > said.seq + 1, "numbers that a power cut may have taken are not used again"
    assert await store.append_events_if_held(new.hold, builders.events("next")) == ended.seq + 1
    await work_builders.claim(store)
    events = await store.read_events(TENANT, task.session, after=0)
    received = [event.attempt for event in events if event.kind in TERMINAL]
    assert received == [old.hold.attempt, new.hold.attempt], "each end once, whoever confirms"


async def test_I10_a_token_of_another_claim_is_fenced_even_with_the_right_hold(backend: Backend) -> None:
    store = backend.store
    await work_builders.register(store)
    await queue(store, 1)
    claim = await work_builders.claim(store)
    wrong = replace(claim, token=work_builders.secret())
    before = await dump(backend)
    state = await claim.state(store)
    assert (await wrong.complete(store)).value == "lost"
    assert not await wrong.fail(store)
    assert not await confirm(store, wrong)
    assert not await store.start_task(state, wrong.token)
    assert await work_builders.report_everything(store, wrong, state) == [False, None, None, False]
    assert not await store.acknowledge_cancel(TENANT, claim.task, wrong.token)
    assert await dump(backend) == before


async def test_a_claim_is_found_by_its_tenant_task_token_and_worker_only(store: Store) -> None:
    await work_builders.register(store)
    first, second = await queue(store, 2)
    claim = await work_builders.claim(store)
    assert await store.find_claim(STRANGER, first.id, claim.token, OWNER, WORKER) is None
    assert await store.find_claim(TENANT, second.id, claim.token, OWNER, WORKER) is None
    assert await store.find_claim(TENANT, first.id, work_builders.secret(), OWNER, WORKER) is None
    assert await store.find_claim(TENANT, first.id, claim.token, OWNER, "other") is None
    state = await claim.state(store)
    assert (state.is_current, state.hold, state.report) == (True, claim.hold, None)
    assert state.attempt == claim.claimed.attempt


async def test_a_task_is_started_once_and_the_same_report_again_is_fine(store: Store) -> None:
    await work_builders.register(store)
    (task,) = await queue(store, 1)
    claim = await work_builders.claim(store)
    for _ in range(2):
        assert await store.start_task(await claim.state(store), claim.token)
        assert (await work_builders.again(store, task)).status is TaskStatus.RUNNING


# --- heartbeats --------------------------------------------------------------------------------------------


def alive(*claims: work_builders.Claim, epoch: int = 1, worker: str = WORKER) -> Heartbeat:
    live = tuple(LiveClaim(each.task, each.token) for each in claims)
    return Heartbeat(TENANT, worker, epoch, (), live, owner=OWNER)


async def test_I31_a_heartbeat_renews_claims_that_are_current(store: Store) -> None:
    await work_builders.register(store)
    await queue(store, 3)
    expired = await work_builders.claim_some(store, wanted=2, prepare_seconds=-1.0)
    first = await work_builders.claim(store)  # the oldest of them again
    lost = [each for each in expired if each.task == first.task]
    kept = [each for each in expired if each.task != first.task]
    result = await store.beat(alive(first, *expired), 90.0)
    assert set(result.renewed) == {first.task, *(each.task for each in kept)}
    assert result.lost == tuple(each.task for each in lost)
    assert result.cancel == ()
    # An expired lease that was renewed is a lease again.
    others = await work_builders.claim_some(store)
    assert not {each.task for each in others} & set(result.renewed)
    now = await store.get_task(TENANT, kept[0].task)
    assert now is not None
    assert now.lease_until is not None
    assert now.lease_until > now.created_at + 60
    assert (await store.beat(alive(first, worker="other"), 90.0)).lost == (first.task,)


async def test_a_replaced_instance_keeps_the_claims_that_it_has(store: Store) -> None:
    await work_builders.register(store)
    await queue(store, 1)
    claim = await work_builders.claim(store)
    await work_builders.register(store, instance="second")
    assert await store.beat(alive(claim), 90.0) == HeartbeatResult(renewed=(claim.task,), replaced=True)
    assert (await claim.complete(store)).value == "yes"


async def test_a_worker_gets_a_cancel_until_it_acknowledges_it(store: Store) -> None:
    await work_builders.register(store)
    (task,) = await queue(store, 1)
    claim = await work_builders.claim(store)
    assert not await store.acknowledge_cancel(TENANT, claim.task, claim.token), "it runs"
    assert await claim.cancel(store)
    for _ in range(2):
        result = await store.beat(alive(claim), 90.0)
        assert (result.renewed, result.lost, result.cancel) == ((), (task.id,), (task.id,))
    assert not await store.acknowledge_cancel(STRANGER, claim.task, claim.token)
    assert await store.acknowledge_cancel(TENANT, claim.task, claim.token)
    assert await store.acknowledge_cancel(TENANT, claim.task, claim.token)
    assert (await work_builders.again(store, task)).cancel_acknowledged
    assert (await store.beat(alive(claim), 90.0)).cancel == ()


async def test_a_worker_that_ended_its_task_gets_no_cancel(store: Store) -> None:
    await work_builders.register(store)
    await queue(store, 1)
    claim = await work_builders.claim(store)
    await claim.complete(store)
    result = await store.beat(alive(claim), 90.0)
    assert (result.lost, result.cancel) == ((claim.task,), ())


async def test_a_claim_for_no_task_and_attempt_is_empty(store: Store) -> None:
    await work_builders.register(store)
    await queue(store, 1)
    assert await store.claim_tasks(work_builders.claim_request(wanted=0), work_builders.lease_ended) == ()
    request = replace(work_builders.claim_request(), attempts=(AttemptId("a"), AttemptId("b")))
    assert len(await store.claim_tasks(request, work_builders.lease_ended)) == 1
