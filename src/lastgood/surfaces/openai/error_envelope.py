"""Errors in the envelope of OpenAI's API."""

from __future__ import annotations

from typing import Any

from lastgood.errors import LastgoodError, ProviderRateLimited, QuotaUsedUp, TooManyRequests
from lastgood.surfaces.http.asgi import Reply, Request, json_reply
from lastgood.surfaces.http.error_responses import (
    FAILED_DEPENDENCY,
    ErrorDialect,
    code_fields,
    may_be_sent_again,
    message_of,
    retry_headers,
    status_of,
)
from lastgood.surfaces.openai.response_schemas import OPENAI_ERROR

#: OpenAI's own words, where it has one for it.
_OPENAI_CODES = {
    "agent_not_found": "model_not_found",
    "context_overflow": "context_length_exceeded",
    "unauthorized": "invalid_api_key",
    "rate_limited": "rate_limit_exceeded",
    "quota_used_up": "insufficient_quota",
}


def error_reply(error: LastgoodError, *, has_effects: bool = False) -> Reply:
    status = status_of(error, has_effects=has_effects)
    body = error_body(error, has_effects=has_effects)
    return json_reply(body, status, retry_headers(error, has_effects=has_effects))


def error_frame(error: LastgoodError, *, has_effects: bool) -> dict[str, Any]:
    """The same in a stream that has begun: there is no header any more to say it in."""
    body = error_body(error, has_effects=has_effects)
    body["error"]["retryable"] = may_be_sent_again(error, has_effects=has_effects)
    return body


def error_body(error: LastgoodError, *, has_effects: bool = False) -> dict[str, Any]:
    status = status_of(error, has_effects=has_effects)
    fields = {
        "message": message_of(error, has_effects=has_effects),
        "type": _openai_type(error, status),
        "param": error.detail.get("param"),
        "code": _OPENAI_CODES.get(error.code) or code_fields(error.code)["code"],
    }
    return {"error": fields}


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


def _reply(error: LastgoodError, request: Request) -> Reply:
    return error_reply(error)


def _last_frame(error: LastgoodError, request: Request) -> bytes:
    return b"data: " + error_reply(error).body + b"\n\n"


OPENAI_ERRORS = ErrorDialect(_reply, _last_frame, OPENAI_ERROR)
