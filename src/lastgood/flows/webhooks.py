"""Webhooks: added, listed, tested and removed. What is sent to them is the business of webhook_delivery."""

from __future__ import annotations

import base64
import secrets

from lastgood.core.egress import Denial, Policy, judge_url, shown
from lastgood.core.input_checks import check_text
from lastgood.core.webhooks import SECRET_PREFIX, kinds_of
from lastgood.errors import Conflict, InvalidRequest, NotFound
from lastgood.model.audit import AuditEntry, AuditKind
from lastgood.model.ids import TenantId
from lastgood.model.rules import LOCAL, Setter
from lastgood.model.webhooks import Delivery, DeliveryState, Webhook
from lastgood.ports import Clock
from lastgood.ports.webhooks import WebhookStore

MOST_WEBHOOKS = 20

#: An operator may have a receiver on this machine, over http. Every other one is public and has https.
RECEIVERS = Policy(loopback=True)


class Webhooks:
    def __init__(self, store: WebhookStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def add(
        self, tenant: TenantId, url: str, kinds: list[str] | None, by: Setter = LOCAL
    ) -> tuple[Webhook, str]:
        """Returns the webhook and its secret, which is never shown again. Without `kinds`, it gets all."""
        check_text(url, "`url`")
        judged = judge_url(url, RECEIVERS)
        if isinstance(judged, Denial):
            raise InvalidRequest(f"`url` is not allowed: {judged.reason}", param="url")
        new = Webhook(
            f"wh_{secrets.token_hex(16)}", tenant, url, kinds_of(kinds), by.token, self._clock.now()
        )
        secret = SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()
        audit = _audit(AuditKind.WEBHOOK_ADDED, new, by)
        if not await self._store.add_webhook(new, secret, MOST_WEBHOOKS, audit):
            raise Conflict(f"There are {MOST_WEBHOOKS} webhooks already (the limit); remove one first")
        return new, secret

    async def list(self, tenant: TenantId) -> tuple[Webhook, ...]:
        """Oldest first, without secrets."""
        return await self._store.list_webhooks(tenant)

    async def remove(self, tenant: TenantId, webhook: str, by: Setter = LOCAL) -> Webhook:
        """With its deliveries; one that is being sent just now may still arrive."""
        known = await self._known(tenant, webhook)
        audit = _audit(AuditKind.WEBHOOK_REMOVED, known, by)
        if not await self._store.remove_webhook(tenant, webhook, audit):
            raise _not_found()
        return known

    async def test(self, tenant: TenantId, webhook: str) -> Delivery:
        """Queues a message of the type webhook.test; a running server sends it."""
        check_text(webhook, "the webhook's id")
        added = await self._store.add_test_delivery(tenant, webhook)
        if added is None:
            raise _not_found()
        return added

    async def deliveries(
        self,
        tenant: TenantId,
        webhook: str,
        state: DeliveryState | None = None,
        *,
        limit: int,
        before: int | None = None,
    ) -> tuple[Delivery, ...]:
        """Newest first, those numbered below `before`."""
        await self._known(tenant, webhook)
        return await self._store.list_deliveries(tenant, webhook, state, limit=limit, before=before)

    async def _known(self, tenant: TenantId, webhook: str) -> Webhook:
        for one in await self._store.list_webhooks(tenant):
            if one.id == webhook:
                return one
        raise _not_found()


def _not_found() -> NotFound:
    return NotFound("Webhook not found; list the webhooks to see their ids")


def _audit(kind: AuditKind, webhook: Webhook, by: Setter) -> AuditEntry:
    about = {"url": shown(webhook.url), "kinds": list(webhook.kinds)}
    return AuditEntry(webhook.tenant, kind, by.token, by.user, webhook.id, about, by.machine)
