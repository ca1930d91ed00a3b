"""No task is tried for ever: one that crashes its workers, is always rate limited, or cannot be prepared."""

from __future__ import annotations

import pytest

from lastgood.core.task_retry import MOST_FAILURES, MOST_LOST_CLAIMS
from lastgood.model.attempts import AttemptStatus
from lastgood.model.sessions import ScopeKind, TaskScope
from lastgood.model.tasks import TaskStatus
from tests.flows.cluster import eventually
from tests.flows.work.site import Site

pytestmark = pytest.mark.anyio


async def test_a_task_that_crashes_its_workers_fails_with_its_reason(hasty: Site) -> None:
    """Each of its runs may have called tools, and the next one would call them again."""
    a = await hasty.machine()
    task = await hasty.queue("crash", runtime=a.id)
    for _ in range(MOST_LOST_CLAIMS):
        sent = await a.claim_again()
        await a.start(sent)

    async def given_up() -> bool:
        assert await a.claims() == (), "it was claimed once more"
        return (await hasty.task(task.id)).task.status is TaskStatus.FAILED

    await eventually(given_up)
    shown = (await hasty.task(task.id)).task
    assert (shown.error_code, shown.lost_claims) == ("turn_failed", MOST_LOST_CLAIMS)
    assert shown.error_message is not None
    assert "(its claims were lost 5 times)" in shown.error_message
    assert "lastgood tasks rerun" in shown.error_message
    session = await hasty.session(task.session)
    assert (session.attempt, session.head) == (None, None)
    statuses = [one.status for one in await hasty.attempts(task.session)]
    assert statuses == [*[AttemptStatus.INTERRUPTED] * MOST_LOST_CLAIMS, AttemptStatus.FAILED]
    await hasty.check_ends(task.session)


async def test_a_task_behind_one_that_is_given_up_is_claimed(hasty: Site) -> None:
    a = await hasty.machine()
    await hasty.queue("crash", runtime=a.id)
    second = await hasty.queue("good", runtime=a.id)
    for _ in range(MOST_LOST_CLAIMS):
        await a.claim_again()
    assert (await a.claim_again()).claimed.task.id == second.id


async def test_claims_that_end_with_a_report_are_not_lost(hasty: Site) -> None:
    a = await hasty.machine()
    await hasty.queue("go on", runtime=a.id)
    sent = await a.claim()
    await a.fail(sent, "rate_limited", retry_after_seconds=0.0)
    await hasty.cluster.backend.execute("UPDATE tasks SET due_at = 0")
    again = await a.claim()
    assert (again.claimed.task.claims, again.claimed.task.lost_claims) == (2, 0)


async def test_a_rate_limit_of_a_week_is_a_failure(site: Site) -> None:
    a = await site.machine()
    task = await site.queue("go on", runtime=a.id)
    sent = await a.claim()
    await site.cluster.backend.execute("UPDATE tasks SET tried_since = tried_since - 7 * 86400")
    report = await a.fail(sent, "rate_limited", retry_after_seconds=60.0)
    assert report["status"] == "failed"
    message = (await site.task(task.id)).task.error_message
    assert message is not None
    assert "rate limited by the model's provider; it was retried for 7.0 days" in message


async def test_a_task_that_was_held_is_retried_as_long_as_a_new_one(site: Site) -> None:
    a = await site.machine()
    first = await site.queue("one", runtime=a.id)
    sent = await a.claim()
    task = await site.queue("two", runtime=a.id)
    await site.cluster.backend.execute("UPDATE tasks SET tried_since = 1")
    await site.cancel(first.id)
    assert (await site.task(task.id)).task.held
    await site.work.tasks.continue_held(site.tenant, task.id, "ann", all=False)
    sent = await a.claim()
    assert (await a.fail(sent, "rate_limited", retry_after_seconds=60.0))["status"] == "deferred"


async def test_a_claim_that_cannot_be_prepared_keeps_its_worker_from_no_other(site: Site) -> None:
    """Its files were saved, and the row says what nobody can read."""
    a, b = await site.machine(), await site.machine("server")
    await site.queue("make a.txt", runtime=a.id)
    sent = await a.claim()
    await site.work.reports.snapshot(a.key(sent), "tar", {}, b"files")
    await a.complete(sent, "done", native_session="native-a", work_dir="/a")
    await site.cluster.backend.execute("UPDATE snapshots SET summary = '{'")
    task = await site.queue("go on", runtime=b.id)
    site.scope = TaskScope(ScopeKind.ISSUE, "43")
    other = await site.queue("good", runtime=b.id)
    assert [one.claimed.task.id for one in await b.claims(2)] == [other.id]
    shown = await site.task(task.id)
    assert (shown.task.status, shown.task.failures) == (TaskStatus.DEFERRED, 1)
    assert "could not prepare the claim" in shown.why
    for _ in range(MOST_FAILURES - 1):
        await site.cluster.backend.execute("UPDATE tasks SET due_at = 0 WHERE ended_at IS NULL")
        assert await b.claims() == ()
    shown = await site.task(task.id)
    assert (shown.task.status, shown.task.error_code) == (TaskStatus.FAILED, "turn_failed")
    await site.check_ends(task.session)
