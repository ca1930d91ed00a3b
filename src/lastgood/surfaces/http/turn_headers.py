"""What requests for a turn have in common: who asks, for whom, under which key and condition."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote_plus, unquote, unquote_plus

import orjson

from lastgood.core.disconnect import RequestOrigin, on_disconnect
from lastgood.core.input_checks import check_text
from lastgood.errors import InvalidRequest, ShuttingDown
from lastgood.model.attempts import Ask
from lastgood.model.ids import SessionId, TurnId
from lastgood.ports import Agents
from lastgood.surfaces.api.schemas import RunBody, messages_of
from lastgood.surfaces.http.asgi import Request

_VISIBLE = re.compile(r"[\x21-\x7e]{1,255}")
_TAG = re.compile(r'(?:W/)?"([^"]+)"|([^"\s,]+)')
#: Whoever runs this server for others names the person here, if not in the body.
USER_HEADER = "x-user-id"


class TurnRequests:
    def __init__(self, agents: Agents, is_draining: Callable[[], bool]) -> None:
        self._agents = agents
        self._is_draining = is_draining

    def check_open(self) -> None:
        if self._is_draining():
            raise ShuttingDown()

    def agent_key(self, key: str, name: str | None = None) -> str:
        """The key as sources are called, whether a client escaped it once or twice.

        Also of one that is not served any more: it is recorded and compared as it was called.
        """
        if not key or name == "":
            raise InvalidRequest("The path has no agent key; GET /api/agents lists them")
        check_text(key, "the agent")
        key = _as_served(key, self._agents.served())
        return key if name is None else f"{key}/{name}"

    def ask(self, request: Request, body: RunBody, plain: Any, agent: str | None, *, accepted: bool) -> Ask:
        """`accepted`: promised for later, so recovery tries it again. With a key, every ask is."""
        key = key_of(request)
        expected = expected_head(request)
        return Ask(
            tenant=request.caller.tenant,
            session=session_of(request),
            messages=messages_of(body.messages),
            model=body.model,
            agent_key=agent,
            key=key,
            fingerprint=fingerprint(request, plain),
            caller=request.caller.name,
            user=user_of(request, body.user),
            expected_head=expected,
            is_first=request.headers.get("if-none-match", "").strip() == "*",
            on_leave=on_disconnect(RequestOrigin.SESSION_API, key),
            accepted=accepted or key is not None,
        )


def _as_served(key: str, served: Sequence[str]) -> str:
    """What is served under the very name that was sent comes first, also with a percent sign in it."""
    if _is_served(key, served):
        return key
    if "://" in key:
        return quote_plus(key)
    # With spaces as %20, as in a path, or as +, as in a query: clients have both.
    return next((one for one in (unquote(key), unquote_plus(key)) if _is_served(one, served)), key)


def _is_served(key: str, served: Sequence[str]) -> bool:
    """Alone, or with a member of its team."""
    return key in served or key.rpartition("/")[0] in served


def session_of(request: Request) -> SessionId:
    return SessionId(request.path["session"])


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


def fingerprint(request: Request, plain: Any, conversation: str = "") -> str:
    """Method, path and body in one canonical spelling: two requests with one key must agree on it."""
    digest = hashlib.sha256(f"{request.method} {request.raw_path}\n{conversation}\n".encode())
    digest.update(orjson.dumps(plain, option=orjson.OPT_SORT_KEYS))
    return digest.hexdigest()
