"""Events as SSE frames: docker-agent's names and fields, and ours beside them.

One stored event is one frame, and its number is the id of the frame: a client that was
disconnected between two frames resumes with exactly the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from lastgood.errors import error_of
from lastgood.model.events import EventKind, StoredEvent
from lastgood.model.ids import SessionId
from lastgood.surfaces.http.error_responses import code_fields, may_be_sent_again

_K = EventKind

#: docker-agent's reasons for `stream_stopped`.
_REASONS = {"committed": "normal", "cancelled": "canceled"}


def frame(event: StoredEvent, session: SessionId, *, named: bool = False) -> bytes:
    told = as_json(event, session)
    head = f"id: {event.seq}\nevent: {told['type']}\n" if named else f"id: {event.seq}\n"
    return head.encode() + b"data: " + orjson.dumps(told) + b"\n\n"


def as_json(event: StoredEvent, session: SessionId) -> dict[str, Any]:
    told = _fields_of(event.kind, event.data) | {
        "session_id": session,
        "timestamp": datetime.fromtimestamp(event.created_at, UTC).isoformat(),
    }
    if event.attempt is not None:
        told.setdefault("attempt", event.attempt)
    if "agent" in event.data and "agent_name" not in told:
        told["agent_name"] = event.data["agent"]
    return told


def _fields_of(kind: EventKind, data: Mapping[str, Any]) -> dict[str, Any]:
    match kind:
        case _K.ATTEMPT_STARTED:
            names = ("after", "replaces", "continues", "decision")
            more = {name: data[name] for name in names if name in data}
            return {"type": "stream_started", "turn": data["turn"], **more}
        case _K.USER_SAID:
            return _user_message(data)
        case _K.TEXT_STREAMED:
            return {"type": "agent_choice", "content": data["content"]}
        case _K.REASONING_STREAMED:
            return {"type": "agent_choice_reasoning", "content": data["content"]}
        case _K.MODEL_ANSWERED:
            told = {"type": "token_usage", "usage": _usage(data), "model": data["model"]}
            return told | ({"cut_short": True} if data.get("cut_short") else {})
        case _K.MODEL_FELL_BACK:
            return {"type": "model_fallback", **data}
        case _K.TOOL_CALLED:
            return {"type": "tool_call", "tool_call": _call(data), "tool_definition": {"name": data["name"]}}
        case _K.TOOL_STREAMED:
            return {"type": "tool_call_output", "tool_call_id": data["id"], "output": data["content"]}
        case _K.TOOL_ANSWERED:
            return {
                "type": "tool_call_response",
                "tool_call_id": data["id"],
                "tool_definition": {"name": data["name"]},
                "response": data["result"],
            }
        case _K.AGENT_SWITCHED:
            return {"type": "agent_switching", "switching": False, "to_agent": data["agent"]}
        case _K.TITLE_SET:
            return {"type": "session_title", "title": data["title"]}
        case _K.RESYNC:
            return {"type": "resync", "after": data["after"]}
        case _K.RESUME_DECIDED:
            return {"type": "resume_decided", **data}
        case _K.RUN_WARNED:
            return {"type": "warning", "message": data["message"], "about": "runtime"}
        case _K.AGENT_CHANGED | _K.MODEL_RETRIED | _K.HISTORY_SHORTENED:
            return _warning(kind, data)
        case _:
            return _ending(kind, data)


def _ending(kind: EventKind, data: Mapping[str, Any]) -> dict[str, Any]:
    match kind:
        case _K.ATTEMPT_WAITS:
            return {"type": "tool_call_confirmation", "question": data["question"]}
        case _K.ATTEMPT_ERRED:
            return {"type": "error", **code_fields(data["code"]), "error": data["message"]}
        case _K.TURN_COMMITTED:
            names = ("turn", "seq", "model", "input_tokens", "output_tokens")
            told = {"type": "turn_committed", **{name: data[name] for name in names}}
            return told | {name: data[name] for name in ("after", "replaces") if name in data}
        case _K.TURN_FAILED:
            error = error_of(data["code"], data["message"])
            return {
                "type": "turn_failed",
                "turn": data["turn"],
                "status": data["status"],
                **code_fields(data["code"]),
                "message": data["message"],
                "retryable": may_be_sent_again(error, has_effects=bool(data.get("has_effects"))),
            }
        case _K.ATTEMPT_ENDED:
            reason = data["reason"]
            return {"type": "stream_stopped", "reason": _REASONS.get(reason, "error"), "status": reason}
        case _:
            return {"type": kind.value, **data}


def _user_message(data: Mapping[str, Any]) -> dict[str, Any]:
    content = data["message"]["content"]
    told: dict[str, Any] = {"type": "user_message", "session_position": -1}
    if isinstance(content, str):
        told["message"] = content
    else:
        told["message"] = "\n".join(part["text"] for part in content if part["type"] == "text")
        told["multi_content"] = content
    return told | ({"steer": True} if data.get("steer") else {})


def _usage(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "input_tokens": data["input_tokens"],
        "output_tokens": data["output_tokens"],
        "context_length": data["input_tokens"] + data["output_tokens"],
        "cost": data.get("cost", 0.0),
    }


def _call(data: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": data["name"], "arguments": data["arguments"]}
    return {"id": data["id"], "type": "function", "function": function}


def _warning(kind: EventKind, data: Mapping[str, Any]) -> dict[str, Any]:
    words = {
        _K.AGENT_CHANGED: "The agent definition changed since the previous turn",
        _K.MODEL_RETRIED: "The model request failed; retrying",
        _K.HISTORY_SHORTENED: "The prompt exceeds the context window; retrying without the oldest messages",
    }
    more = {name: value for name, value in data.items() if name != "attempt"}
    return {"type": "warning", "message": words[kind], "about": kind.value, **more}
