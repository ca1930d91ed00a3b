"""Requests for a turn in the session API: agent key, body and headers become an ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lastgood.core.disconnect import RequestOrigin, on_disconnect
from lastgood.errors import ShuttingDown
from lastgood.model.attempts import Ask
from lastgood.surfaces.api.schemas import RunBody, messages_of
from lastgood.surfaces.http.asgi import Request
from lastgood.surfaces.http.turn_headers import expected_head, fingerprint, key_of, session_of, user_of


class TurnRequests:
    def __init__(self, is_draining: Callable[[], bool]) -> None:
        self._is_draining = is_draining

    def check_open(self) -> None:
        if self._is_draining():
            raise ShuttingDown()

    def ask(self, request: Request, body: RunBody, plain: Any, agent: str | None, *, durable: bool) -> Ask:
        """`durable`: recovery tries it again if its process dies. With an idempotency key, every ask is."""
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
            request_id=request.id,
            user=user_of(request, body.user),
            expected_head=expected,
            is_first=request.headers.get("if-none-match", "").strip() == "*",
            on_leave=on_disconnect(RequestOrigin.SESSION_API, key),
            durable=durable or key is not None,
            owner=request.caller.user,
        )
