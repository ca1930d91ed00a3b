"""Reports of a claim: each counts once, and its end is one transaction with the attempt's (I14, I17, I31)."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from lastgood.errors import IdempotencyMismatch
from lastgood.model.attempts import AttemptStatus, Committed
from lastgood.model.events import TextStreamed
from lastgood.model.runtimes import Heartbeat, LiveClaim
from lastgood.model.sessions import SessionStatus
from lastgood.model.tasks import OMITTED, PointerOutcome, QuestionStatus, TaskMessage, TaskStatus
from lastgood.ports import Store
from lastgood.store.run_activity import MOST_BYTES
from tests.contract import builders, work_builders
from tests.contract.builders import STRANGER, TENANT
from tests.contract.conftest import Backend, dump
from tests.contract.work_builders import WORKER, Claim

pytestmark = pytest.mark.anyio


async def claimed(store: Store, **fields: Any) -> Claim:
    await work_builders.register(store)
    await work_builders.task(store, await builders.session(store), **fields)
    return await work_builders.claim(store)


# --- ends --------------------------------------------------------------------------------------------------


async def test_I17_a_completed_task_commits_turn_task_report_and_pointer_together(store: Store) -> None:
    claim = await claimed(store)
    plan = claim.plan()
    pointer = work_builders.pointer(through=plan.turn.id, outcome=PointerOutcome.COMMITTED, is_dirty=False)
    assert await claim.complete(store, pointer=pointer) is Committed.YES
    task = await work_builders.again(store, claim.claimed.task)
    assert (task.status, task.lease_until, task.deadline_at) == (TaskStatus.COMPLETED, None, None)
    assert task.ended_at is not None
    session = await store.get_session(TENANT, task.session)
    assert session is not None
    assert (session.turns, session.status, session.attempt) == (1, SessionStatus.IDLE, None)
    (stored,) = await store.list_pointers(TENANT, task.session)
    assert (stored.through, stored.outcome) == (plan.turn.id, PointerOutcome.COMMITTED)
    state = await claim.state(store)
    assert (state.is_current, state.report) == (False, {"status": "completed"})


async def test_I31_a_report_that_is_repeated_changes_nothing_and_finds_its_first_answer(
    backend: Backend,
) -> None:
    store = backend.store
    claim = await claimed(store)
    found = await asyncio.gather(*(claim.complete(store, report={"n": n}) for n in range(4)))
    assert sorted(found) == [Committed.LOST, Committed.LOST, Committed.LOST, Committed.YES]
    first = found.index(Committed.YES)
    before = await dump(backend)
    assert not await claim.fail(store)
    assert await claim.complete(store, report={"n": 9}) is Committed.LOST
    assert await dump(backend) == before
    assert (await claim.state(store)).report == {"n": first}


async def test_I31_a_report_keeps_its_answer_after_the_task_was_claimed_again(store: Store) -> None:
    first = await claimed(store)
    assert await first.fail(store, TaskStatus.QUEUED, report={"retry": True}, counts_failure=True)
    second = await work_builders.claim(store)
    assert second.task == first.task
    state = await first.state(store)
    assert (state.is_current, state.report) == (False, {"retry": True})
    assert (await second.state(store)).report is None


async def test_a_task_that_is_tried_again_keeps_its_directive_and_expires_again(backend: Backend) -> None:
    store = backend.store
    claim = await claimed(store, max_wait_seconds=3600.0)
    await backend.execute("UPDATE tasks SET expires_at = 1")
    assert await claim.fail(
        store, TaskStatus.DEFERRED, due_seconds=60.0, why="rate limited", counts_failure=True
    )
    task = await work_builders.again(store, claim.claimed.task)
    assert (task.status, task.why, task.failures) == (TaskStatus.DEFERRED, "rate limited", 1)
    assert (task.error_code, task.error_message, task.ended_at) == ("code", "why", None)
    assert task.due_at is not None
    assert task.expires_at is not None
    assert 3590 < task.expires_at - task.due_at < 3610
    assert await store.overdue_tasks(9) == ()
    assert (await builders.again(store, claim.claimed.session)).status is SessionStatus.QUEUED


async def test_a_failed_task_is_final_and_lets_the_next_one_continue(store: Store) -> None:
    claim = await claimed(store)
    behind = await work_builders.task(store, claim.claimed.session)
    assert await claim.fail(store, error=("code", "wh\0y \ud800"), counts_failure=True)
    task = await work_builders.again(store, claim.claimed.task)
    assert (task.status, task.failures, task.error_message) == (TaskStatus.FAILED, 1, "wh\ufffdy \ufffd")
    assert (await work_builders.claim(store)).task == behind.id


async def test_I14_after_a_cancel_nothing_is_committed(backend: Backend) -> None:
    store = backend.store
    claim = await claimed(store)
    behind = await work_builders.task(store, claim.claimed.session)
    assert await claim.cancel(store, holds_others=True, holding_reason="held after a cancel")
    assert await claim.complete(store) is Committed.LOST
    assert not await claim.fail(store)
    task = await work_builders.again(store, claim.claimed.task)
    assert (task.status, task.cancel_acknowledged) == (TaskStatus.CANCELLED, False)
    held = await work_builders.again(store, behind)
    assert (held.held, held.why) == (True, "held after a cancel")
    assert await work_builders.claim_some(store) == []
    assert (await builders.again(store, claim.claimed.session)).turns == 0


async def test_I14_of_a_cancel_and_a_commit_one_happens(store: Store) -> None:
    await work_builders.register(store)
    for _ in range(20):
        await work_builders.task(store, await builders.session(store))
        claim = await work_builders.claim(store)
        committed, cancelled = await asyncio.gather(claim.complete(store), claim.cancel(store))
        assert (committed is Committed.YES) is not cancelled
        task = await work_builders.again(store, claim.claimed.task)
        assert task.status is (TaskStatus.CANCELLED if cancelled else TaskStatus.COMPLETED)
        assert (await builders.again(store, claim.claimed.session)).turns == (not cancelled)


async def test_I12_of_a_new_claim_and_a_late_commit_one_happens(store: Store) -> None:
    await work_builders.register(store)
    for _ in range(20):
        await work_builders.task(store, await builders.session(store))
        old = await work_builders.claim(store, prepare_seconds=-1.0)
        committed, again = await asyncio.gather(old.complete(store), work_builders.claim_some(store))
        assert (committed is Committed.YES) is not bool(again)
        for new in again:
            assert await new.complete(store) is Committed.YES
        assert (await builders.again(store, old.claimed.session)).turns == 1


async def test_an_ordinary_end_knows_no_task(store: Store) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    assert (await store.commit_if_head(tried.hold, tried.plan(), [], None)).outcome is Committed.YES


async def test_late_output_is_kept_beside_the_task_once(store: Store) -> None:
    claim = await claimed(store)
    assert not await store.keep_late_output(TENANT, claim.task, claim.token, "early"), "it is current"
    await claim.cancel(store)
    assert not await store.keep_late_output(TENANT, claim.task, work_builders.secret(), "not a claim")
    assert not await store.keep_late_output(STRANGER, claim.task, claim.token, "foreign")
    assert await store.keep_late_output(TENANT, claim.task, claim.token, "la\0te")
    assert not await store.keep_late_output(TENANT, claim.task, claim.token, "later")
    assert (await work_builders.again(store, claim.claimed.task)).late_output == "la\ufffdte"


# --- messages ----------------------------------------------------------------------------------------------


async def test_messages_are_stored_once_and_only_new_ones_make_events(store: Store) -> None:
    claim = await claimed(store)
    state = await claim.state(store)

    async def send(*numbers: int) -> int | None:
        messages = [TaskMessage(n, {"n": n, "text": "\0"}) for n in numbers]
        return await store.append_messages(state, claim.token, messages, builders.events(*map(str, numbers)))

    assert await send() == 0
    assert await send(1, 2) == 2
    assert await send(1, 2, 3) == 3
    assert await send(2) == 3
    assert await send(5, 5) == 5
    attempt = claim.hold.attempt
    stored = await store.read_messages(TENANT, attempt)
    assert [each.seq for each in stored] == [1, 2, 3, 5]
    assert stored[0].body == {"n": 1, "text": "\0"}
    assert stored[0].created_at > 0
    assert [each.seq for each in await store.read_messages(TENANT, attempt, after=1, limit=2)] == [2, 3]
    assert await store.read_messages(STRANGER, attempt) == ()
    events = await store.read_events(TENANT, claim.hold.session, after=0)
    assert [each.data for each in events] == [TextStreamed(text) for text in ("1", "2", "3", "5")]
    assert await store.append_messages(state, claim.token, [TaskMessage(6, {})], [None]) == 6
    assert len(await store.read_events(TENANT, claim.hold.session, after=0)) == 4


async def test_the_activity_of_a_run_is_bounded_and_counts_in_its_sessions_bytes(store: Store) -> None:
    claim = await claimed(store)
    state, attempt = await claim.state(store), claim.hold.attempt
    large = {"type": "thinking", "content": "x" * (MOST_BYTES // 4)}

    async def send(*messages: TaskMessage) -> int | None:
        return await store.append_messages(state, claim.token, messages, [None] * len(messages))

    assert await send(*(TaskMessage(seq, large) for seq in range(1, 4))) == 3
    stored = (await builders.again(store, claim.claimed.session)).stored_bytes
    assert 3 * MOST_BYTES // 4 < stored <= MOST_BYTES
    for seq in range(4, 8):
        assert await send(TaskMessage(seq, large), TaskMessage(seq, large)) == seq
    found = await store.read_messages(TENANT, attempt)
    assert [each.seq for each in found] == [1, 2, 3, 7]
    assert (found[-1].body["type"], found[-1].body["has_text"]) == (OMITTED, False)
    assert (await builders.again(store, claim.claimed.session)).stored_bytes == stored
    await send(TaskMessage(8, {**large, "type": "text"}))
    await send(TaskMessage(9, {"type": "tool_use"}))
    found = await store.read_messages(TENANT, attempt)
    assert [each.seq for each in found] == [1, 2, 3, 9]
    assert found[-1].body["has_text"], "its watchers have seen text"
    (known,) = await store.list_attempts(TENANT, claim.hold.session)
    assert known.ran_tools
    assert await store.delete_session(TENANT, claim.hold.session)
    assert await store.read_messages(TENANT, attempt) == ()


async def test_of_the_same_messages_sent_many_times_at_once_each_is_stored_once(store: Store) -> None:
    claim = await claimed(store)
    state = await claim.state(store)
    messages = [TaskMessage(n, {}) for n in range(1, 6)]
    sent = [store.append_messages(state, claim.token, messages, builders.events(*"abcde")) for _ in range(6)]
    assert await asyncio.gather(*sent) == [5] * 6
    assert len(await store.read_events(TENANT, claim.hold.session, after=0)) == 5


# --- questions ---------------------------------------------------------------------------------------------


async def status(store: Store, claim: Claim) -> tuple[TaskStatus, SessionStatus]:
    session = await builders.again(store, claim.claimed.session)
    return (await work_builders.again(store, claim.claimed.task)).status, session.status


async def test_a_question_makes_its_task_wait_until_it_is_answered(store: Store) -> None:
    claim = await claimed(store)
    state = await claim.state(store)
    first, second = work_builders.question(claim), work_builders.question(claim, "r", 60.0)
    asked = await store.ask_question(state, claim.token, first, builders.events("asks"))
    assert asked is not None
    assert (asked.status, asked.body, asked.session) == (QuestionStatus.PENDING, first.body, first.session)
    assert 3590 < asked.deadline_at - asked.created_at < 3610
    assert await store.ask_question(state, claim.token, first, builders.events("asks")) == asked
    assert await store.ask_question(state, claim.token, second, []) is not None
    assert len(await store.read_events(TENANT, claim.hold.session, after=0)) == 1
    assert await status(store, claim) == (TaskStatus.WAITING, SessionStatus.WAITING)
    assert [each.id for each in await store.list_questions(TENANT, claim.hold.session)] == ["q", "r"]
    attempt = await store.get_attempt(TENANT, claim.hold.attempt)
    assert attempt is not None
    assert attempt.status is AttemptStatus.RUNNING
    assert await store.answer_question(STRANGER, claim.task, "q", {}, "x") is None
    answered = await store.answer_question(TENANT, claim.task, "q", {"allowed": True}, "ann")
    assert answered is not None
    assert (answered.status, answered.answer, answered.answered_by) == ("answered", {"allowed": True}, "ann")
    assert await store.answer_question(TENANT, claim.task, "q", {"allowed": False}, "bea") is None
    assert await store.get_question(TENANT, claim.task, "q") == answered
    assert await store.ask_question(state, claim.token, first, []) == answered, "as it stands"
    assert await status(store, claim) == (TaskStatus.WAITING, SessionStatus.WAITING), "for the other one"
    await store.answer_question(TENANT, claim.task, "r", {}, "ann")
    assert await status(store, claim) == (TaskStatus.RUNNING, SessionStatus.RUNNING)
    assert await claim.complete(store) is Committed.YES


async def test_the_id_of_a_question_is_for_one_call(store: Store) -> None:
    """An answer to the first must not be taken for an answer to the second."""
    claim = await claimed(store)
    state = await claim.state(store)
    asked = work_builders.question(claim)
    assert await store.ask_question(state, claim.token, asked, []) is not None
    await store.answer_question(TENANT, claim.task, asked.id, {"allowed": True}, "ann")
    other = replace(asked, body={"tool": "shell", "input": {"cmd": "rm -rf /"}})
    with pytest.raises(IdempotencyMismatch, match="was used for another tool call"):
        await store.ask_question(state, claim.token, other, [])
    known = await store.get_question(TENANT, claim.task, asked.id)
    assert known is not None
    assert known.body == asked.body


async def test_I12_a_question_past_its_deadline_expires_and_its_task_runs_on(backend: Backend) -> None:
    store = backend.store
    claim = await claimed(store)
    await store.ask_question(await claim.state(store), claim.token, work_builders.question(claim), [])
    assert await store.expire_questions(9) == ()
    await backend.execute("UPDATE questions SET deadline_at = 1")
    (expired,) = await store.expire_questions(9)
    assert (expired.id, expired.status) == ("q", QuestionStatus.EXPIRED)
    assert await store.expire_questions(9) == ()
    assert await store.answer_question(TENANT, claim.task, "q", {}, "ann") is None
    assert await status(store, claim) == (TaskStatus.RUNNING, SessionStatus.RUNNING)


@pytest.mark.parametrize("how", ["complete", "fail", "cancel"])
async def test_an_end_withdraws_what_was_asked(store: Store, how: str) -> None:
    claim = await claimed(store)
    await store.ask_question(await claim.state(store), claim.token, work_builders.question(claim), [])
    await getattr(claim, how)(store)
    question = await store.get_question(TENANT, claim.task, "q")
    assert question is not None
    assert question.status is QuestionStatus.WITHDRAWN
    assert await store.list_questions(TENANT, claim.hold.session) == ()
    assert await store.answer_question(TENANT, claim.task, "q", {}, "ann") is None


async def test_of_many_answers_one_counts(store: Store) -> None:
    claim = await claimed(store)
    await store.ask_question(await claim.state(store), claim.token, work_builders.question(claim), [])
    answers = [store.answer_question(TENANT, claim.task, "q", {"n": n}, "ann") for n in range(6)]
    found = [each for each in await asyncio.gather(*answers) if each]
    assert len(found) == 1
    assert await store.get_question(TENANT, claim.task, "q") == found[0]


async def test_earlier_claims_go_with_the_events_of_their_attempt(backend: Backend) -> None:
    """What people and resuming need stays: the task, what its runs did, its newest claim with the report, and
    all pointers."""
    store = backend.store
    await work_builders.register(store)
    session = await builders.session(store)
    task = await work_builders.task(store, session)
    first = await work_builders.claim(store, prepare_seconds=-1.0)
    await work_builders.report_everything(store, first)
    newest = await work_builders.claim(store)
    await work_builders.report_everything(store, newest)

    async def tidied(age: float) -> list[int]:
        await store.tidy(events_older_than=age, keys_older_than=3600)
        attempts = (first.hold.attempt, newest.hold.attempt)
        counted = [len(await store.read_messages(TENANT, attempt)) for attempt in attempts]
        (claims,) = await backend.rows("SELECT count(*) FROM claims")
        return [*counted, claims[0]]

    assert await tidied(3600) == [1, 1, 2], "young ones stay"
    assert await tidied(-1) == [1, 1, 1], "that of a claim that runs stays"
    assert (
        await store.find_claim(TENANT, task.id, first.token, work_builders.OWNER, work_builders.WORKER)
        is None
    )
    assert (await newest.complete(store, pointer=work_builders.pointer())).value == "yes"
    assert await tidied(-1) == [1, 1, 1]
    assert (await newest.state(store)).report == {"status": "completed"}
    assert (await work_builders.again(store, task)).status is TaskStatus.COMPLETED
    assert len(await store.list_pointers(TENANT, session.id)) == 2


async def test_tidying_tasks_takes_small_bites(store: Store) -> None:
    await work_builders.register(store)
    for _ in range(3):
        await work_builders.task(store, await builders.session(store))
    claims = await work_builders.claim_some(store)
    for claim in claims:
        await work_builders.report_everything(store, claim)
        await claim.complete(store)
    left = []
    for _ in range(2):
        await store.tidy(events_older_than=-1, keys_older_than=3600, limit=2)
        sessions = [await builders.again(store, claim.claimed.session) for claim in claims]
        left.append(sum(session.events_dropped == 0 for session in sessions))
    assert left == [1, 0]


# --- heartbeats --------------------------------------------------------------------------------------------


async def test_a_claim_that_has_not_started_says_why_until_it_says_so_no_more(store: Store) -> None:
    await work_builders.register(store)
    task = await work_builders.task(store, await builders.session(store))
    claim = await work_builders.claim(store)
    for why in ("another task works in /p", ""):
        live = LiveClaim(claim.task, claim.token, why)
        beat = await store.beat(Heartbeat(TENANT, WORKER, 1, (), (live,), owner=work_builders.OWNER), 90.0)
        assert beat.renewed == (task.id,)
        assert (await work_builders.again(store, task)).why == why
