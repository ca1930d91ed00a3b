"""Tasks as people see them: cancel, hold, continue, deadlines, questions, and whose they are."""

from __future__ import annotations

import logging

import pytest

from lastgood.errors import (
    Forbidden,
    IdempotencyMismatch,
    InvalidRequest,
    NothingPending,
    QueueFull,
    RuntimeAmbiguous,
    RuntimeNotFound,
    RuntimeOffline,
    SessionNotFound,
    StaleClaim,
    TaskNotFound,
)
from lastgood.flows.work.enqueue import Enqueuer, RuntimeWish
from lastgood.flows.work.questions import answer_json
from lastgood.model.attempts import AttemptStatus
from lastgood.model.audit import AuditFilter, AuditKind
from lastgood.model.runtimes import OnOffline, OnQueued
from lastgood.model.sessions import ScopeKind, TaskScope
from lastgood.model.tasks import PointerOutcome, QuestionStatus, TaskFilter, TaskStatus
from tests.flows.work.site import AGENT, Site

pytestmark = pytest.mark.anyio


# -- cancel ----------------------------------------------------------------------------------


async def test_a_cancel_waits_for_no_worker_and_its_late_result_is_never_committed(site: Site) -> None:
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    sent = await a.claim()
    await a.start(sent)
    await a.pin(sent, "native-a", "/w")
    ended = await site.cancel(task.id)
    assert ended.status is TaskStatus.CANCELLED
    assert (await site.session(task.session)).attempt is None
    beat = await a.beat(sent)
    assert (beat.cancel, beat.lost) == ((task.id,), (task.id,))
    with pytest.raises(StaleClaim) as stale:
        await a.complete(sent, "fixed after all")
    assert stale.value.detail["cancel"] is True
    assert await site.turns(task.session) == ()
    assert (await site.task(task.id)).task.late_output == "fixed after all"
    assert (await site.work.reports.acknowledge_cancel(a.key(sent)))["status"] == "cancelled"
    assert (await site.task(task.id)).task.cancel_acknowledged
    assert (await a.beat(sent)).cancel == ()
    (pointer,) = await site.pointers(task.session)
    assert (pointer.outcome, pointer.is_dirty) == (PointerOutcome.UNCOUNTED, True)
    await site.check_ends(task.session)


async def test_a_queued_task_is_cancelled_at_once_and_nothing_else_is_held(site: Site) -> None:
    a = await site.machine()
    first, second = await site.queue("one", runtime=a.id), await site.queue("two", runtime=a.id)
    assert (await site.cancel(first.id)).status is TaskStatus.CANCELLED
    assert (await a.claim()).claimed.task.id == second.id
    assert (await site.cancel(first.id)).status is TaskStatus.CANCELLED


async def test_after_a_cancel_by_a_user_the_others_are_held_until_continued(site: Site) -> None:
    a = await site.machine()
    tasks = [await site.queue(name, runtime=a.id) for name in ("one", "two", "three")]
    await a.claim()
    await site.cancel(tasks[0].id)
    assert await a.claims() == ()
    shown = await site.task(tasks[1].id)
    assert shown.task.held
    assert shown.why == f"held after the cancel of task {tasks[0].id}; continue or drop it"
    await site.cancel(tasks[1].id)  # dropped
    assert await a.claims() == ()
    await site.work.tasks.continue_held(site.tenant, tasks[2].id, "ann", all=False)
    assert (await a.claim()).claimed.task.id == tasks[2].id


async def test_all_held_tasks_of_a_session_continue_in_their_order(site: Site) -> None:
    a = await site.machine()
    tasks = [await site.queue(name, runtime=a.id) for name in ("one", "two", "three")]
    await a.claim()
    await site.cancel(tasks[0].id)
    await site.work.tasks.continue_held(site.tenant, tasks[2].id, "ann", all=True)
    sent = await a.claim()
    assert sent.claimed.task.id == tasks[1].id
    assert (await site.task(tasks[2].id)).why.startswith(f"waits for task {tasks[1].id}")


# -- time --------------------------------------------------------------------------------------


async def test_an_unclaimed_task_expires_with_a_reason(site: Site) -> None:
    a = await site.machine()
    await site.bind(a, max_wait_seconds=0.001)
    task = await site.queue("fix it")
    while not await site.work.sweep.sweep():
        pass
    shown = (await site.task(task.id)).task
    assert (shown.status, shown.error_code) == (TaskStatus.FAILED, "runtime_offline")
    assert await a.claims() == ()


async def test_I12_the_hard_deadline_ends_the_attempt_and_frees_the_session(site: Site) -> None:
    a = await site.machine()
    await site.bind(a, deadline_seconds=0.001)
    task = await site.queue("fix it")
    sent = await a.claim()
    while not await site.work.sweep.sweep():
        pass
    shown = (await site.task(task.id)).task
    assert (shown.status, shown.error_code) == (TaskStatus.FAILED, "task_deadline")
    assert (await site.attempts(task.session))[0].status is AttemptStatus.FAILED
    assert (await site.session(task.session)).attempt is None
    with pytest.raises(StaleClaim):
        await a.complete(sent, "too late")
    await site.check_ends(task.session)


async def test_offline_fail_refuses_before_anything_is_written(site: Site) -> None:
    a = await site.machine()
    await site.bind(a, offline=OnOffline.FAIL)
    assert await site.work.runtimes.deregister(site.tenant, a.worker, a.owner, a.epoch)
    with pytest.raises(RuntimeOffline, match="laptop-claude is offline"):
        await site.queue("fix it")
    shown, _ = await site.work.tasks.list(site.tenant, "ann", TaskFilter(), limit=10, cursor=None)
    assert shown == ()


async def test_a_wait_for_a_stopped_worker_says_so(site: Site) -> None:
    a = await site.machine()
    await site.bind(a)
    await site.work.runtimes.deregister(site.tenant, a.worker, a.owner, a.epoch)
    task = await site.queue("fix it")
    assert (await site.task(task.id)).why == "runtime laptop-claude is offline: its worker has stopped"


# -- questions ---------------------------------------------------------------------------------


async def test_a_question_waits_for_a_person_and_is_asked_once(site: Site) -> None:
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    sent = await a.claim()
    await a.start(sent)
    body = {"tool": "Bash", "input": {"command": "rm x"}, "title": "Run rm x?"}
    asked = await site.work.questions.ask(a.key(sent), "q1", body, None)
    assert asked.status is QuestionStatus.PENDING
    shown = await site.task(task.id)
    assert shown.task.status is TaskStatus.WAITING
    assert "waits for a person's answer" in shown.why
    assert (await site.attempts(task.session))[0].status is AttemptStatus.RUNNING
    again = await site.work.questions.ask(a.key(sent), "q1", body, None)
    assert again.created_at == asked.created_at
    (pending,) = await site.work.questions.pending(site.tenant, task.session, "ann")
    assert pending.body == body
    await site.work.questions.answer(site.tenant, task.id, "q1", allowed=True, reason="ok", user="ann")
    answered = answer_json(await site.work.questions.ask(a.key(sent), "q1", body, None))
    assert answered == {"id": "q1", "status": "answered", "answer": {"allowed": True, "reason": "ok"}}
    assert (await site.task(task.id)).task.status is TaskStatus.RUNNING
    with pytest.raises(NothingPending):
        await site.work.questions.answer(site.tenant, task.id, "q1", allowed=False, reason="", user="ann")
    await a.complete(sent, "fixed")


async def test_an_unanswered_question_is_denied_with_a_reason(site: Site) -> None:
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    sent = await a.claim()
    await a.start(sent)
    await site.work.questions.ask(a.key(sent), "q1", {"tool": "Bash"}, 0.001)

    async def status() -> TaskStatus:
        await site.work.sweep.sweep()
        return (await site.task(task.id)).task.status

    while await status() is TaskStatus.WAITING:
        pass
    received = answer_json(await site.work.questions.ask(a.key(sent), "q1", {"tool": "Bash"}, None))
    assert received["answer"] == {"allowed": False, "reason": "nobody answered in time"}


async def test_only_users_of_the_runtime_may_answer(site: Site) -> None:
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    sent = await a.claim()
    await site.work.questions.ask(a.key(sent), "q1", {"tool": "Bash"}, None)
    with pytest.raises(TaskNotFound):
        await site.work.questions.answer(site.tenant, task.id, "q1", allowed=True, reason="", user="bob")


# -- one request, one task ---------------------------------------------------------------------


async def test_I20_the_same_key_is_the_same_task(site: Site) -> None:
    a = await site.machine()
    add = site.work.tasks.add
    first = await add(site.new_task("fix it", runtime=a.id, key="k"))
    second = await add(site.new_task("fix it", runtime=a.id, key="k"))
    assert (second.task.id, second.is_known, second.is_replay) == (first.task.id, True, False)
    with pytest.raises(IdempotencyMismatch):
        await add(site.new_task("something else", runtime=a.id, key="k"))
    sent = await a.claim()
    await a.complete(sent, "fixed")
    third = await add(site.new_task("fix it", runtime=a.id, key="k"))
    assert (third.task.id, third.is_replay) == (first.task.id, True)


async def test_I20_a_failed_task_is_queued_again_for_the_same_turn(site: Site) -> None:
    a = await site.machine()
    first = await site.work.tasks.add(site.new_task("fix it", runtime=a.id, key="k"))
    await a.fail(await a.claim(), "timeout")
    again = await site.work.tasks.add(site.new_task("fix it", runtime=a.id, key="k"))
    assert (again.task.id != first.task.id, again.task.turn) == (True, first.task.turn)
    await a.complete(await a.claim(), "fixed")
    assert await site.said(first.task.session) == ["fix it", "fixed"]


async def test_a_session_takes_20_unfinished_tasks(site: Site) -> None:
    a = await site.machine()
    for number in range(20):
        await site.queue(f"{number}", runtime=a.id)
    with pytest.raises(QueueFull):
        await site.queue("one more", runtime=a.id)


async def test_one_task_of_a_session_runs_at_a_time(site: Site) -> None:
    a = await site.machine()
    await site.queue("one", runtime=a.id)
    second = await site.queue("two", runtime=a.id)
    sent = await a.claim()
    assert await a.claims() == ()
    assert (await site.task(second.id)).why == (
        f"waits for task {sent.claimed.task.id}, which is before it in the same session"
    )
    await a.complete(sent, "1", native_session="n")
    assert (await a.claim()).content["resume"]["native_session"] == "n"


async def test_agents_without_a_runtime_have_no_tasks(site: Site) -> None:
    with pytest.raises(InvalidRequest, match="runs on this server"):
        await site.queue("fix it")


# -- whose they are ----------------------------------------------------------------------------


async def test_I34_a_private_runtime_looks_like_none_to_others(site: Site) -> None:
    a = await site.machine()
    await site.machine("theirs", owner="bob")
    task = await site.queue("fix it", runtime=a.id)
    with pytest.raises(RuntimeNotFound):
        await site.queue("mine now", runtime=a.id, user="bob", scope=TaskScope(ScopeKind.ISSUE, "9"))
    with pytest.raises(TaskNotFound):
        await site.cancel(task.id, "bob")
    with pytest.raises(SessionNotFound):
        await site.work.explainer.explain(site.tenant, task.session, "bob")
    with pytest.raises(RuntimeNotFound):
        await site.bind(a, bound_by="bob")
    shown, _ = await site.work.tasks.list(site.tenant, "bob", TaskFilter(), limit=10, cursor=None)
    assert shown == ()
    runtimes = await site.work.runtimes.list(site.tenant, "bob", is_admin=False)
    assert [one.name for one in runtimes] == ["theirs-claude"]
    assert len(await site.work.runtimes.list(site.tenant, "root", is_admin=True)) == 2


async def test_a_scope_of_another_user_is_not_continued_on_another_runtime(site: Site) -> None:
    """Or its transcript would be sent to whoever names the scope."""
    a = await site.machine()
    mine = await site.machine("theirs", owner="bob")
    await a.turn("secret", "1", "native-a")
    with pytest.raises(SessionNotFound):
        await site.queue("what was said?", runtime=mine.id, user="bob")


async def test_a_shared_runtime_can_be_used_but_not_shared_on(site: Site) -> None:
    a = await site.machine()
    await site.work.runtimes.share(site.tenant, a.id, ["bob"], "ann")
    task = await site.queue("fix it", runtime=a.id, user="bob")
    assert (await site.cancel(task.id, "bob")).status is TaskStatus.CANCELLED
    with pytest.raises(Forbidden):
        await site.work.runtimes.share(site.tenant, a.id, ["cat"], "bob")
    with pytest.raises(Forbidden):
        await site.work.runtimes.remove(site.tenant, a.id, "bob", is_admin=False)


async def test_a_worker_id_belongs_to_one_user(site: Site) -> None:
    await site.machine()
    with pytest.raises(Forbidden, match="belongs to another user"):
        await site.machine(owner="bob")


async def test_two_instances_of_one_worker_the_newer_one_takes_over(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    old = await site.machine()
    task = await site.queue("fix it", runtime=old.id)
    sent = await old.claim()
    with caplog.at_level(logging.WARNING):
        new = await site.machine(instance="two")
    assert "took over" in caplog.text
    assert (new.id, new.epoch) == (old.id, old.epoch + 1)
    await site.queue("next", runtime=old.id, scope=TaskScope(ScopeKind.ISSUE, "7"))
    assert await old.claims() == ()
    beat = await old.beat(sent)
    assert (beat.replaced, beat.renewed) == (True, (task.id,))
    await old.complete(sent, "fixed")  # it finishes what it has
    assert len(await new.claims()) == 1


async def test_a_session_of_its_own_beats_its_agents_runtime(site: Site) -> None:
    a, b = await site.machine(), await site.machine("server")
    await site.bind(a)
    first = await a.turn("one", "1", "native-a")
    session = first.claimed.session.id
    await site.work.runtimes.pin(site.tenant, session, b.id, OnQueued.KEEP, "ann")
    task = await site.queue("two")
    assert (task.session, task.runtime) == (session, b.id)
    await site.cancel(task.id)
    await site.work.runtimes.pin(site.tenant, session, None, OnQueued.KEEP, "ann")
    assert (await site.queue("three")).runtime == a.id


async def test_the_only_runtime_of_a_harness_is_used_and_several_are_refused(site: Site) -> None:
    enqueuer = Enqueuer(site.node.deps)
    wish = RuntimeWish(site.tenant, "ann", AGENT, "claude-code")
    with pytest.raises(RuntimeOffline, match="No runtime offers claude"):
        await enqueuer.choose(wish)
    a = await site.machine()
    plan = await enqueuer.choose(wish)
    assert plan is not None
    assert plan.runtime.id == a.id
    await site.machine("server")
    with pytest.raises(RuntimeAmbiguous, match=r"laptop-claude .*server-claude"):
        await enqueuer.choose(wish)


# -- the audit record ------------------------------------------------------------------------


async def test_I42_the_audit_record_names_who_changed_tasks_and_runtimes(site: Site) -> None:
    await site.machine()
    a = await site.machine(instance="two")
    await site.bind(a)
    task = await site.queue("fix it")
    sent = await a.claim()
    questions = site.work.questions
    await questions.ask(a.key(sent), "q1", {"tool": "shell"}, None)
    await questions.answer(
        site.tenant,
        task.id,
        "q1",
        allowed=False,
        reason="no\ud800",
        user="ann",
        token="tok_1",
        machine="10.0.0.1",
    )
    await site.work.runtimes.pin(site.tenant, task.session, a.id, OnQueued.KEEP, "ann", "tok_1", "10.0.0.1")
    await site.work.runtimes.unbind(site.tenant, AGENT, "ann", "tok_1", "10.0.0.1")
    records = await site.store.list_audit(site.tenant, AuditFilter(), limit=9)
    found = [record.entry for record in records]
    assert [(one.kind.value, one.subject) for one in found] == [
        ("worker_replaced", "laptop"),
        ("runtime_bound", AGENT),
        ("resume_decided", task.session),
        ("approval", task.session),
        ("runtime_bound", task.session),
        ("runtime_bound", AGENT),
    ]
    _, bound, decided, answered, pinned, unbound = (one.detail for one in found)
    assert (bound["from"], bound["to"]) == (None, a.id)
    assert (decided["task"], decided["decision"], decided["worker"]) == (task.id, "fresh", "laptop")
    assert (answered["tool"], answered["decision"], answered["task"]) == ("shell", "reject", task.id)
    assert (pinned["from"], pinned["to"]) == (a.id, a.id)
    assert (unbound["from"], unbound["to"]) == (a.id, None)
    assert {(one.actor, one.user, one.machine) for one in found[3:]} == {("tok_1", "ann", "10.0.0.1")}
    assert [one.machine for one in (found[0], found[2])] == ["laptop", "laptop"]


async def test_I42_a_takeover_is_in_the_audit_record_with_the_worker(hasty: Site) -> None:
    site = hasty
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    first = await a.claim()
    second = await a.claim_again()
    wanted = AuditFilter(AuditKind.CLAIM_TAKEN_OVER)
    (record,) = await site.store.list_audit(site.tenant, wanted, limit=9)
    assert (record.entry.subject, record.entry.machine) == (task.session, "laptop")
    about = record.entry.detail
    assert (about["takes_over"], about["attempt"]) == (first.claimed.attempt.id, second.claimed.attempt.id)
