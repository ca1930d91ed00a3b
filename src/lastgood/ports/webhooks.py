"""What the flows need of stored webhooks and their outbox.

Messages are added by the calls that do what they announce, in the same transaction: see `WebhookKind`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from lastgood.model.audit import AuditEntry
from lastgood.model.ids import TenantId
from lastgood.model.webhooks import Delivery, DeliveryState, DueDelivery, Webhook


class WebhookStore(Protocol):
    async def add_webhook(self, webhook: Webhook, secret: str, most: int, audit: AuditEntry) -> bool:
        """False: the tenant has `most` already."""
        ...

    async def list_webhooks(self, tenant: TenantId) -> tuple[Webhook, ...]: ...

    async def remove_webhook(self, tenant: TenantId, webhook: str, audit: AuditEntry) -> bool:
        """Removes its messages, too. False: it does not exist."""
        ...

    async def add_test_delivery(self, tenant: TenantId, webhook: str) -> Delivery | None:
        """None: the webhook does not exist."""
        ...

    async def list_deliveries(
        self, tenant: TenantId, webhook: str, state: DeliveryState | None, *, limit: int, before: int | None
    ) -> tuple[Delivery, ...]:
        """Newest first, those numbered below `before`."""
        ...

    async def dead_deliveries(
        self, tenant: TenantId, *, age_seconds: float, limit: int
    ) -> tuple[Delivery, ...]:
        """Dead letters of all webhooks that were created within this time, newest first."""
        ...

    async def take_deliveries(
        self, *, limit: int, per_webhook: int, lease_seconds: float, skip: Collection[str]
    ) -> tuple[DueDelivery, ...]:
        """Leases messages that are due, of webhooks that are not in `skip`, and counts the try. Nobody else
        gets them until the lease ends; then they are due again."""
        ...

    async def set_delivered(self, delivery: Delivery) -> None: ...

    async def set_failed(self, delivery: Delivery, error: str, delay_seconds: float | None) -> None:
        """Due again after the delay; without one it is a dead letter. Ignored if it was leased again."""
        ...

    async def disable_webhook(self, tenant: TenantId, webhook: str) -> None: ...

    async def tidy_deliveries(self, *, delivered_seconds: float, dead_seconds: float) -> None:
        """Deletes settled messages that are older."""
        ...

    async def notice_offline(self, offline_seconds: float, limit: int) -> int:
        """Announces runtimes that have gone offline, each once until it is seen again. Returns how many."""
        ...
