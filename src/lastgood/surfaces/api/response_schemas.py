"""Responses of the session API as JSON schemas; its nouns are defined in `resources.py`."""

from __future__ import annotations

from typing import Any

from lastgood.surfaces.api.resources import (
    AGENT,
    ATTEMPT,
    BRANCH,
    MESSAGE,
    QUEUE_ENTRY,
    SESSION,
    TURN,
)
from lastgood.surfaces.http.json_schema import COUNT, TEXT, object_of, or_null
from lastgood.surfaces.http.resource import ANY, FLAG, NUMBER, list_of

PING = object_of({"status": {"const": "ok"}})
STATUS = object_of({"status": TEXT})

AGENTS = list_of(AGENT.schema)
SESSIONS = list_of(SESSION.schema)
TURNS = list_of(TURN.schema)
ATTEMPTS = list_of(ATTEMPT.schema)
BRANCHES = list_of(BRANCH.schema)
WITH_MESSAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "messages": ("0: leave out the messages", {"enum": ["0", "1"]})
}

PROMPT = object_of(
    {
        "turn": TEXT,
        "agent_digest": TEXT,
        "model": TEXT,
        "left_out": COUNT,
        "messages": list_of(MESSAGE),
    }
)
QUEUED = {"allOf": [object_of({"status": TEXT, "duplicate": FLAG}), QUEUE_ENTRY.schema]}
_DEPTH = object_of({"depth": COUNT, "capacity": COUNT})
QUEUE = object_of({"steer": _DEPTH, "followup": _DEPTH, "items": list_of(QUEUE_ENTRY.schema)})

DOCUMENT = object_of(
    {"format": TEXT, "version": COUNT, "session": ANY, "turns": list_of(ANY)},
    {"errors": list_of(ANY), "damage": or_null(TEXT), "branches_not_exported": COUNT},
)
DELETED = object_of({"message": TEXT})
BATCH_DELETED = object_of({"deleted_count": COUNT, "failed_count": COUNT, "failed_ids": list_of(TEXT)})
BATCH_EXPORTED = object_of(
    {
        "export_format": TEXT,
        "timestamp": TEXT,
        "session_count": COUNT,
        "sessions": list_of(DOCUMENT),
        "failed_ids": list_of(TEXT),
    }
)

BRIEF = object_of(
    {
        "id": TEXT,
        "title": TEXT,
        "streaming": FLAG,
        "agent": TEXT,
        "status": TEXT,
        "turns": COUNT,
        "input_tokens": COUNT,
        "output_tokens": COUNT,
    }
)
TOKENS = object_of({"id": TEXT, "input_tokens": COUNT, "output_tokens": COUNT, "cost": NUMBER})
SESSION_MODELS = object_of({"agent": TEXT, "current_model_ref": TEXT, "models": list_of(ANY)})
