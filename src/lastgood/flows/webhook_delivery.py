"""Sends what is in the outbox of webhooks, at least once. Every node sends; a lease keeps them apart.

A process that dies between sending and recording it leaves a message that is sent again, under the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from lastgood.core.webhooks import body_of, delay_after, headers_of
from lastgood.errors import StoreError
from lastgood.model.webhooks import DueDelivery
from lastgood.ports import Clock
from lastgood.ports.webhooks import WebhookStore

log = logging.getLogger(__name__)

_GONE = 410


@dataclass(frozen=True, slots=True)
class PostResult:
    """`status`: None if there was no response; then `error` says why."""

    status: int | None
    error: str = ""


#: Posts a body to a URL that may be posted to. Never raises; ends by itself in less than a lease.
Post = Callable[[str, bytes, Mapping[str, str]], Awaitable[PostResult]]


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    poll_seconds: float = 2.0
    lease_seconds: float = 20.0  # longer than a post can take
    at_once: int = 64  # messages on their way from this process
    per_webhook: int = 4
    tidy_seconds: float = 3600.0
    delivered_seconds: float = 2 * 86_400.0  # how long delivered messages are kept
    dead_seconds: float = 30 * 86_400.0


class WebhookDelivery:
    def __init__(
        self, store: WebhookStore, post: Post, clock: Clock, limits: DeliveryLimits | None = None
    ) -> None:
        self._store = store
        self._post = post
        self._clock = clock
        self._limits = limits or DeliveryLimits()
        #: By webhook: one that hangs is not given more, and the others do not wait for it.
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._tidied = clock.monotonic()

    async def keep_delivering(self) -> None:
        try:
            while True:
                try:
                    await self.step()
                    await self._tidy()
                except StoreError as error:
                    log.warning("the delivery of webhooks failed and is retried: %s", error)
                except Exception:  # one row that cannot be read must not end all deliveries
                    log.exception("the delivery of webhooks failed and is retried")
                await self._wait()
        finally:
            for task in self._sending.values():
                task.cancel()
            await asyncio.gather(*self._sending.values(), return_exceptions=True)

    async def step(self) -> int:
        """Begins to send what is due. Returns how many messages that is."""
        limits = self._limits
        taken = await self._store.take_deliveries(
            limit=limits.at_once - len(self._sending) * limits.per_webhook,
            per_webhook=limits.per_webhook,
            lease_seconds=limits.lease_seconds,
            skip=self._sending.keys(),
        )
        by_webhook: defaultdict[str, list[DueDelivery]] = defaultdict(list)
        for due in taken:
            by_webhook[due.delivery.webhook].append(due)
        for webhook, batch in by_webhook.items():
            self._sending[webhook] = asyncio.create_task(self._send_all(webhook, batch))
        return len(taken)

    async def _wait(self) -> None:
        """Waits until a message was sent, because more may be due, or until the next poll."""
        if self._sending:
            tasks = set(self._sending.values())
            await asyncio.wait(tasks, timeout=self._limits.poll_seconds, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(self._limits.poll_seconds)

    async def _send_all(self, webhook: str, batch: Sequence[DueDelivery]) -> None:
        try:
            await asyncio.gather(*map(self._send, batch))
        except StoreError as error:
            log.warning("the result of a webhook delivery was not stored; it is sent again: %s", error)
        except Exception:
            log.exception("the delivery to webhook %s failed and is retried", webhook)
        finally:
            del self._sending[webhook]

    async def _send(self, due: DueDelivery) -> None:
        delivery = due.delivery
        body = body_of(delivery)
        headers = headers_of(delivery, due.secret, body, self._clock.now())
        result = await self._post(due.url, body, headers)
        if result.status is not None and 200 <= result.status < 300:
            await self._store.set_delivered(delivery)
            return
        error = result.error or f"the receiver returned {result.status}"
        delay = delay_after(delivery.tries)
        if result.status == _GONE:
            await self._store.disable_webhook(delivery.tenant, delivery.webhook)
            delay = None
        await self._store.set_failed(delivery, error, delay)
        if delay is None:
            log.warning(
                "webhook %s: gave up message %s after %d tries",
                delivery.webhook,
                delivery.id,
                delivery.tries,
            )

    async def _tidy(self) -> None:
        limits, now = self._limits, self._clock.monotonic()
        if now - self._tidied >= limits.tidy_seconds:
            self._tidied = now
            await self._store.tidy_deliveries(
                delivered_seconds=limits.delivered_seconds, dead_seconds=limits.dead_seconds
            )
