"""Path and headers of requests for a turn (idempotency key, end user, conditions); and its fingerprint."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import orjson

from lastgood.errors import InvalidRequest
from lastgood.model.ids import SessionId, TurnId
from lastgood.model.sessions import Session
from lastgood.surfaces.http.asgi import Request

_VISIBLE = re.compile(r"[\x21-\x7e]{1,255}")
_TAG = re.compile(r'(?:W/)?"([^"]+)"|([^"\s,]+)')
#: The end user, if the body does not name one.
USER_HEADER = "x-user-id"


def session_of(request: Request) -> SessionId:
    return SessionId(request.path["session"])


def queue_entry(request: Request) -> int:
    given = request.path["entry"]
    if not given.isascii() or not given.isdecimal() or len(given) > 18:
        raise InvalidRequest("Queue entry id must be an integer")
    return int(given)


def key_of(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    return None if key is None else visible("idempotency-key", key)


def visible(header: str, value: str) -> str:
    if not _VISIBLE.fullmatch(value):
        raise InvalidRequest(f"`{header.title()}` must be 1 to 255 visible ASCII characters", param=header)
    return value


def user_of(request: Request, given: str | None) -> str:
    user = given if given is not None else request.headers.get(USER_HEADER, "")
    if len(user) > 512:
        raise InvalidRequest("User id exceeds 512 characters; shorten it")
    return user


def expected_head(request: Request) -> TurnId | None:
    """`If-Match: turn_…`: the turn must follow this one. The quotes of an entity tag may be there."""
    given = request.headers.get("if-match")
    if given is None or given.strip() == "*":
        return None
    match = _TAG.fullmatch(given.strip())
    if match is None:
        raise InvalidRequest("`If-Match` must be one turn id: the `head` of the session")
    return TurnId(match[1] if match[1] is not None else match[2])


def etag(session: Session) -> dict[str, str]:
    """What `If-Match` of the next request may name: the head. A session without a turn has no tag."""
    return {"etag": f'"{session.head.turn}"'} if session.head else {}


def fingerprint(request: Request, plain: Any, conversation: str = "") -> str:
    """Method, path and body in one canonical spelling: two requests with one key must agree on it."""
    digest = hashlib.sha256(f"{request.method} {request.raw_path}\n{conversation}\n".encode())
    digest.update(orjson.dumps(plain, option=orjson.OPT_SORT_KEYS))
    return digest.hexdigest()
