"""The outbox of webhooks: a message is there with what it announces, or not at all."""

import asyncio
from typing import Any

import pytest

from lastgood.model.attempts import AttemptStatus, Committed
from lastgood.model.audit import AuditEntry, AuditFilter, AuditKind
from lastgood.model.ids import TenantId
from lastgood.model.tasks import TaskEnd, TaskStatus
from lastgood.model.webhooks import Delivery, DeliveryState, DueDelivery, Webhook, WebhookKind
from lastgood.ports import Store
from tests.contract import builders, work_builders
from tests.contract.builders import STRANGER, TENANT
from tests.contract.conftest import Backend

pytestmark = pytest.mark.anyio

SECRET = "whsec_Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5"


def audit(tenant: TenantId = TENANT, kind: AuditKind = AuditKind.WEBHOOK_ADDED) -> AuditEntry:
    return AuditEntry(tenant, kind, "tok", "ann", "hook")


async def hook(
    store: Store, *kinds: WebhookKind, id: str = "hook", tenant: TenantId = TENANT, most: int = 9
) -> Webhook:
    made = Webhook(id, tenant, "https://example.com/in", kinds or tuple(WebhookKind), "tok", 5.0)
    assert await store.add_webhook(made, SECRET, most, audit(tenant))
    return made


async def outbox(store: Store, webhook: str = "hook", tenant: TenantId = TENANT) -> list[Delivery]:
    """Oldest first."""
    found = await store.list_deliveries(tenant, webhook, None, limit=100, before=None)
    return list(reversed(found))


async def received(store: Store) -> list[str]:
    return [each.kind for each in await outbox(store)]


async def take(store: Store, **fields: Any) -> tuple[DueDelivery, ...]:
    wanted: dict[str, Any] = {"limit": 9, "per_webhook": 4, "lease_seconds": 30.0, "skip": ()} | fields
    return await store.take_deliveries(**wanted)


# --- what is announced -------------------------------------------------------------------------------------


async def test_a_commit_is_announced_to_its_subscribers(store: Store) -> None:
    await hook(store)
    await hook(store, WebhookKind.TURN_COMMITTED, id="same")
    await hook(store, WebhookKind.TURN_FAILED, id="deaf")
    session = await builders.session(store)
    turn = await builders.commit(store, session)
    (message,) = await outbox(store)
    assert (message.kind, message.session, message.turn) == ("turn.committed", session.id, turn.id)
    assert (message.tries, message.state, message.task) == (0, DeliveryState.PENDING, None)
    assert [each.id for each in await outbox(store, "same")] == [message.id]
    assert await outbox(store, "deaf") == []


async def test_a_commit_that_lost_announces_nothing(store: Store) -> None:
    await hook(store)
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    assert await store.set_orphaned(tried.hold, True)
    assert (await store.commit_if_head(tried.hold, tried.plan(), [])).outcome is Committed.ORPHANED
    assert await store.finish_if_held(tried.hold, AttemptStatus.CANCELLED, None, [])
    assert (await store.commit_if_head(tried.hold, tried.plan(), [])).outcome is Committed.LOST
    assert await received(store) == []


async def test_a_commit_with_something_of_the_queue_is_announced_once(store: Store) -> None:
    await hook(store)
    session = await builders.session(store)
    taken = await builders.take(store, session, await builders.followup(store, session))
    assert (await store.commit_if_head(taken.hold, taken.plan(), [])).outcome is Committed.YES
    assert await received(store) == ["turn.committed"]


@pytest.mark.parametrize("status", [AttemptStatus.FAILED, AttemptStatus.CANCELLED, AttemptStatus.INTERRUPTED])
async def test_only_a_failure_is_announced_as_one(store: Store, status: AttemptStatus) -> None:
    await hook(store)
    tried = await builders.start(store, builders.ask(await builders.session(store)))
    assert await store.finish_if_held(tried.hold, status, ("model_failed", "no\x00pe"), [])
    assert not await store.finish_if_held(tried.hold, status, ("model_failed", "nope"), [])
    if status is not AttemptStatus.FAILED:
        assert await received(store) == []
        return
    (message,) = await outbox(store)
    assert (message.kind, message.turn, message.attempt) == (
        "turn.failed",
        tried.begun.turn,
        tried.hold.attempt,
    )
    assert message.detail["error"]["code"] == "model_failed"


async def test_a_question_is_announced_without_its_arguments(store: Store) -> None:
    await hook(store)
    tried = await builders.start(store, builders.ask(await builders.session(store)))
    question = {"kind": "confirm", "tool": "shell", "arguments": "rm -r secrets"}
    assert await store.wait_if_held(tried.hold, question, 60.0, [])
    assert not await store.wait_if_held(tried.hold, question, 60.0, [])
    (message,) = await outbox(store)
    assert (message.kind, message.detail) == ("approval.waiting", {"tool": "shell"})


async def test_a_question_of_a_task_is_announced_once(store: Store) -> None:
    await hook(store)
    await work_builders.register(store)
    await work_builders.task(store, await builders.session(store))
    claim = await work_builders.claim(store)
    state, question = await claim.state(store), work_builders.question(claim)
    for _ in range(2):
        assert await store.ask_question(state, claim.token, question, []) is not None
    (message,) = await outbox(store)
    assert (message.kind, message.task, message.attempt) == (
        "approval.waiting",
        claim.task,
        claim.hold.attempt,
    )


async def test_a_task_is_announced_when_it_ends_and_not_when_it_is_tried_again(store: Store) -> None:
    await hook(store)
    await work_builders.register(store)
    session = await builders.session(store)
    task = await work_builders.task(store, session)
    claim = await work_builders.claim(store)
    again = TaskEnd(task.id, TaskStatus.DEFERRED, token=claim.token, due_seconds=0.0)
    assert await store.finish_if_held(claim.hold, AttemptStatus.FAILED, ("x", "y"), [], task=again)
    assert await received(store) == []
    second = await work_builders.claim(store)
    assert await second.complete(store) is Committed.YES
    assert await received(store) == ["turn.committed", "task.ended"]
    ended = (await outbox(store))[1]
    assert (ended.detail, ended.task, ended.turn) == ({"status": "completed"}, task.id, task.turn)


async def test_a_report_under_an_old_claim_announces_nothing(store: Store) -> None:
    await hook(store)
    await work_builders.register(store)
    task = await work_builders.task(store, await builders.session(store))
    claim = await work_builders.claim(store)
    stale = TaskEnd(task.id, TaskStatus.FAILED, token=b"another" * 4, error=("x", "y"))
    assert not await store.finish_if_held(claim.hold, AttemptStatus.FAILED, None, [], task=stale)
    assert await received(store) == []


async def test_a_task_that_ends_unclaimed_is_announced(store: Store) -> None:
    await hook(store)
    task = await work_builders.task(store, await builders.session(store))
    end = TaskEnd(task.id, TaskStatus.FAILED, error=("runtime_offline", "nobody came"))
    assert await store.end_queued_task(TENANT, end, [])
    assert not await store.end_queued_task(TENANT, end, [])
    (message,) = await outbox(store)
    error = {"code": "runtime_offline", "message": "nobody came"}
    assert (message.kind, message.detail) == ("task.ended", {"status": "failed", "error": error})


async def test_a_runtime_is_announced_once_for_each_time_it_goes_offline(backend: Backend) -> None:
    store = backend.store
    await hook(store)
    registered = await work_builders.register(store)
    assert await store.notice_offline(150.0, 9) == 0
    for round in (1, 2):
        await backend.execute("UPDATE runtimes SET last_seen_at = 1")
        await asyncio.gather(*(store.notice_offline(150.0, 9) for _ in range(4)))
        assert await store.notice_offline(150.0, 9) == 0
        assert await received(store) == ["runtime.offline"] * round
        await work_builders.register(store)
        assert await store.notice_offline(150.0, 9) == 0
    assert (await outbox(store))[0].detail["runtime_id"] == registered.runtimes[0].id


async def test_nothing_is_stored_without_a_webhook(backend: Backend) -> None:
    await builders.commit(backend.store, await builders.session(backend.store))
    assert await backend.rows("SELECT * FROM webhook_outbox") == []
    assert await take(backend.store) == ()


async def test_I35_what_happens_in_a_tenant_is_announced_there(store: Store) -> None:
    await hook(store, id="theirs", tenant=STRANGER)
    await hook(store)
    await builders.commit(store, await builders.session(store))
    assert await outbox(store, "theirs", STRANGER) == []
    assert await outbox(store, "hook", STRANGER) == []
    assert [each.id for each in await store.list_webhooks(STRANGER)] == ["theirs"]
    assert not await store.remove_webhook(STRANGER, "hook", audit(STRANGER))
    assert await store.add_test_delivery(STRANGER, "hook") is None
    await store.disable_webhook(STRANGER, "hook")
    assert (await store.list_webhooks(TENANT))[0].disabled_at is None
    assert len(await outbox(store)) == 1


# --- the webhooks themselves -------------------------------------------------------------------------------


async def test_I41_a_webhook_is_listed_without_its_secret(store: Store) -> None:
    made = await hook(store, WebhookKind.TASK_ENDED)
    assert await store.list_webhooks(TENANT) == (made,)
    await store.add_test_delivery(TENANT, made.id)
    (due,) = await take(store)
    assert (due.secret, due.url) == (SECRET, made.url)
    assert SECRET not in repr(due)


async def test_a_tenant_has_a_limit_of_webhooks(store: Store) -> None:
    await hook(store, most=1)
    more = Webhook("more", TENANT, "https://example.com", (WebhookKind.TASK_ENDED,), "tok", 5.0)
    assert not await store.add_webhook(more, SECRET, 1, audit())
    records = await store.list_audit(TENANT, AuditFilter(AuditKind.WEBHOOK_ADDED), limit=9)
    assert len(records) == 1


async def test_a_webhook_is_removed_with_its_messages(store: Store) -> None:
    await hook(store)
    await builders.commit(store, await builders.session(store))
    removed = audit(kind=AuditKind.WEBHOOK_REMOVED)
    assert await store.remove_webhook(TENANT, "hook", removed)
    assert not await store.remove_webhook(TENANT, "hook", removed)
    assert (await outbox(store), await take(store)) == ([], ())
    records = await store.list_audit(TENANT, AuditFilter(AuditKind.WEBHOOK_REMOVED), limit=9)
    assert len(records) == 1


async def test_a_disabled_webhook_gets_no_new_messages(store: Store) -> None:
    await hook(store)
    await store.disable_webhook(TENANT, "hook")
    await builders.commit(store, await builders.session(store))
    assert await received(store) == []
    assert (await store.list_webhooks(TENANT))[0].disabled_at is not None


# --- delivery ----------------------------------------------------------------------------------------------


async def test_a_message_is_leased_to_one_taker(store: Store) -> None:
    await hook(store)
    session = await builders.session(store)
    for _ in range(6):
        await builders.commit(store, session)
    takes = await asyncio.gather(*(take(store) for _ in range(5)))
    taken = [due.delivery.id for each in takes for due in each]
    assert len(taken) == len(set(taken)) == 6
    assert await take(store) == ()


async def test_a_message_is_due_again_when_its_lease_ends(store: Store) -> None:
    await hook(store)
    await builders.commit(store, await builders.session(store))
    (first,) = await take(store, lease_seconds=0.0)
    (second,) = await take(store)
    assert (first.delivery.id, first.delivery.tries) == (second.delivery.id, 1)
    assert second.delivery.tries == 2
    await store.set_failed(first.delivery, "too late", None)
    assert (await outbox(store))[0].state is DeliveryState.PENDING, "another try is under way"
    await store.set_delivered(first.delivery)
    await store.set_failed(second.delivery, "answered 500", 0.0)
    (message,) = await outbox(store)
    assert (message.state, message.last_error) == (DeliveryState.DELIVERED, None)
    assert await take(store) == ()


async def test_a_dead_letter_can_be_read(store: Store) -> None:
    await hook(store)
    session = await builders.session(store)
    for _ in range(2):
        await builders.commit(store, session)
    one, two = await take(store)
    await store.set_failed(one.delivery, "answered 500", None)
    await store.set_failed(two.delivery, "answered 500", 60.0)
    assert await take(store) == ()
    (dead,) = await store.list_deliveries(TENANT, "hook", DeliveryState.DEAD, limit=9, before=None)
    assert (dead.id, dead.last_error) == (one.delivery.id, "answered 500")
    assert await store.dead_deliveries(TENANT, age_seconds=60.0, limit=9) == (dead,)
    assert await store.dead_deliveries(STRANGER, age_seconds=60.0, limit=9) == ()
    assert await store.dead_deliveries(TENANT, age_seconds=-60.0, limit=9) == ()
    (newest,) = await store.list_deliveries(TENANT, "hook", None, limit=1, before=None)
    rest = await store.list_deliveries(TENANT, "hook", None, limit=9, before=newest.number)
    assert len(rest) == 1


async def test_a_backlog_of_one_webhook_does_not_keep_others_waiting(store: Store) -> None:
    await hook(store, id="slow")
    session = await builders.session(store)
    for _ in range(9):
        await builders.commit(store, session)
    await hook(store, id="quick")
    await builders.commit(store, session)
    taken = [due.delivery.webhook for due in await take(store, limit=9)]
    assert sorted(taken) == ["quick", *["slow"] * 4]
    assert await take(store, skip=("slow",)) == ()
    assert len(await take(store)) == 4


async def test_settled_messages_are_deleted_after_their_time(backend: Backend) -> None:
    store = backend.store
    await hook(store)
    session = await builders.session(store)
    for _ in range(3):
        await builders.commit(store, session)
    delivered, dead, pending = await take(store)
    await store.set_delivered(delivered.delivery)
    await store.set_failed(dead.delivery, "answered 500", None)
    await store.tidy_deliveries(delivered_seconds=60.0, dead_seconds=60.0)
    assert len(await outbox(store)) == 3
    await backend.execute("UPDATE webhook_outbox SET created_at = 1")
    await store.tidy_deliveries(delivered_seconds=-60.0, dead_seconds=60.0)
    assert [each.id for each in await outbox(store)] == [pending.delivery.id]
