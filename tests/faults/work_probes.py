"""Stories about work on runtimes: claims, reports, native sessions and whose they are.

Their sessions are not in the clients' log; each story judges what is stored itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, cast

from lastgood.errors import (
    Forbidden,
    IdempotencyMismatch,
    LastgoodError,
    RuntimeNotFound,
    StaleClaim,
    TaskNotFound,
)
from lastgood.flows.submission import Submission
from lastgood.flows.work.claim_tokens import task_token_of
from lastgood.flows.work.claims import ClaimCall
from lastgood.flows.work.enqueue import Enqueuer, RuntimeWish
from lastgood.flows.work.report_content import ClaimRef
from lastgood.flows.work.task_tokens import TaskTokens
from lastgood.model.attempts import Ask, AttemptStatus
from lastgood.model.ids import DEFAULT_TENANT
from lastgood.model.runtimes import AgentBinding, OnDirty, OnQueued
from lastgood.model.sessions import ScopeKind, TaskScope, TurnKind
from lastgood.model.tasks import PointerOutcome, TaskStatus
from tests.faults.damage_probes import changed
from tests.faults.probes import Stage, probe
from tests.faults.world import AGENT
from tests.flows.work.site import Machine, Site

#: Longer than the lease of a claim.
PAST_LEASE = 100.0


def site_of(stage: Stage) -> Site:
    return Site(cast(Any, None), stage.node, agent=AGENT)


async def claimed(machine: Machine, prompt: str = "go on", **fields: Any) -> Any:
    await machine.site.queue(prompt, runtime=machine.id, **fields)
    return await machine.claim()


def resumed(sent: Any) -> str | None:
    found: str | None = sent.content["resume"].get("native_session")
    return found


async def refused(report: Awaitable[Any], *kinds: type[LastgoodError]) -> None:
    try:
        await report
    except kinds:
        return
    raise AssertionError("it was not refused")


# -- questions ---------------------------------------------------------------------------------


@probe
async def the_answer_to_a_question_is_for_the_call_that_was_shown(stage: Stage) -> None:
    """The id is the CLI's own, and it may use one again."""
    site = site_of(stage)
    machine = await site.machine()
    sent = await claimed(machine)
    ask, key = site.work.questions.ask, machine.key(sent)
    await ask(key, "q", {"tool": "Bash", "input": {"command": "ls"}}, None)
    task = sent.claimed.task.id
    await site.work.questions.answer(site.tenant, task, "q", allowed=True, reason="", user="ann")
    await refused(
        ask(key, "q", {"tool": "Bash", "input": {"command": "rm -rf /"}}, None), IdempotencyMismatch
    )


# -- native sessions ---------------------------------------------------------------------------


@probe
async def a_native_session_stays_with_its_runtime(stage: Stage) -> None:
    """M4.1, and A → B → A."""
    site = site_of(stage)
    a, b = await site.machine(), await site.machine("server")
    await a.turn("on a", "1", "native-a")
    sent = await claimed(b)
    assert resumed(sent) is None, "another runtime got the native session"
    assert sent.content["resume"].get("transcript"), "nor did it get the transcript"
    await b.complete(sent, "2", native_session="native-b")
    back = await claimed(a)
    assert resumed(back) == "native-a", "the session of a was not found again"
    assert [line["content"] for line in back.content["resume"]["catch_up"]] == ["go on", "2"]


@probe
async def the_runtime_of_the_task_decides(stage: Stage) -> None:
    """M4.2: not the one that its agent is bound to now."""
    site = site_of(stage)
    a, b = await site.machine(), await site.machine("server")
    await site.bind(a)
    await a.turn("on a", "1", "native-a")
    await site.queue("queued for a")
    await site.bind(b)
    assert resumed(await a.claim()) == "native-a"


@probe
async def a_session_that_has_seen_other_turns_is_not_resumed(stage: Stage) -> None:
    """I27: after a reset its turns are not part of the history any more."""
    site = site_of(stage)
    a = await site.machine()
    session = (await a.turn("before", "1", "native-a")).claimed.session.id
    ask = Ask(DEFAULT_TENANT, session, (), kind=TurnKind.RESET)
    await (await stage.node.submitter.submit(Submission(ask))).outcome()
    assert resumed(await claimed(a)) is None, "a session from before the reset was resumed"


@probe
async def two_failed_resumes_retire_a_native_session(stage: Stage) -> None:
    """I29: counted, whatever the error says."""
    site = site_of(stage)
    a = await site.machine()
    await a.turn("one", "1", "native-a")
    for _ in range(2):
        sent = await claimed(a)
        assert resumed(sent) == "native-a"
        await a.fail(sent, "timeout", resume_failed=True, tool_calls=1)
    assert resumed(await claimed(a)) is None, "a poisoned session was resumed"


@probe
async def a_binding_says_what_becomes_of_a_failed_prompt(stage: Stage) -> None:
    site = site_of(stage)
    a = await site.machine()
    await site.bind(a, on_dirty=OnDirty.REPLAY)
    await a.turn("one", "1", "native-a")
    await a.fail(await claimed(a), "timeout", native_session="native-a")
    again = await claimed(a)
    assert again.content["resume"]["decision"] == "replay", "the failed prompt is resumed"


@probe
async def a_pointer_holds_what_its_own_attempt_reported(stage: Stage) -> None:
    """I27: a resume that turned out fresh has another native session."""
    site = site_of(stage)
    a = await site.machine()
    session = (await a.turn("one", "1", "native-1")).claimed.session.id
    sent = await claimed(a)
    await a.pin(sent, "native-2", "/two")
    await a.complete(sent, "2", native_session="native-2")
    rows = [(one.native_session, one.attempt) for one in await site.pointers(session)]
    assert rows[-1] == ("native-2", sent.claimed.attempt.id), rows


@probe
async def an_empty_report_keeps_the_pointer(stage: Stage) -> None:
    site = site_of(stage)
    a = await site.machine()
    sent = await claimed(a)
    await a.pin(sent, "native-a", "/w")
    await a.fail(sent, "timeout")
    (pointer,) = await site.pointers(sent.claimed.session.id)
    assert (pointer.native_session, pointer.work_dir) == ("native-a", "/w"), "the pointer was wiped"
    assert (pointer.outcome, pointer.is_dirty) == (PointerOutcome.FAILED, True)


@probe
async def a_retry_has_the_whole_directive(stage: Stage) -> None:
    site = site_of(stage)
    a = await site.machine()
    await a.turn("one", "1", "native-a")
    sent = await claimed(a, fresh=True, note="start over")
    await a.fail(sent, "model_error", native_session="native-2")
    await asyncio.sleep(60)
    again = await a.claim()
    assert again.claimed.task.id == sent.claimed.task.id
    assert again.content["resume"]["decision"] == "fresh", "the retry was not fresh"
    assert again.content["prompt"].startswith("start over")


@probe
async def a_history_that_cannot_be_read_is_never_empty(stage: Stage) -> None:
    """I28: the task fails, and nothing is sent to a runtime."""
    site = site_of(stage)
    a = await site.machine()
    session = (await a.turn("one", "1", "native-a")).claimed.session.id
    stage.node.deps.histories._chains.clear()
    async with changed(stage, "turns", "body", "CAST('[]' AS BLOB)", "seq = 1"):
        task = await site.queue("two", runtime=a.id)
        assert await a.claims() == (), "a claim without its history was sent"
        shown = (await site.task(task.id)).task
    assert (shown.status, shown.error_code) == (TaskStatus.FAILED, "history_damaged")
    await site.check_ends(session)


@probe
async def files_that_are_elsewhere_are_disclosed(stage: Stage) -> None:
    """Nobody gets a transcript about files that silently do not exist: here in a fork."""
    site = site_of(stage)
    a = await site.machine()
    sent = await a.turn("make a.txt", "I wrote a.txt", "native-a", work_dir="/w")
    fork = await stage.node.sessions.fork(DEFAULT_TENANT, sent.claimed.session.id)
    site.scope = TaskScope(ScopeKind.CHAT, fork.id)
    received = (await claimed(a)).content
    assert received["resume"]["transcript"], "the fork has no history"
    assert any("may not exist" in one for one in received["disclosures"]), "its files are not there"


# -- claims and reports ------------------------------------------------------------------------


@probe
async def an_expired_lease_ends_nothing(stage: Stage) -> None:
    """I31: a late report counts if nobody took over."""
    site = site_of(stage)
    a = await site.machine()
    sent = await claimed(a)
    await asyncio.sleep(PAST_LEASE)
    await stage.node.work.sweep.sweep()
    await stage.node.recovery.sweep()
    (attempt,) = await site.attempts(sent.claimed.session.id)
    assert attempt.status is AttemptStatus.RUNNING, f"the attempt is {attempt.status}"
    await a.complete(sent, "late but good")
    assert await site.said(sent.claimed.session.id) == ["go on", "late but good"]


@probe
async def a_claim_that_was_taken_over_reports_nothing(stage: Stage) -> None:
    """I31: every report of the first claim is refused, and its result is kept beside the task."""
    site = site_of(stage)
    a = await site.machine()
    first = await claimed(a)
    await asyncio.sleep(PAST_LEASE)
    second = await a.claim()
    await refused(a.start(first), StaleClaim)
    await refused(a.pin(first, "n"), StaleClaim)
    await refused(a.complete(first, "first"), StaleClaim)
    await refused(a.fail(first), StaleClaim)
    await a.complete(second, "second")
    session = first.claimed.session.id
    assert await site.said(session) == ["go on", "second"]
    assert (await site.task(first.claimed.task.id)).task.late_output == "first"
    await site.check_ends(session)


@probe
async def a_report_needs_the_token_of_its_claim(stage: Stage) -> None:
    site = site_of(stage)
    a = await site.machine()
    sent = await claimed(a)
    guessed = ClaimRef(DEFAULT_TENANT, sent.claimed.task.id, "lgc_guessed", a.worker, a.owner)
    await refused(stage.node.work.reports.start(guessed), StaleClaim)
    foreign = ClaimRef(DEFAULT_TENANT, sent.claimed.task.id, sent.token, "another", a.owner)
    await refused(stage.node.work.reports.start(foreign), TaskNotFound)


@probe
async def a_task_token_ends_with_its_claim(stage: Stage) -> None:
    site = site_of(stage)
    a = await site.machine()
    sent = await claimed(a)
    tokens = TaskTokens(stage.node.deps.store)
    grant = await tokens.check(task_token_of(sent.token))
    assert grant is not None, "the CLI cannot read its task"
    assert (grant.task, grant.session) == (sent.claimed.task.id, sent.claimed.session.id)
    assert await tokens.check(sent.token) is None, "a claim token was taken for a task token"
    await a.complete(sent, "done")
    assert await tokens.check(task_token_of(sent.token)) is None, "the token outlives its claim"


@probe
async def a_repeated_report_gets_its_first_answer(stage: Stage) -> None:
    site = site_of(stage)
    a = await site.machine()
    sent = await claimed(a)
    first = await a.complete(sent, "done")
    assert await a.complete(sent, "done again") == first
    assert await site.said(sent.claimed.session.id) == ["go on", "done"]


@probe
async def a_replaced_worker_claims_nothing(stage: Stage) -> None:
    site = site_of(stage)
    old = await site.machine()
    new = await site.machine(instance="two")
    await site.queue("one", runtime=old.id)
    assert await old.claims() == (), "the replaced instance has claimed a task"
    assert len(await new.claims()) == 1


@probe
async def a_rate_limit_is_no_failure(stage: Stage) -> None:
    site = site_of(stage)
    a = await site.machine()
    sent = await claimed(a)
    for _ in range(4):
        await a.fail(sent, "rate_limited", retry_after_seconds=30.0)
        assert await a.claims() == (), "it was claimed before its reset time"
        await asyncio.sleep(31)
        sent = await a.claim()
    assert sent.claimed.task.failures == 0


@probe
async def a_task_that_crashes_its_workers_ends(stage: Stage) -> None:
    """Each of its runs may have called tools."""
    site = site_of(stage)
    a = await site.machine()
    task = await site.queue("crash", runtime=a.id)
    for _ in range(5):
        await a.start(await a.claim())
        await asyncio.sleep(PAST_LEASE)
    assert await a.claims() == (), "it was claimed once more"
    assert (await site.task(task.id)).task.status is TaskStatus.FAILED
    await site.check_ends(task.session)


@probe
async def a_rate_limit_is_waited_for_a_week(stage: Stage) -> None:
    site = site_of(stage)
    a = await site.machine()
    sent = await claimed(a)
    for day in range(8):
        report = await a.fail(sent, "rate_limited", retry_after_seconds=86_000.0)
        if report["status"] == "failed":
            assert day == 7, f"it ended after {day} days"
            return
        await asyncio.sleep(86_001)
        await a.beat()
        sent = await a.claim()
    raise AssertionError("it is retried for ever")


# -- people ------------------------------------------------------------------------------------


@probe
async def a_cancel_is_final_and_does_not_wait_for_the_worker(stage: Stage) -> None:
    """I14: the session is free at once, and what the worker reports later is never committed."""
    site = site_of(stage)
    a = await site.machine()
    sent = await claimed(a)
    async with asyncio.timeout(1):
        cancelled = await site.cancel(sent.claimed.task.id)
    assert cancelled.status is TaskStatus.CANCELLED
    session = sent.claimed.session.id
    assert (await site.session(session)).attempt is None, "the session is still held"
    await refused(a.complete(sent, "too late"), StaleClaim)
    assert await site.turns(session) == (), "a late result was committed"
    assert (await a.beat(sent)).cancel == (sent.claimed.task.id,), "the worker does not learn it"
    await site.check_ends(session)


@probe
async def after_a_cancel_the_queue_waits_for_a_person(stage: Stage) -> None:
    site = site_of(stage)
    a = await site.machine()
    sent = await claimed(a, "one")
    second = await site.queue("two", runtime=a.id)
    await site.cancel(sent.claimed.task.id)
    assert await a.claims() == (), "a held task was claimed"
    assert "continue or drop it" in (await site.task(second.id)).why
    await stage.node.work.tasks.continue_held(DEFAULT_TENANT, second.id, "ann", all=False)
    assert (await a.claim()).claimed.task.id == second.id


@probe
async def the_hard_deadline_frees_the_session(stage: Stage) -> None:
    """I12."""
    site = site_of(stage)
    a = await site.machine()
    await site.bind(a, deadline_seconds=600.0)
    await site.queue("one")
    sent = await a.claim()
    await asyncio.sleep(601)
    await stage.node.work.sweep.sweep()
    assert (await site.session(sent.claimed.session.id)).attempt is None, "it is held past its deadline"
    await refused(a.complete(sent, "too late"), StaleClaim)


@probe
async def a_private_runtime_is_its_owners(stage: Stage) -> None:
    """I34."""
    site = site_of(stage)
    a = await site.machine()
    sent = await claimed(a)
    other = TaskScope(ScopeKind.ISSUE, "of bob")
    await refused(site.queue("mine", runtime=a.id, user="bob", scope=other), RuntimeNotFound)
    await refused(site.cancel(sent.claimed.task.id, "bob"), TaskNotFound)


@probe
async def a_worker_is_its_owners(stage: Stage) -> None:
    """I34: the token of another user for the same worker id claims, renews and reports nothing."""
    site = site_of(stage)
    a = await site.machine()
    await site.queue("mine", runtime=a.id)
    bobs = ClaimCall(DEFAULT_TENANT, a.worker, a.epoch, (a.id,), 1, user="bob")
    assert await stage.node.work.claims.claim(bobs) == (), "another user claimed the task"
    sent = await a.claim()
    assert (await a.beat(sent, owner="bob")).renewed == (), "another user renewed the claim"
    foreign = ClaimRef(DEFAULT_TENANT, sent.claimed.task.id, sent.token, a.worker, "bob")
    await refused(stage.node.work.reports.start(foreign), TaskNotFound)


@probe
async def a_binding_takes_nothing_from_others(stage: Stage) -> None:
    """I34."""
    site = site_of(stage)
    anns, bobs = await site.machine(), await site.machine("theirs", owner="bob")
    scope = TaskScope(ScopeKind.ISSUE, "of bob")
    task = await site.queue("mine", runtime=bobs.id, user="bob", scope=scope)
    await site.bind(anns, OnQueued.MOVE)
    shown = await stage.node.work.tasks.get(DEFAULT_TENANT, task.id, "bob")
    assert shown.task.runtime == bobs.id, "the task was moved"
    plan = await Enqueuer(stage.node.deps).choose(RuntimeWish(DEFAULT_TENANT, "bob", AGENT))
    assert plan is None, "the agent is bound for others, too"
    replaced = AgentBinding(DEFAULT_TENANT, AGENT, bobs.id, bound_by="bob")
    await refused(stage.node.work.runtimes.bind(replaced, OnQueued.KEEP), Forbidden)
