"""Errors on the wire: one table from error to status, and the two envelopes.

Codes are what callers may rely on. Whether an SDK may send a request again by itself
is said in words it understands: `x-should-retry`, and `Retry-After` where waiting helps.
Other clients look at the status alone, so a turn whose tools must not run again answers 424.
A provider that fails has one code here, and what exactly failed is told beside it.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from lastgood.errors import (
    AttemptLost,
    Conflict,
    ContextOverflow,
    DatabaseDamaged,
    Forbidden,
    Garbled,
    HistoryDamaged,
    IdempotencyMismatch,
    InvalidRequest,
    LastgoodError,
    MethodNotAllowed,
    ModelError,
    ModelUnknown,
    NeedsAnswer,
    NotFound,
    OutcomeUnknown,
    ProviderRateLimited,
    QuotaUsedUp,
    SessionBusy,
    ShuttingDown,
    StaleHead,
    StoreError,
    TooLarge,
    TooManyRequests,
    TurnCancelled,
    TurnFailed,
    Unauthorized,
    UnsupportedMedia,
    error_of,
)
from lastgood.surfaces.http.asgi import Reply, json_reply

#: For what clients must not send again by themselves. No client library retries it by default.
FAILED_DEPENDENCY = 424

#: The first that fits counts, so children stand before their parents.
STATUS: tuple[tuple[type[LastgoodError], int], ...] = (
    (TooLarge, 413),
    (UnsupportedMedia, 415),
    (MethodNotAllowed, 405),
    (ModelUnknown, 422),
    (IdempotencyMismatch, 422),
    (InvalidRequest, 400),
    (Unauthorized, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (StaleHead, 412),
    (Conflict, 409),
    (ContextOverflow, 400),
    (ProviderRateLimited, 429),
    (QuotaUsedUp, 429),
    (TooManyRequests, 429),
    (TurnCancelled, 409),  # somebody's wish, and no fault of the server
    (TurnFailed, 500),
    (NeedsAnswer, 409),
    (ShuttingDown, 503),
    (OutcomeUnknown, FAILED_DEPENDENCY),
    (DatabaseDamaged, 500),
    (StoreError, 503),
    (LastgoodError, 500),
)

#: OpenAI's own words, where it has one for it.
_OPENAI_CODES = {
    "agent_not_found": "model_not_found",
    "context_overflow": "context_length_exceeded",
    "unauthorized": "invalid_api_key",
    "rate_limited": "rate_limit_exceeded",
    "quota_used_up": "insufficient_quota",
}

#: Of a provider's failures, those that a caller can do something about by their own code.
_OWN_CODE = (ProviderRateLimited, ContextOverflow)

#: Added to messages that invite to send the turn again.
_HAS_EFFECTS = "A tool that is not repeatable has already run; a new request would run it again."

#: The same request fails in the same way, however often it is sent.
_HOPELESS = (
    InvalidRequest,
    TurnCancelled,
    Unauthorized,
    Forbidden,
    NotFound,
    StaleHead,
    OutcomeUnknown,
    HistoryDamaged,
    DatabaseDamaged,
)


def status_of(error: LastgoodError, *, has_effects: bool = False) -> int:
    """`has_effects`: of an attempt in which a tool that is not repeatable has run or may have."""
    status = next(status for kind, status in STATUS if isinstance(error, kind))
    return FAILED_DEPENDENCY if has_effects and _is_retried_by_clients(status) else status


def _is_retried_by_clients(status: int) -> bool:
    """What the libraries in use retry by the status alone; many of them ignore `x-should-retry`."""
    return status in (408, 409, 429) or status >= 500


def told_as(code: str) -> dict[str, str]:
    """A code as callers are told it: `code`, and `kind` where that one stands for several."""
    error = error_of(code, "")
    is_told = not isinstance(error, ModelError) or isinstance(error, _OWN_CODE) or code == ModelError.code
    return {"code": code} if is_told else {"code": ModelError.code, "kind": code}


def plain(error: LastgoodError, request_id: str, *, has_effects: bool = False) -> Reply:
    """The envelope of the session API; the top-level copy is for docker-agent's clients."""
    words, message = told_as(error.code), _message(error, has_effects=has_effects)
    told: dict[str, Any] = {"code": words.pop("code"), "message": message, "request_id": request_id}
    if detail := error.detail | words:
        told["detail"] = detail
    body = {"error": told, "message": message}
    status = status_of(error, has_effects=has_effects)
    return json_reply(body, status, retry_headers(error, has_effects=has_effects))


def openai(error: LastgoodError, *, has_effects: bool = False) -> Reply:
    status = status_of(error, has_effects=has_effects)
    body = openai_body(error, has_effects=has_effects)
    return json_reply(body, status, retry_headers(error, has_effects=has_effects))


def openai_frame(error: LastgoodError, *, has_effects: bool) -> dict[str, Any]:
    """The same in a stream that has begun: there is no header any more to say it in."""
    told = openai_body(error, has_effects=has_effects)
    told["error"]["retryable"] = may_be_sent_again(error, has_effects=has_effects)
    return told


def openai_body(error: LastgoodError, *, has_effects: bool = False) -> dict[str, Any]:
    status = status_of(error, has_effects=has_effects)
    told = {
        "message": _message(error, has_effects=has_effects),
        "type": _openai_type(error, status),
        "param": error.detail.get("param"),
        "code": _OPENAI_CODES.get(error.code) or told_as(error.code)["code"],
    }
    return {"error": told}


def _message(error: LastgoodError, *, has_effects: bool) -> str:
    return f"{error.message.rstrip('.')}. {_HAS_EFFECTS}" if has_effects else error.message


def _openai_type(error: LastgoodError, status: int) -> str:
    if isinstance(error, ProviderRateLimited | QuotaUsedUp | TooManyRequests):
        return "rate_limit_error"
    match status:
        case 401:
            return "authentication_error"
        case 403:
            return "permission_error"
        case _ if status < 500 and status != FAILED_DEPENDENCY:
            return "invalid_request_error"
        case _:
            return "server_error"


def retry_headers(error: LastgoodError, *, has_effects: bool = False) -> dict[str, str]:
    headers: dict[str, str] = {}
    if has_effects or isinstance(error, OutcomeUnknown):
        return {"x-should-retry": "false"}
    if isinstance(error, SessionBusy | ShuttingDown | StoreError) and may_be_sent_again(error):
        headers["retry-after"] = "1"
    if isinstance(error, ModelError | TooManyRequests) and error.retry_after is not None:
        headers["retry-after"] = str(max(ceil(error.retry_after), 1))
    headers["x-should-retry"] = "true" if may_be_sent_again(error) else "false"
    return headers


def may_be_sent_again(error: LastgoodError, *, has_effects: bool = False) -> bool:
    """By a client on its own, as a new request: that would run every tool of the turn again."""
    if has_effects or isinstance(error, _HOPELESS):
        return False
    if isinstance(error, ModelError):
        return error.passes or isinstance(error, Garbled)
    return not (isinstance(error, Conflict) and not isinstance(error, SessionBusy | AttemptLost))
