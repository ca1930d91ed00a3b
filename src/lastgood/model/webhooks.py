"""Webhooks: receivers with their subscriptions, and each message on its way there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from lastgood.model.ids import AttemptId, SessionId, TaskId, TenantId, TurnId


class WebhookKind(StrEnum):
    APPROVAL_WAITING = "approval.waiting"
    TURN_COMMITTED = "turn.committed"
    TURN_FAILED = "turn.failed"
    TASK_ENDED = "task.ended"
    RUNTIME_OFFLINE = "runtime.offline"


#: Sent on request, whatever a webhook subscribes to.
TEST_KIND = "webhook.test"


@dataclass(frozen=True, slots=True)
class Webhook:
    """Without its secret: that is read only by what signs."""

    id: str
    tenant: TenantId
    url: str
    kinds: tuple[WebhookKind, ...]
    created_by: str
    created_at: float
    disabled_at: float | None = None  # its receiver answered 410 Gone


class DeliveryState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message for one webhook. `id` is the same in every try; `due_at` is None when it is settled."""

    number: int
    id: str
    tenant: TenantId
    webhook: str
    kind: str
    detail: Mapping[str, Any]
    created_at: float
    due_at: float | None
    tries: int
    last_error: str | None
    delivered_at: float | None
    session: SessionId | None
    turn: TurnId | None
    attempt: AttemptId | None
    task: TaskId | None

    @property
    def state(self) -> DeliveryState:
        if self.delivered_at is not None:
            return DeliveryState.DELIVERED
        return DeliveryState.DEAD if self.due_at is None else DeliveryState.PENDING


@dataclass(frozen=True, slots=True)
class DueDelivery:
    """One that this process has leased, with what it takes to send it."""

    delivery: Delivery
    url: str
    secret: str

    def __repr__(self) -> str:
        return f"DueDelivery({self.delivery.id})"  # a secret must not get into a log by way of a repr
