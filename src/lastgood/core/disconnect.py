"""Decides what happens to a turn whose client disconnects: one table.

Decided when the turn begins, from the request alone; the socket decides nothing later. A request that is
rejected has no row.
"""

from __future__ import annotations

from enum import StrEnum

from lastgood.model.attempts import OnLeave


class RequestOrigin(StrEnum):
    """Where a request for a turn comes from."""

    SESSION_API = "session api"
    OPENAI_API = "openai api"
    TERMINAL = "terminal"
    QUEUE = "queue"  # a follow-up, stored before it was acknowledged


#: (origin, has a conversation, has an idempotency key)
ON_DISCONNECT: dict[tuple[RequestOrigin, bool, bool], OnLeave] = {
    (RequestOrigin.SESSION_API, False, False): OnLeave.CONTINUE,
    (RequestOrigin.SESSION_API, False, True): OnLeave.CONTINUE,
    # Kept for a while for the client's own retry; never commits while no client is attached.
    (RequestOrigin.OPENAI_API, True, False): OnLeave.ORPHAN,
    (RequestOrigin.OPENAI_API, True, True): OnLeave.CONTINUE,
    # Nothing of it is stored, so nobody could read its result. A key without a conversation is refused.
    (RequestOrigin.OPENAI_API, False, False): OnLeave.CANCEL,
    (RequestOrigin.TERMINAL, False, False): OnLeave.CANCEL,
    (RequestOrigin.TERMINAL, False, True): OnLeave.CONTINUE,
    (RequestOrigin.QUEUE, False, False): OnLeave.CONTINUE,
    (RequestOrigin.QUEUE, False, True): OnLeave.CONTINUE,
}


def on_disconnect(origin: RequestOrigin, key: str | None, *, conversation: str | None = None) -> OnLeave:
    return ON_DISCONNECT[origin, conversation is not None, key is not None]
