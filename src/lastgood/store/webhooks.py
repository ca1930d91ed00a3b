"""Webhooks and their outbox, on either database. A message that is taken is leased by its due time."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import orjson

from lastgood.model.audit import AuditEntry
from lastgood.model.ids import AttemptId, SessionId, TaskId, TenantId, TurnId
from lastgood.model.webhooks import TEST_KIND, Delivery, DeliveryState, DueDelivery, Webhook, WebhookKind
from lastgood.store.announcements import announcement
from lastgood.store.audit import of_audit
from lastgood.store.rows import Row, writable
from lastgood.store.task_rows import as_text
from lastgood.store.work_access import Statements, WorkTransactions, first


class SqlWebhooks(WorkTransactions):
    async def add_webhook(self, webhook: Webhook, secret: str, most: int, audit: AuditEntry) -> bool:
        parameters = {
            "id": webhook.id,
            "tenant": webhook.tenant,
            "url": webhook.url,
            "secret": secret,
            "kinds": as_text(webhook.kinds),
            "created_by": webhook.created_by,
            "created_at": webhook.created_at,
            "most": most,
        }

        async def work(statements: Statements) -> bool:
            if not await statements.rows("insert_webhook", parameters):
                return False
            await statements.rows("insert_audit", of_audit(audit))
            return True

        return await self._transact(work)

    async def list_webhooks(self, tenant: TenantId) -> tuple[Webhook, ...]:
        return tuple(map(_to_webhook, await self._rows("list_webhooks", {"tenant": tenant})))

    async def remove_webhook(self, tenant: TenantId, webhook: str, audit: AuditEntry) -> bool:
        which = {"tenant": tenant, "webhook": webhook}

        async def work(statements: Statements) -> bool:
            if not await statements.rows("delete_webhook", which):
                return False
            await statements.rows("delete_deliveries", which)
            await statements.rows("insert_audit", of_audit(audit))
            return True

        return await self._transact(work)

    async def add_test_delivery(self, tenant: TenantId, webhook: str) -> Delivery | None:
        parameters = announcement(TEST_KIND) | {"tenant": tenant, "webhook": webhook}
        rows = await self._write("announce_test", parameters)
        return to_delivery(rows[0]) if rows else None

    async def list_deliveries(
        self, tenant: TenantId, webhook: str, state: DeliveryState | None, *, limit: int, before: int | None
    ) -> tuple[Delivery, ...]:
        wanted = {
            "tenant": tenant,
            "webhook": webhook,
            "state": state.value if state else None,
            "limit": limit,
            "before": before,
        }
        return tuple(map(to_delivery, await self._rows("list_deliveries", wanted)))

    async def dead_deliveries(
        self, tenant: TenantId, *, age_seconds: float, limit: int
    ) -> tuple[Delivery, ...]:
        wanted = {"tenant": tenant, "seconds": age_seconds, "limit": limit}
        return tuple(map(to_delivery, await self._rows("dead_deliveries", wanted)))

    async def take_deliveries(
        self, *, limit: int, per_webhook: int, lease_seconds: float, skip: Collection[str]
    ) -> tuple[DueDelivery, ...]:
        wanted = {
            "limit": limit,
            "per_webhook": per_webhook,
            "lease": lease_seconds,
            "skip": as_text(sorted(skip)),
        }
        # Nearly always nothing is due, and that needs no transaction.
        if limit <= 0 or not await self._rows("any_due", {}):
            return ()

        async def work(statements: Statements) -> tuple[DueDelivery, ...]:
            taken = []
            for (number,) in await statements.rows("pick_deliveries", wanted):
                await statements.rows("lease_delivery", wanted | {"number": number})
                *row, url, secret = (await statements.rows("leased_delivery", {"number": number}))[0]
                taken.append(DueDelivery(to_delivery(row), url, secret))
            return tuple(taken)

        return await self._transact(work)

    async def set_delivered(self, delivery: Delivery) -> None:
        await self._write("set_delivered", {"number": delivery.number})

    async def set_failed(self, delivery: Delivery, error: str, delay_seconds: float | None) -> None:
        parameters: dict[str, Any] = {"number": delivery.number, "tries": delivery.tries}
        await self._write("set_failed", parameters | {"error": writable(error), "delay": delay_seconds})

    async def disable_webhook(self, tenant: TenantId, webhook: str) -> None:
        await self._write("disable_webhook", {"tenant": tenant, "webhook": webhook})

    async def tidy_deliveries(self, *, delivered_seconds: float, dead_seconds: float) -> None:
        await self._write("delete_delivered", {"seconds": delivered_seconds})
        await self._write("delete_dead", {"seconds": dead_seconds})

    async def notice_offline(self, offline_seconds: float, limit: int) -> int:
        gone = {"seconds": offline_seconds, "limit": limit}
        noticed = 0
        for tenant, runtime in await self._rows("runtimes_gone", gone):
            noticed += await self._notice(gone | {"tenant": tenant, "runtime": runtime})
        return noticed

    async def _notice(self, gone: dict[str, Any]) -> bool:
        async def work(statements: Statements) -> bool:
            # Looked at again: it may be back, and another node may have noticed it, too.
            row = await first(statements, "notice_offline", gone)
            if row is None:
                return False
            about = {"runtime_id": gone["runtime"], "name": row[0], "worker_id": row[1]}
            message = announcement(WebhookKind.RUNTIME_OFFLINE, **about)
            await statements.rows("announce_plain", message | {"tenant": gone["tenant"]})
            return True

        return await self._transact(work)


def _to_webhook(row: Row) -> Webhook:
    id, tenant, url, kinds, created_by, created_at, disabled_at = row
    subscribed = tuple(map(WebhookKind, orjson.loads(kinds)))
    return Webhook(id, TenantId(tenant), url, subscribed, created_by, created_at, disabled_at)


def to_delivery(row: Row) -> Delivery:
    number, id, tenant, webhook, kind, detail, created_at, due_at, tries, last_error, delivered_at, *about = (
        row
    )
    session, turn, attempt, task = about
    return Delivery(
        number,
        id,
        TenantId(tenant),
        webhook,
        kind,
        orjson.loads(detail),
        created_at,
        due_at,
        tries,
        last_error,
        delivered_at,
        session and SessionId(session),
        turn and TurnId(turn),
        attempt and AttemptId(attempt),
        task and TaskId(task),
    )
