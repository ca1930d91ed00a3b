"""Errors on the wire: one table from error to status, and the default envelope.

Clients may rely on codes. Whether an SDK may retry by itself is in the headers that SDKs read:
`x-should-retry`, and `Retry-After` where waiting helps. Other clients look at the status alone, so a turn
whose tools must not run again answers 424. All errors of providers have one code here; `kind` says what
exactly failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from lastgood.errors import (
    AttemptLost,
    BudgetExceeded,
    Conflict,
    ContextOverflow,
    DatabaseDamaged,
    Forbidden,
    HistoryDamaged,
    HookBlocked,
    IdempotencyMismatch,
    InvalidRequest,
    LastgoodError,
    MethodNotAllowed,
    ModelError,
    ModelGarbled,
    ModelUnknown,
    NeedsAnswer,
    NotFound,
    OutcomeUnknown,
    ProviderRateLimited,
    QuotaUsedUp,
    RuntimeOffline,
    SessionBusy,
    SessionNotFound,
    ShuttingDown,
    StaleHead,
    StoreError,
    TooLarge,
    TooManyRequests,
    TurnCancelled,
    TurnFailed,
    Unauthorized,
    Unenforceable,
    UnsupportedMedia,
    error_of,
)
from lastgood.surfaces.http.asgi import Reply, Request, json_reply
from lastgood.surfaces.http.json_schema import ERROR, Schema
from lastgood.surfaces.http.server_sent_events import unnumbered

#: For what clients must not send again by themselves. No client library retries it by default.
FAILED_DEPENDENCY = 424

#: The first that fits counts, so children stand before their parents.
STATUS: tuple[tuple[type[LastgoodError], int], ...] = (
    (TooLarge, 413),
    (UnsupportedMedia, 415),
    (MethodNotAllowed, 405),
    (ModelUnknown, 422),
    (IdempotencyMismatch, 422),
    (Unenforceable, 422),
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
    (TurnCancelled, 409),  # requested by a person, not an error of the server
    (BudgetExceeded, 422),
    (HookBlocked, 422),  # a decision about the request, not an error of the server
    (TurnFailed, 500),
    (NeedsAnswer, 409),
    (ShuttingDown, 503),
    (RuntimeOffline, 503),
    (OutcomeUnknown, FAILED_DEPENDENCY),
    (DatabaseDamaged, 500),
    (StoreError, 503),
    (LastgoodError, 500),
)

#: Of a provider's failures, those that a caller can do something about by their own code.
_OWN_CODE = (ProviderRateLimited, ContextOverflow)

#: Added to messages that invite to send the turn again.
_HAS_EFFECTS = "A tool that is not repeatable has already run; a new request would run it again."

#: The same request fails in the same way, however often it is sent.
_HOPELESS = (
    InvalidRequest,
    TurnCancelled,
    HookBlocked,
    BudgetExceeded,  # trying again spends the same again
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


def code_fields(code: str) -> dict[str, str]:
    """A code as clients see it: `code`, and `kind` where one code stands for several errors."""
    error = error_of(code, "")
    keeps_code = not isinstance(error, ModelError) or isinstance(error, _OWN_CODE) or code == ModelError.code
    return {"code": code} if keeps_code else {"code": ModelError.code, "kind": code}


def plain(error: LastgoodError, request_id: str, *, has_effects: bool = False) -> Reply:
    """The envelope of the session API; fields at the top level are for docker-agent's clients. Without their
    code they take an unknown session for a server that does not have the route."""
    words, message = code_fields(error.code), message_of(error, has_effects=has_effects)
    fields: dict[str, Any] = {"code": words.pop("code"), "message": message, "request_id": request_id}
    if detail := error.detail | words:
        fields["detail"] = detail
    body: dict[str, Any] = {"error": fields, "message": message}
    if isinstance(error, SessionNotFound):
        body["code"] = "unknown_session"
    status = status_of(error, has_effects=has_effects)
    return json_reply(body, status, retry_headers(error, has_effects=has_effects))


def message_of(error: LastgoodError, *, has_effects: bool) -> str:
    return f"{error.message.rstrip('.')}. {_HAS_EFFECTS}" if has_effects else error.message


def retry_headers(error: LastgoodError, *, has_effects: bool = False) -> dict[str, str]:
    headers: dict[str, str] = {}
    if has_effects or isinstance(error, OutcomeUnknown):
        return {"x-should-retry": "false"}
    if isinstance(error, SessionBusy | ShuttingDown | RuntimeOffline | StoreError) and may_be_sent_again(
        error
    ):
        headers["retry-after"] = "1"
    if isinstance(error, ModelError | TooManyRequests) and error.retry_after is not None:
        headers["retry-after"] = str(max(ceil(error.retry_after), 1))
    headers["x-should-retry"] = "true" if may_be_sent_again(error) else "false"
    return headers


def may_be_sent_again(error: LastgoodError, *, has_effects: bool = False) -> bool:
    """Whether a client may retry by itself with a new request, which would run every tool of the turn
    again."""
    if has_effects or isinstance(error, _HOPELESS):
        return False
    if isinstance(error, ModelError):
        return error.passes or isinstance(error, ModelGarbled)
    return not (isinstance(error, Conflict) and not isinstance(error, SessionBusy | AttemptLost))


# -- dialects ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ErrorDialect:
    """How one API words its errors."""

    reply: Callable[[LastgoodError, Request], Reply]
    last_frame: Callable[[LastgoodError, Request], bytes]  # ends a stream that has begun
    schema: Schema


def _plain_reply(error: LastgoodError, request: Request) -> Reply:
    return plain(error, request.id)


def _plain_last_frame(error: LastgoodError, request: Request) -> bytes:
    """Has no id: a client that reconnects resumes after the last stored event."""
    words = {"error": error.message, "message": error.message, "request_id": request.id}
    body = {"type": "error", **code_fields(error.code), **words}
    return unnumbered(body, named=request.query.get("named") == "1")


PLAIN_ERRORS = ErrorDialect(_plain_reply, _plain_last_frame, ERROR)

#: By path prefix. Paths without one use PLAIN_ERRORS.
ErrorDialects = Mapping[str, ErrorDialect]


def dialect_of(path: str, dialects: ErrorDialects) -> ErrorDialect:
    return next((found for prefix, found in dialects.items() if path.startswith(prefix)), PLAIN_ERRORS)
