"""Requests for a turn in the session API: agent key, body and headers become an ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote_plus, unquote, unquote_plus

from lastgood.core.disconnect import RequestOrigin, on_disconnect
from lastgood.core.input_checks import check_text
from lastgood.errors import InvalidRequest, ShuttingDown
from lastgood.model.attempts import Ask
from lastgood.ports import Agents
from lastgood.surfaces.api.schemas import RunBody, messages_of
from lastgood.surfaces.http.asgi import Request
from lastgood.surfaces.http.turn_headers import expected_head, fingerprint, key_of, session_of, user_of


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
