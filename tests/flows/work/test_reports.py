"""Reports count once, only with the current claim, and end their attempt in one transaction (I17, I31)."""

from __future__ import annotations

import asyncio

import pytest

from lastgood.errors import SessionBusy, StaleClaim, TaskNotFound
from lastgood.flows.submission import Submission
from lastgood.flows.work.report_content import ClaimRef
from lastgood.model.attempts import AttemptStatus
from lastgood.model.events import EventKind
from lastgood.model.ids import TaskId, TenantId
from lastgood.model.messages import user
from lastgood.model.queue import NewQueued, QueueKind
from lastgood.model.sessions import Usage
from lastgood.model.tasks import PointerOutcome, TaskMessage, TaskStatus
from tests.flows.work.site import Site

pytestmark = pytest.mark.anyio


async def test_I17_a_completed_task_is_a_committed_turn(site: Site) -> None:
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    sent = await a.claim()
    await a.start(sent)
    report = await a.complete(sent, "fixed", usage=Usage(10, 20, 0.5), native_session="n", model="opus")
    (turn,) = await site.turns(task.session)
    assert report == {"status": "completed", "turn": turn.id, "seq": 1}
    assert [message.content for message in turn.messages] == ["fix it", "fixed"]
    assert (turn.usage, turn.model, turn.attempt) == (Usage(10, 20, 0.5), "opus", sent.claimed.attempt.id)
    session = await site.session(task.session)
    assert (session.attempt, session.usage.output_tokens) == (None, 20)
    assert (await site.task(task.id)).task.status is TaskStatus.COMPLETED
    await site.check_ends(task.session)


async def test_I31_a_report_sent_twice_counts_once_and_gets_its_first_answer(site: Site) -> None:
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    sent = await a.claim()
    first = await a.complete(sent, "fixed")
    assert await a.complete(sent, "fixed, really") == first
    assert await site.said(task.session) == ["fix it", "fixed"]
    await site.check_ends(task.session)


async def test_I31_reports_at_once_commit_one_turn(site: Site) -> None:
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    sent = await a.claim()
    answers = await asyncio.gather(*(a.complete(sent, "fixed") for _ in range(5)))
    assert all(answer == answers[0] for answer in answers)
    assert len(await site.turns(task.session)) == 1


async def test_I31_a_wrong_token_is_stale_and_another_worker_finds_no_task(site: Site) -> None:
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    sent = await a.claim()
    for worker in ("laptop", None):
        with pytest.raises(StaleClaim):
            await site.work.reports.start(ClaimRef(site.tenant, task.id, "lgc_other", worker, "ann"))
    for key in (
        ClaimRef(site.tenant, task.id, sent.token, "server", "ann"),
        ClaimRef(site.tenant, task.id, sent.token, "laptop", "bob"),
        ClaimRef(site.tenant, task.id, sent.token, None, "bob"),
        ClaimRef(site.tenant, task.id, "lgc_other", "server", "ann"),
        ClaimRef(TenantId("other"), task.id, sent.token, None, "ann"),
        ClaimRef(site.tenant, TaskId("task_unknown"), sent.token, "laptop", "ann"),
    ):
        with pytest.raises(TaskNotFound):
            await site.work.reports.start(key)
    bound_to_none = ClaimRef(site.tenant, task.id, sent.token, None, "ann")
    assert await site.work.reports.start(bound_to_none) == {}


async def test_a_late_report_counts_if_no_worker_took_over(hasty: Site) -> None:
    """A partition that is longer than the lease: expiry alone ends nothing."""
    a = await hasty.machine()
    task = await hasty.queue("fix it", runtime=a.id)
    sent = await a.claim()
    shown = await hasty.task(task.id)
    assert "claimable" in shown.why
    await hasty.work.sweep.sweep()
    await hasty.node.recovery.sweep()
    assert (await hasty.attempts(task.session))[0].status is AttemptStatus.RUNNING
    with pytest.raises(SessionBusy):
        await hasty.node.submitter.submit(
            Submission(hasty.cluster.asked(task.session, "meanwhile", user="", agent_key=None))
        )
    await a.complete(sent, "fixed")
    assert await hasty.said(task.session) == ["fix it", "fixed"]
    await hasty.check_ends(task.session)


async def test_I31_the_next_claim_ends_the_one_before(hasty: Site) -> None:
    a = await hasty.machine()
    task = await hasty.queue("fix it", runtime=a.id)
    first = await a.claim()
    second = await a.claim_again()
    assert second.claimed.task.id == first.claimed.task.id
    assert second.token != first.token
    with pytest.raises(StaleClaim):
        await a.start(first)
    with pytest.raises(StaleClaim):
        await a.pin(first, "n")
    with pytest.raises(StaleClaim):
        await a.complete(first, "from the first")
    with pytest.raises(StaleClaim):
        await a.fail(first)
    await a.complete(second, "from the second")
    assert await hasty.said(task.session) == ["fix it", "from the second"]
    shown = (await hasty.task(task.id)).task
    assert shown.late_output == "from the first"
    statuses = [one.status for one in await hasty.attempts(task.session)]
    assert sorted(statuses) == [AttemptStatus.COMMITTED, AttemptStatus.INTERRUPTED]
    await hasty.check_ends(task.session)


async def test_a_failure_is_tried_again_with_backoff_and_then_final(site: Site) -> None:
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    for number in range(3):
        sent = await a.claim()
        report = await a.fail(sent, "model_error", error="500 from the provider")
        if number < 2:
            assert (report["status"], report["due_seconds"]) == ("deferred", 5.0 * 2**number)
            shown = await site.task(task.id)
            assert shown.why.startswith("due at ")
            assert await a.claims() == ()
            await site.cluster.backend.execute("UPDATE tasks SET due_at = 0 WHERE due_at IS NOT NULL")
    assert report["status"] == "failed"
    shown = await site.task(task.id)
    assert (shown.task.status, shown.task.error_code, shown.why) == (TaskStatus.FAILED, "model_error", "")
    assert "500 from the provider" in (shown.task.error_message or "")
    assert await site.turns(task.session) == ()
    assert len(await site.attempts(task.session)) == 3
    await site.check_ends(task.session)


async def test_a_rate_limit_defers_until_its_reset_and_is_no_failure(site: Site) -> None:
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    sent = await a.claim()
    report = await a.fail(sent, "rate_limited", retry_after_seconds=1800.0, tool_calls=3)
    assert report["due_seconds"] == 1800.0
    shown = await site.task(task.id)
    assert (shown.task.status, shown.task.failures) == (TaskStatus.DEFERRED, 0)
    assert "rate limited" in shown.why


async def test_an_empty_report_never_wipes_a_pointer(site: Site) -> None:
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    sent = await a.claim()
    await a.pin(sent, "native-a", "/w")
    await a.fail(sent, "timeout")
    (pointer,) = await site.pointers(task.session)
    assert (pointer.native_session, pointer.work_dir) == ("native-a", "/w")
    assert (pointer.outcome, pointer.is_dirty) == (PointerOutcome.FAILED, True)


async def test_I27_another_session_than_the_pinned_one_has_not_seen_its_turns(site: Site) -> None:
    a = await site.machine()
    first = await a.turn("one", "1", "native-1")
    await site.queue("two", runtime=a.id)
    sent = await a.claim()
    await a.pin(sent, "native-1")
    await a.fail(sent, "timeout", native_session="native-2", retired_session="native-1")
    pointer = (await site.pointers(first.claimed.session.id))[-1]
    assert (pointer.native_session, pointer.through) == ("native-2", None)


async def test_a_pin_survives_the_death_of_its_worker(hasty: Site) -> None:
    a = await hasty.machine()
    await hasty.queue("fix it", runtime=a.id)
    first = await a.claim()
    await a.pin(first, "native-a", "/w")
    second = await a.claim_again()
    resume = second.content["resume"]
    assert resume["native_session"] == "native-a"
    assert "not committed" in second.content["disclosures"][0]
    assert second.content["work_dir"] == "/w"


async def test_messages_become_events_once_and_in_order(site: Site) -> None:
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    sent = await a.claim()
    received = [
        TaskMessage(1, {"type": "thinking", "content": "hm"}),
        TaskMessage(2, {"type": "tool_use", "tool": "Edit", "call": "c1", "input": {"path": "a"}}),
        TaskMessage(3, {"type": "tool_result", "tool": "Edit", "call": "c1", "output": "ok"}),
        TaskMessage(4, {"type": "text", "content": "fixed \ud800\x00"}),
    ]
    key = a.key(sent)
    assert (await site.work.reports.messages(key, received[:3]))["acked_seq"] == 3
    assert (await site.work.reports.messages(key, received))["acked_seq"] == 4
    assert (await site.work.reports.messages(key, received[:2]))["acked_seq"] == 4
    await a.complete(sent, "fixed")
    kinds = [
        one.kind
        for one in await site.events(task.session)
        if one.kind
        in (
            EventKind.REASONING_STREAMED,
            EventKind.TOOL_CALLED,
            EventKind.TOOL_ANSWERED,
            EventKind.TEXT_STREAMED,
        )
    ]
    assert kinds == [
        EventKind.REASONING_STREAMED,
        EventKind.TOOL_CALLED,
        EventKind.TOOL_ANSWERED,
        EventKind.TEXT_STREAMED,
    ]
    stored = await site.work.tasks.messages(site.tenant, task.id, "ann", after=0, limit=10)
    assert [one.seq for one in stored] == [1, 2, 3, 4]
    assert stored[3].body["content"] == "fixed \ufffd\ufffd"


async def test_output_that_no_store_can_hold_is_made_valid(site: Site) -> None:
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    sent = await a.claim()
    await a.complete(sent, "nul \x00 half \ud800")
    assert (await site.said(task.session))[1] == "nul \ufffd half \ufffd"


async def test_an_answer_without_words_is_no_empty_message(site: Site) -> None:
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    await a.complete(await a.claim(), "  ")
    assert (await site.said(task.session))[1].startswith("[The agent ended its turn")


async def test_steers_are_delivered_and_part_of_the_turn(site: Site) -> None:
    a = await site.machine(steerable=True)
    task = await site.queue("fix it", runtime=a.id)
    sent = await a.claim()
    steer = NewQueued(
        site.tenant, task.session, site.node.deps.ids.turn(), QueueKind.STEER, (user("and the tests"),)
    )
    await site.store.enqueue(steer, most=5)
    news = await a.start(sent)
    assert [one["text"] for one in news["steers"]] == ["and the tests"]
    number = news["steers"][0]["id"]
    await site.work.reports.messages(a.key(sent), [], [number])
    assert await a.start(sent) == {}
    await a.complete(sent, "fixed")
    assert await site.said(task.session) == ["fix it", "and the tests", "fixed"]


async def test_a_claim_waits_for_a_task_and_is_woken_by_it(site: Site) -> None:
    a = await site.machine()
    waiting = asyncio.create_task(a.claims(wait=20.0))
    await asyncio.sleep(0)
    await site.queue("fix it", runtime=a.id)
    async with asyncio.timeout(5):
        assert len(await waiting) == 1


async def test_a_worker_that_disconnects_claims_nothing(site: Site) -> None:
    a = await site.machine()
    waiting = asyncio.create_task(a.claims(wait=20.0))
    await asyncio.sleep(0)
    task = await site.queue("fix it", runtime=a.id)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    # The claim may still be on its way to the database, and is given back when it has arrived.
    assert (await a.claim_again()).claimed.task.id == task.id
    await site.check_ends(task.session)


async def test_claims_that_were_not_sent_are_given_back(site: Site) -> None:
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    await site.work.claims.give_back([await a.claim()])
    shown = await site.task(task.id)
    assert (shown.task.status, shown.task.failures) == (TaskStatus.QUEUED, 0)
    await a.complete(await a.claim(), "fixed")
    await site.check_ends(task.session)


async def test_an_attempt_has_the_version_of_the_cli_that_ran_it(site: Site) -> None:
    a = await site.machine()
    task = await site.queue("fix it", runtime=a.id)
    await a.fail(await a.claim(), "model_error", cli_version="1.0 (untested)")
    assert (await site.task(task.id)).task.cli_version == "1.0 (untested)"
    await site.cluster.backend.execute("UPDATE tasks SET due_at = 0")
    sent = await a.claim()
    assert sent.claimed.task.cli_version == "", "nobody knows yet what will run it"
    await a.complete(sent, "fixed", cli_version="2.1.197")
    assert (await site.task(task.id)).task.cli_version == "2.1.197"
    versions = [one.cli_version for one in await site.attempts(task.session)]
    assert versions == ["1.0 (untested)", "2.1.197"]
