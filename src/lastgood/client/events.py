"""The events of a session, one class for each `type` on the wire.

`seq` is the number of the event in its session, or None if it was made for this stream and is not stored.
`raw` is the event as received, including fields that this version does not know. An event of an unknown type
is an `OtherEvent`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from lastgood.client.models import code_of, moment


@dataclass(frozen=True, slots=True)
class EventFields:
    """Fields of every event. `agent` is the agent of a team that caused it; None: the agent of the turn."""

    seq: int | None
    session: str
    attempt: str | None
    agent: str | None
    at: datetime | None
    raw: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class StreamStartedEvent(EventFields):
    """An attempt started. `decision` says why, if the turn was attempted before."""

    turn: str
    continues: str | None
    decision: str | None


@dataclass(frozen=True, slots=True)
class ResumeDecidedEvent(EventFields):
    """`decision`: native, replay or fresh. `rejected`: native sessions that are not resumed, with reasons."""

    task: str
    runtime: str
    decision: str
    reason: str
    rejected: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class UserMessageEvent(EventFields):
    """A message of the turn's input, or a steer that the turn received."""

    message: str
    is_steer: bool


@dataclass(frozen=True, slots=True)
class AgentChoiceEvent(EventFields):
    """A chunk of the answer."""

    content: str


@dataclass(frozen=True, slots=True)
class AgentChoiceReasoningEvent(EventFields):
    content: str


@dataclass(frozen=True, slots=True)
class TokenUsageEvent(EventFields):
    """The usage of one complete model response."""

    model: str
    input_tokens: int
    output_tokens: int
    cost: float


@dataclass(frozen=True, slots=True)
class ModelFallbackEvent(EventFields):
    """The turn continues with a fallback model."""

    model: str
    reason: str


@dataclass(frozen=True, slots=True)
class ToolCallEvent(EventFields):
    id: str
    name: str
    arguments: str  # JSON


@dataclass(frozen=True, slots=True)
class ToolCallOutputEvent(EventFields):
    """Output that a tool streams while it runs."""

    id: str
    output: str


@dataclass(frozen=True, slots=True)
class ToolCallResponseEvent(EventFields):
    id: str
    name: str
    response: str


@dataclass(frozen=True, slots=True)
class ToolCallConfirmationEvent(EventFields):
    """The turn waits for human approval."""

    question: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ElicitationRequestEvent(EventFields):
    """The turn waits for information from a person."""

    message: str
    question: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AgentSwitchingEvent(EventFields):
    """Another agent of the team takes over."""

    to_agent: str


@dataclass(frozen=True, slots=True)
class SessionTitleEvent(EventFields):
    title: str


@dataclass(frozen=True, slots=True)
class WarningEvent(EventFields):
    """`topic`: agent_changed, model_retried, history_shortened, runtime."""

    message: str
    topic: str


@dataclass(frozen=True, slots=True)
class ErrorEvent(EventFields):
    """An error; TurnFailedEvent follows."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class TurnCommittedEvent(EventFields):
    """The turn is committed as number `turn_seq`. `replaces` is the previous head, if this was an edit."""

    turn: str
    turn_seq: int
    replaces: str | None


@dataclass(frozen=True, slots=True)
class TurnFailedEvent(EventFields):
    """Nothing was committed. `status`: failed, cancelled, interrupted, superseded."""

    turn: str
    status: str
    code: str
    message: str
    is_retryable: bool


@dataclass(frozen=True, slots=True)
class StreamStoppedEvent(EventFields):
    """The attempt has ended, and its session is idle."""

    status: str


@dataclass(frozen=True, slots=True)
class ResyncEvent(EventFields):
    """Missed events are no longer stored; read the session again. The events that follow are complete."""


@dataclass(frozen=True, slots=True)
class SessionExitedEvent(EventFields):
    """The session was deleted. This is the last event."""

    reason: str


@dataclass(frozen=True, slots=True)
class OtherEvent(EventFields):
    type: str


Event = (
    StreamStartedEvent
    | ResumeDecidedEvent
    | UserMessageEvent
    | AgentChoiceEvent
    | AgentChoiceReasoningEvent
    | TokenUsageEvent
    | ModelFallbackEvent
    | ToolCallEvent
    | ToolCallOutputEvent
    | ToolCallResponseEvent
    | ToolCallConfirmationEvent
    | ElicitationRequestEvent
    | AgentSwitchingEvent
    | SessionTitleEvent
    | WarningEvent
    | ErrorEvent
    | TurnCommittedEvent
    | TurnFailedEvent
    | StreamStoppedEvent
    | ResyncEvent
    | SessionExitedEvent
    | OtherEvent
)


_Plain = Mapping[str, Any]


def event_of(seq: int | None, raw: _Plain) -> Event:
    about = {
        "seq": seq,
        "session": raw.get("session_id", ""),
        "attempt": raw.get("attempt"),
        "agent": raw.get("agent_name"),
        "at": moment(raw["timestamp"]) if "timestamp" in raw else None,
        "raw": raw,
    }
    kind, fields = _KINDS.get(raw["type"], (OtherEvent, _type))
    return kind(**about, **fields(raw))


def _same(*names: str) -> Callable[[_Plain], _Plain]:
    """Fields with the same names as on the wire."""
    return lambda raw: {name: raw[name] for name in names}


def _type(raw: _Plain) -> _Plain:
    return {"type": raw["type"]}


def _call(raw: _Plain) -> _Plain:
    function = raw["tool_call"]["function"]
    return {"id": raw["tool_call"]["id"], "name": function["name"], "arguments": function["arguments"]}


def _result(raw: _Plain) -> _Plain:
    name = raw["tool_definition"]["name"]
    return {"id": raw["tool_call_id"], "name": name, "response": raw["response"]}


def _usage(raw: _Plain) -> _Plain:
    return {"model": raw["model"]} | {
        name: raw["usage"][name] for name in ("input_tokens", "output_tokens", "cost")
    }


def _started(raw: _Plain) -> _Plain:
    return {"turn": raw["turn"], "continues": raw.get("continues"), "decision": raw.get("decision")}


def _failed(raw: _Plain) -> _Plain:
    same = {name: raw[name] for name in ("turn", "status", "message")}
    return same | {"code": code_of(raw), "is_retryable": raw["retryable"]}


_KINDS: Mapping[str, tuple[Callable[..., Event], Callable[[_Plain], _Plain]]] = {
    "stream_started": (StreamStartedEvent, _started),
    "resume_decided": (
        ResumeDecidedEvent,
        lambda raw: (
            {"runtime": raw["runtime_id"]}
            | {name: raw[name] for name in ("task", "decision", "reason", "rejected")}
        ),
    ),
    "user_message": (
        UserMessageEvent,
        lambda raw: {"message": raw["message"], "is_steer": raw.get("steer", False)},
    ),
    "agent_choice": (AgentChoiceEvent, _same("content")),
    "agent_choice_reasoning": (AgentChoiceReasoningEvent, _same("content")),
    "token_usage": (TokenUsageEvent, _usage),
    "model_fallback": (
        ModelFallbackEvent,
        lambda raw: {"model": raw["fallback_model"], "reason": raw["reason"]},
    ),
    "tool_call": (ToolCallEvent, _call),
    "tool_call_output": (
        ToolCallOutputEvent,
        lambda raw: {"id": raw["tool_call_id"], "output": raw["output"]},
    ),
    "tool_call_response": (ToolCallResponseEvent, _result),
    "tool_call_confirmation": (ToolCallConfirmationEvent, _same("question")),
    "elicitation_request": (ElicitationRequestEvent, _same("message", "question")),
    "agent_switching": (AgentSwitchingEvent, _same("to_agent")),
    "session_title": (SessionTitleEvent, _same("title")),
    "warning": (WarningEvent, lambda raw: {"message": raw["message"], "topic": raw["about"]}),
    "error": (ErrorEvent, lambda raw: {"code": code_of(raw), "message": raw["error"]}),
    "turn_committed": (
        TurnCommittedEvent,
        lambda raw: {"turn": raw["turn"], "turn_seq": raw["seq"], "replaces": raw.get("replaces")},
    ),
    "turn_failed": (TurnFailedEvent, _failed),
    "stream_stopped": (StreamStoppedEvent, _same("status")),
    "resync": (ResyncEvent, _same()),
    "session_exited": (SessionExitedEvent, _same("reason")),
}
