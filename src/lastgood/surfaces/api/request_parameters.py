"""Headers and query parameters of the session API: descriptions and JSON schemas."""

from __future__ import annotations

from typing import Any

_VISIBLE: dict[str, Any] = {"type": "string", "pattern": r"^[\x21-\x7e]{1,255}$"}
KEY = {
    "idempotency-key": ("Requests with the same key and body run once; repeats replay the result", _VISIBLE)
}
USER = {
    "x-user-id": ("End user of this request; recorded with the turn", {"type": "string", "maxLength": 512})
}
HEAD = {"if-match": ("Turn id that must be the head of the session, else 412", _VISIBLE)}
ASKS = {**KEY, **USER, **HEAD}
RUNS = {**ASKS, "if-none-match": ("*: run only if the session has no turn, else 412", {"const": "*"})}

PAGE = {
    "limit": ("Page size", {"type": "integer", "minimum": 1, "maximum": 200}),
    "cursor": ("X-Next-Cursor of the previous page", {"type": "integer", "minimum": 0}),
}
FILTERS = {
    **PAGE,
    "q": ("Filter by words in the title", {"type": "string"}),
    "agent": ("Filter by agent key", {"type": "string"}),
    "status": ("Filter by status", {"enum": ["idle", "running", "waiting", "queued"]}),
}
NAMED = {"named": ("1: SSE frames have an event name", {"enum": ["0", "1"]})}
SINCE = {
    **NAMED,
    "since": ("Id of the last event received", {"type": "integer", "minimum": 0}),
    "ticket": ("Ticket in place of a token", {"type": "string"}),
}
