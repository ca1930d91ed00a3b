"""Decides what a webhook message says, how it is signed, and when it is tried again.

The headers and the signature are those of the Standard Webhooks specification. Knows no clock and no HTTP.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from lastgood.errors import InvalidRequest
from lastgood.model.webhooks import Delivery, WebhookKind

SECRET_PREFIX = "whsec_"

#: Delay after each failed try; about a day in all. After the last one it is a dead letter.
_DELAYS_SECONDS = (5.0, 30.0, 300.0, 1800.0, 7200.0, 18_000.0, 57_600.0)


def delay_after(tries: int) -> float | None:
    """How long after this many failed tries the next one is due. None: there is no next one."""
    return _DELAYS_SECONDS[tries - 1] if tries <= len(_DELAYS_SECONDS) else None


def kinds_of(names: list[str] | None) -> tuple[WebhookKind, ...]:
    """Without names, all kinds. InvalidRequest: one is unknown, or there are none."""
    if names is None:
        return tuple(WebhookKind)
    known = ", ".join(WebhookKind)
    for name in names:
        if name not in set(WebhookKind):
            raise InvalidRequest(f"Unknown event {name!r:.80}; use some of {known}", param="kinds")
    if not names:
        raise InvalidRequest(f"`kinds` is empty; use some of {known}", param="kinds")
    return tuple(kind for kind in WebhookKind if kind.value in names)


def body_of(delivery: Delivery) -> bytes:
    """The same bytes in every try."""
    about: dict[str, Any] = {
        "tenant": delivery.tenant,
        "session_id": delivery.session,
        "turn_id": delivery.turn,
        "attempt_id": delivery.attempt,
        "task_id": delivery.task,
        **delivery.detail,
    }
    at = datetime.fromtimestamp(delivery.created_at, UTC).isoformat().replace("+00:00", "Z")
    data = {name: value for name, value in about.items() if value is not None}
    return orjson.dumps({"type": delivery.kind, "timestamp": at, "data": data})


def headers_of(delivery: Delivery, secret: str, body: bytes, now: float) -> Mapping[str, str]:
    """Signed again for every try: receivers refuse old timestamps."""
    at = str(int(now))
    return {
        "Content-Type": "application/json",
        "webhook-id": delivery.id,
        "webhook-timestamp": at,
        "webhook-signature": signature(secret, delivery.id, at, body),
    }


def signature(secret: str, id: str, timestamp: str, body: bytes) -> str:
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise ValueError("a webhook's secret is not base64") from None
    signed = b".".join((id.encode(), timestamp.encode(), body))
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
