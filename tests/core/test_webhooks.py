"""What a webhook message says, its signature, and its retries."""

from __future__ import annotations

import json

import pytest

from lastgood.core.webhooks import body_of, delay_after, headers_of, kinds_of, signature
from lastgood.errors import InvalidRequest
from lastgood.model.ids import SessionId, TenantId
from lastgood.model.webhooks import Delivery, WebhookKind


def delivery() -> Delivery:
    error = {"error": {"code": "x", "message": "é"}}
    about = (SessionId("ses_1"), None, None, None)
    return Delivery(1, "msg_1", TenantId("t"), "wh_1", "turn.failed", error, 5.5, 5.5, 1, None, None, *about)


def test_the_signature_is_that_of_the_specification() -> None:
    """The example of the Standard Webhooks libraries."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    body = b'{"test": 2432232314}'
    assert signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", body) == expected


def test_a_secret_that_is_damaged_is_an_error() -> None:
    with pytest.raises(ValueError, match="not base64"):
        signature("whsec_a", "msg", "1", b"")


def test_a_message_says_what_happened_and_when() -> None:
    assert json.loads(body_of(delivery())) == {
        "type": "turn.failed",
        "timestamp": "1970-01-01T00:00:05.500000Z",
        "data": {"tenant": "t", "session_id": "ses_1", "error": {"code": "x", "message": "é"}},
    }


def test_each_try_is_signed_at_its_own_time() -> None:
    body = body_of(delivery())
    first, second = (headers_of(delivery(), "whsec_AAAA", body, now) for now in (10.9, 11.0))
    assert (first["webhook-timestamp"], second["webhook-timestamp"]) == ("10", "11")
    assert first["webhook-id"] == second["webhook-id"] == "msg_1"
    assert first["webhook-signature"] != second["webhook-signature"]


def test_retries_take_about_a_day_and_end() -> None:
    delays = [delay_after(tries) for tries in range(1, 9)]
    assert delays[-1] is None
    waited = [delay for delay in delays if delay is not None]
    assert waited == sorted(waited)
    assert 22 * 3600 < sum(waited) <= 24 * 3600


def test_kinds_are_checked() -> None:
    assert kinds_of(None) == tuple(WebhookKind)
    assert kinds_of(["turn.failed", "approval.waiting"]) == (
        WebhookKind.APPROVAL_WAITING,
        WebhookKind.TURN_FAILED,
    )
    for wrong in ([], ["turn.begun"]):
        with pytest.raises(InvalidRequest, match=r"turn\.committed"):
            kinds_of(wrong)
