"""Stories about webhooks: what is announced, to whom, and under which id."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from lastgood.core.commit import plan_commit
from lastgood.flows.webhook_delivery import DeliveryLimits, PostResult, WebhookDelivery
from lastgood.model.attempts import Begun, Committed
from lastgood.model.audit import AuditEntry, AuditKind
from lastgood.model.ids import DEFAULT_TENANT, TenantId
from lastgood.model.webhooks import Delivery, DueDelivery, Webhook, WebhookKind
from tests.faults.faults import Faults, FaultyStore, Mode
from tests.faults.probes import Stage, answer, probe

SECRET = "whsec_AAAA"


async def hook(stage: Stage, id: str = "hook", tenant: TenantId = DEFAULT_TENANT) -> None:
    new = Webhook(id, tenant, "https://example.com", tuple(WebhookKind), "tok", 0.0)
    audit = AuditEntry(tenant, AuditKind.WEBHOOK_ADDED, "tok", "", id)
    assert await stage.store.add_webhook(new, SECRET, 9, audit)


async def outbox(stage: Stage, id: str = "hook", tenant: TenantId = DEFAULT_TENANT) -> tuple[Delivery, ...]:
    return await stage.store.list_deliveries(tenant, id, None, limit=9, before=None)


@probe
async def a_commit_that_does_not_happen_is_not_announced(stage: Stage) -> None:
    await hook(stage)
    session = await stage.world.create(stage.node)
    begin, begun = await stage.begin(session, 1)
    assert isinstance(begun, Begun)
    await stage.store.set_orphaned(begun.hold, True)
    plan = plan_commit(begin, begun, [answer()], 0.0)
    assert (await stage.store.commit_if_head(begun.hold, plan, ())).outcome is Committed.ORPHANED
    assert await outbox(stage) == (), "a webhook was told of a commit that did not happen"


@probe
async def a_webhook_gets_events_of_its_own_tenant_only(stage: Stage) -> None:
    """I35."""
    await hook(stage)
    await hook(stage, "foreign", TenantId("other"))
    session = await stage.world.create(stage.node)
    await stage.world.ask(stage.node, session, "one", "tok1")
    assert [each.kind for each in await outbox(stage)] == ["turn.committed"]
    assert await outbox(stage, "foreign", TenantId("other")) == (), "another tenant was told"


@probe
async def a_message_is_leased_and_keeps_its_id(stage: Stage) -> None:
    await hook(stage)
    session = await stage.world.create(stage.node)
    await stage.world.ask(stage.node, session, "one", "tok1")
    sent: list[str] = []
    taken_twice: list[DueDelivery] = []

    async def post(_: str, __: bytes, headers: Mapping[str, str]) -> PostResult:
        sent.append(headers["webhook-id"])
        # Another node looks while this one sends.
        other = await stage.store.take_deliveries(limit=9, per_webhook=9, lease_seconds=60.0, skip=())
        taken_twice.extend(other)
        return PostResult(500 if len(sent) == 1 else 200)

    delivery = WebhookDelivery(stage.store, post, stage.node.deps.clock)
    stored = (await outbox(stage))[0]
    for tries in (1, 2):
        assert await delivery.step() == 1
        await asyncio.gather(*delivery._sending.values())
        assert len(sent) == tries, "it was not sent"
        await asyncio.sleep(6)  # virtual: the first retry is due after 5 s
    assert not taken_twice, "two nodes send the same message"
    assert sent == [stored.id, stored.id], "a message that was sent again had another id"
    assert (await outbox(stage))[0].delivered_at is not None


@probe
async def a_message_whose_node_dies_after_the_answer_is_sent_again_under_its_id(stage: Stage) -> None:
    """The receiver has it, and nobody knows: the other node sends it once more, and the id says so."""
    await hook(stage)
    session = await stage.world.create(stage.node)
    await stage.world.ask(stage.node, session, "one", "tok1")
    sent: list[str] = []

    async def post(_: str, __: bytes, headers: Mapping[str, str]) -> PostResult:
        sent.append(headers["webhook-id"])
        return PostResult(200)

    faults = Faults()
    faults.point, faults.mode, faults.hit = "store.set_delivered", Mode.RAISE, 1
    dying: Any = FaultyStore(stage.store, faults)
    (stored,) = await outbox(stage)
    for store, lease_ends in ((dying, False), (stage.store, True)):
        if lease_ends:
            await asyncio.sleep(DeliveryLimits().lease_seconds + 1)  # virtual
        delivery = WebhookDelivery(store, post, stage.node.deps.clock)
        assert await delivery.step() == 1, "it is not sent again"
        await asyncio.gather(*delivery._sending.values())
        assert ((await outbox(stage))[0].delivered_at is not None) is lease_ends
    assert sent == [stored.id, stored.id], "a message that was sent again had another id"
    assert await delivery.step() == 0, "it is sent for ever"
