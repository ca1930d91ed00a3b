"""Events as SSE frames: docker-agent's names and fields, and ours beside them.

One stored event is one frame, and its number is the id of the frame: a client that was
disconnected between two frames resumes with exactly the next one. Knows nothing of the stored form.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, assert_never

import orjson

from lastgood.errors import error_of
from lastgood.model.answers import QuestionKind, question_id
from lastgood.model.attempts import Edit
from lastgood.model.events import (
    AgentChanged,
    AgentSwitched,
    AttemptCommitted,
    AttemptEnded,
    AttemptErred,
    AttemptFailed,
    AttemptStarted,
    AttemptWaits,
    EventData,
    EventsDropped,
    HistoryShortened,
    HookDenied,
    HookWarned,
    ModelAnswered,
    ModelFellBack,
    ModelRetried,
    ReasoningStreamed,
    ResumeChosen,
    RunWarned,
    StoredEvent,
    TextStreamed,
    TitleSet,
    ToolAnswered,
    ToolCalled,
    ToolStreamed,
    UserSaid,
    agent_of,
)
from lastgood.model.ids import SessionId
from lastgood.model.messages import Message, as_chat
from lastgood.surfaces.http.error_responses import code_fields, may_be_sent_again

Json = dict[str, Any]

#: docker-agent's reasons for `stream_stopped`.
_REASONS = {"committed": "normal", "cancelled": "canceled"}


def frame(event: StoredEvent, session: SessionId, *, named: bool = False) -> bytes:
    body = as_wire(event, session)
    head = f"id: {event.seq}\nevent: {body['type']}\n" if named else f"id: {event.seq}\n"
    return head.encode() + b"data: " + orjson.dumps(body) + b"\n\n"


def as_wire(event: StoredEvent, session: SessionId) -> Json:
    body = _body(event.data) | {
        "session_id": session,
        "timestamp": datetime.fromtimestamp(event.created_at, UTC).isoformat(),
    }
    if event.attempt is not None:
        body.setdefault("attempt", event.attempt)
    if (agent := agent_of(event.data)) is not None:
        body["agent_name"] = agent
    return body


def _body(data: EventData) -> Json:
    match data:
        case TextStreamed():
            return {"type": "agent_choice", "content": data.content}
        case ReasoningStreamed():
            return {"type": "agent_choice_reasoning", "content": data.content}
        case UserSaid():
            return _user_message(data.message, is_steer=data.steer)
        case ToolCalled():
            return {"type": "tool_call", **_call(data.id, data.name, data.arguments)}
        case ToolStreamed():
            return {"type": "tool_call_output", "tool_call_id": data.id, "output": data.content}
        case ToolAnswered():
            tool = {"tool_call_id": data.id, "tool_definition": {"name": data.name}}
            # docker-agent's terminal reads `result` without a look whether it is there.
            result = {"output": data.result, "isError": data.failed}
            return {"type": "tool_call_response", **tool, "response": data.result, "result": result}
        case AgentSwitched():
            return {"type": "agent_switching", "switching": False, "to_agent": data.agent}
        case TitleSet():
            return {"type": "session_title", "title": data.title}
        case EventsDropped():
            return {"type": "resync", "after": data.after}
        case ResumeChosen():
            chosen = {"task": data.task, "runtime_id": data.runtime_id}
            return {"type": "resume_decided", **chosen, **data.record}
        case HookDenied():
            call = _call(data.id, data.name, data.arguments)
            return {"type": "hook_blocked", **call, "message": data.message}
        case HookWarned():
            return {"type": "warning", "message": data.message, "about": "hook", "event": data.event}
        case RunWarned():
            return {"type": "warning", "message": data.message, "about": "runtime"}
        case ModelAnswered() | ModelFellBack() | ModelRetried() | HistoryShortened() | AgentChanged():
            return _model_body(data)
        case _:
            return _attempt_body(data)


def _model_body(
    data: ModelAnswered | ModelFellBack | ModelRetried | HistoryShortened | AgentChanged,
) -> Json:
    match data:
        case ModelAnswered():
            body: Json = {"type": "token_usage", "usage": _usage(data), "model": data.model}
            if data.answerer is not None:  # docker-agent's terminal counts nothing without a name
                body["agent_name"] = data.answerer
            if data.agent is not None:
                body["sub_agent"] = True
            return body | ({"cut_short": True} if data.cut_short else {})
        case ModelFellBack():
            models = {"failed_model": data.failed_model, "fallback_model": data.fallback_model}
            tries = {"attempt": data.attempt, "max_attempts": data.max_attempts}
            return {"type": "model_fallback", **models, "reason": data.reason, **tries}
        case ModelRetried():
            retry = {"model": data.model, "after_seconds": data.after_seconds, "reason": data.reason}
            return _warning(data, "The model request failed; retrying") | retry
        case HistoryShortened():
            text = "The prompt exceeds the context window; retrying without the oldest messages"
            return _warning(data, text) | {"left_out": data.left_out, "of": data.of}
        case AgentChanged():
            text = "The agent definition changed since the previous turn"
            return _warning(data, text) | {"key": data.key, "from": data.from_, "to": data.to}


def _attempt_body(
    data: AttemptStarted | AttemptWaits | AttemptErred | AttemptCommitted | AttemptFailed | AttemptEnded,
) -> Json:
    match data:
        case AttemptStarted():
            more = {"continues": data.continues, "decision": data.decision}
            given = {name: value for name, value in more.items() if value is not None}
            return {"type": "stream_started", "turn": data.turn, **_edit(data.edit), **given}
        case AttemptWaits():
            if data.question.get("kind") == QuestionKind.ELICITATION.value:
                return _elicitation(data)
            return _confirmation(data.question)
        case AttemptErred():
            return {"type": "error", **code_fields(data.code), "error": data.message}
        case AttemptCommitted():
            tokens = {"input_tokens": data.input_tokens, "output_tokens": data.output_tokens}
            turn = {"turn": data.turn, "seq": data.seq, "model": data.model}
            return {"type": "turn_committed", **turn, **tokens, **_edit(data.edit)}
        case AttemptFailed():
            error = error_of(data.code, data.message)
            return {
                "type": "turn_failed",
                "turn": data.turn,
                "status": data.status,
                **code_fields(data.code),
                "message": data.message,
                "retryable": may_be_sent_again(error, has_effects=data.has_effects),
            }
        case AttemptEnded():
            reason = data.reason
            return {"type": "stream_stopped", "reason": _REASONS.get(reason, "error"), "status": reason}
        case never:
            assert_never(never)


def _call(id: str, name: str, arguments: str) -> Json:
    function = {"name": name, "arguments": arguments}
    return {
        "tool_call": {"id": id, "type": "function", "function": function},
        "tool_definition": {"name": name},
    }


def _confirmation(question: Mapping[str, Any]) -> Json:
    body: Json = {"type": "tool_call_confirmation", "question": question}
    if "tool" in question:
        id = question.get("call", question.get("id", ""))
        body |= _call(id, question["tool"], _arguments(question))
    return body


def _arguments(question: Mapping[str, Any]) -> str:
    """As JSON text. Questions of runtimes have the value itself, under the name that CLIs give it."""
    if "arguments" in question:
        return str(question["arguments"])
    given = question.get("input")
    return "" if given is None else orjson.dumps(given).decode()


def _elicitation(waits: AttemptWaits) -> Json:
    """docker-agent's. The id is what `POST …/elicitation` takes as `elicitation_id`."""
    question = waits.question
    url = question.get("url")
    return {
        "type": "elicitation_request",
        "message": question.get("message", ""),
        "mode": "form" if url is None else "url",
        "schema": question.get("schema"),
        "elicitation_id": question_id(waits.attempt, question),
        "question": question,
        **({} if url is None else {"url": url}),
    }


def _edit(edit: Edit | None) -> Json:
    return {} if edit is None else {"after": edit.after, "replaces": edit.replaces}


def _user_message(message: Message, *, is_steer: bool) -> Json:
    body: Json = {"type": "user_message", "session_position": -1, "message": message.content}
    if message.parts:
        body["multi_content"] = as_chat(message)["content"]
    return body | ({"steer": True} if is_steer else {})


def _usage(data: ModelAnswered) -> Json:
    return {
        "input_tokens": data.input_tokens,
        "output_tokens": data.output_tokens,
        "context_length": data.input_tokens + data.output_tokens,
        **({"context_limit": data.context_size} if data.context_size else {}),
        "cost": data.cost,
    }


def _warning(data: ModelRetried | HistoryShortened | AgentChanged, message: str) -> Json:
    return {"type": "warning", "message": message, "about": data.kind.value}
