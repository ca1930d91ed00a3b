"""The shapes of the session API's answers, as JSON schemas."""

from __future__ import annotations

from typing import Any

from lastgood.surfaces.http.json_schema import COUNT, TEXT, Schema, object_of, or_null

_MANY: Schema = {"type": "array"}
_ANY: Schema = {"type": "object"}
_FLAG: Schema = {"type": "boolean"}
_NUMBER: Schema = {"type": "number", "minimum": 0}


def _list_of(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


PING = object_of({"status": {"const": "ok"}})
STATUS = object_of({"status": TEXT})

_AGENT = object_of(
    {"name": TEXT, "description": TEXT, "multi": _FLAG},
    {"commands": _ANY, "welcome_message": TEXT, "model": TEXT, "error": TEXT},
)
AGENTS = _list_of(_AGENT)
AGENT = object_of(
    {"name": TEXT, "description": TEXT, "multi": _FLAG, "digest": TEXT, "agents": _list_of(_ANY)},
)

_MESSAGE = object_of(
    {"role": {"enum": ["system", "user", "assistant", "tool"]}, "content": {"type": ["string", "array"]}},
    {"tool_calls": _MANY, "tool_call_id": TEXT, "reasoning": TEXT, "turn": TEXT},
)
RULES = object_of({"allow": _list_of(TEXT), "ask": _list_of(TEXT), "deny": _list_of(TEXT)})
_LAYER = object_of(
    {"set_by": {"enum": ["session", "approve", "admin"]}, "token": TEXT},
    {"permissions": RULES, "safety_policy": TEXT},
)
SESSION = object_of(
    {
        "id": TEXT,
        "title": TEXT,
        "agent": TEXT,
        "agent_key": TEXT,
        "model": or_null(TEXT),
        "working_dir": or_null(TEXT),
        "created_at": TEXT,
        "updated_at": TEXT,
        "head": or_null(TEXT),
        "turns": COUNT,
        "streaming": _FLAG,
        "status": {"enum": ["idle", "running", "waiting"]},
        "attempt": or_null(TEXT),
        "input_tokens": COUNT,
        "output_tokens": COUNT,
        "cost": _NUMBER,
        "last_event_seq": COUNT,
        "starred": _FLAG,
        "metadata": _ANY,
    },
    {
        "permissions": RULES,
        "safety_policy": TEXT,
        "rules": _list_of(_LAYER),
        "forked_from": _ANY,
        "conversation": TEXT,
        "messages": _list_of(_MESSAGE),
        "num_messages": COUNT,
        "damage": TEXT,
    },
)
SESSIONS = _list_of(SESSION)
WITH_MESSAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "messages": ("0: leave out the messages", {"enum": ["0", "1"]})
}

_USAGE = object_of({"input_tokens": COUNT, "output_tokens": COUNT, "cost": _NUMBER})
TURN = object_of(
    {
        "id": TEXT,
        "seq": COUNT,
        "parent": or_null(TEXT),
        "attempt": TEXT,
        "kind": {"enum": ["run", "append", "reset"]},
        "messages": _list_of(_MESSAGE),
        "inputs": COUNT,
        "agent_key": TEXT,
        "agent_digest": TEXT,
        "model": TEXT,
        "usage": _USAGE,
        "decision": _ANY,
        "created_at": TEXT,
    },
    {"user": TEXT, "open_calls": _list_of(TEXT), "status": {"const": "added"}, "damage": TEXT},
)
TURNS = _list_of(TURN)
BRANCHES = _list_of(
    object_of(
        {
            "head": TEXT,
            "turns": COUNT,
            "after": or_null(TEXT),
            "replaced_by": TEXT,
            "created_at": TEXT,
        }
    )
)
PROMPT = object_of(
    {
        "turn": TEXT,
        "agent_digest": TEXT,
        "model": TEXT,
        "left_out": COUNT,
        "messages": _list_of(_MESSAGE),
    }
)
ATTEMPT = object_of(
    {
        "id": TEXT,
        "session": TEXT,
        "turn": TEXT,
        "number": COUNT,
        "status": {
            "enum": [
                "running",
                "waiting",
                "committed",
                "failed",
                "cancelled",
                "interrupted",
                "superseded",
            ]
        },
        "base": or_null(TEXT),
        "fence": COUNT,
        "agent_key": TEXT,
        "agent_digest": TEXT,
        "model": TEXT,
        "decision": _ANY,
        "started_at": TEXT,
    },
    {
        "ended_at": TEXT,
        "error": object_of({"code": TEXT, "message": TEXT}, {"kind": TEXT}),
        "replaces": TEXT,
        "continues": TEXT,
        "question": _ANY,
        "usage": _USAGE,
        "steps": _list_of(object_of({"kind": TEXT, "message": _MESSAGE, "usage": _USAGE})),
    },
)
ATTEMPTS = _list_of(ATTEMPT)

_ENTRY = object_of(
    {
        "id": COUNT,
        "turn": TEXT,
        "kind": {"enum": ["steer", "followup"]},
        "messages": _list_of(_MESSAGE),
        "failures": COUNT,
        "created_at": TEXT,
    },
    {"attempt": TEXT, "parked": TEXT},
)
QUEUED = object_of({"status": TEXT, "duplicate": _FLAG, **_ENTRY["properties"]})
QUEUED["required"] = ["status", "duplicate", *_ENTRY["required"]]
_DEPTH = object_of({"depth": COUNT, "capacity": COUNT})
QUEUE = object_of({"steer": _DEPTH, "followup": _DEPTH, "items": _list_of(_ENTRY)})

DOCUMENT = object_of(
    {"format": TEXT, "version": COUNT, "session": _ANY, "turns": _list_of(_ANY)},
    {"errors": _list_of(_ANY), "damage": or_null(TEXT), "branches_not_exported": COUNT},
)
DELETED = object_of({"message": TEXT})
BATCH_DELETED = object_of({"deleted_count": COUNT, "failed_count": COUNT, "failed_ids": _list_of(TEXT)})
BATCH_EXPORTED = object_of(
    {
        "export_format": TEXT,
        "timestamp": TEXT,
        "session_count": COUNT,
        "sessions": _list_of(DOCUMENT),
        "failed_ids": _list_of(TEXT),
    }
)

BRIEF = object_of(
    {
        "id": TEXT,
        "title": TEXT,
        "streaming": _FLAG,
        "agent": TEXT,
        "status": TEXT,
        "turns": COUNT,
        "input_tokens": COUNT,
        "output_tokens": COUNT,
    }
)
TOKENS = object_of({"id": TEXT, "input_tokens": COUNT, "output_tokens": COUNT, "cost": _NUMBER})
SESSION_MODELS = object_of({"agent": TEXT, "current_model_ref": TEXT, "models": _list_of(_ANY)})
