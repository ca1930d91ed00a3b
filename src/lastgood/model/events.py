"""Events of a session: what clients that follow it see. Numbered by the store, stored before they are sent.

One class for each kind. Two projections: `as_json` and `data_of` are the stored form, whose keys are the
field names; `surfaces/api/sse.py` is the wire form. Neither depends on the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar

from lastgood.model.attempts import Edit
from lastgood.model.ids import AttemptId, TaskId, TurnId
from lastgood.model.messages import Message
from lastgood.model.messages import as_json as message_as_json
from lastgood.model.messages import from_json as message_from_json


class EventKind(StrEnum):
    ATTEMPT_STARTED = "attempt_started"
    USER_SAID = "user_said"
    RESUME_DECIDED = "resume_decided"
    AGENT_CHANGED = "agent_changed"
    AGENT_SWITCHED = "agent_switched"
    TEXT_STREAMED = "text_streamed"
    REASONING_STREAMED = "reasoning_streamed"
    MODEL_ANSWERED = "model_answered"
    MODEL_RETRIED = "model_retried"
    MODEL_FELL_BACK = "model_fell_back"
    HISTORY_SHORTENED = "history_shortened"
    TOOL_CALLED = "tool_called"
    TOOL_STREAMED = "tool_streamed"
    TOOL_ANSWERED = "tool_answered"
    HOOK_BLOCKED = "hook_blocked"
    HOOK_WARNED = "hook_warned"
    RUN_WARNED = "run_warned"
    ATTEMPT_WAITS = "attempt_waits"
    ATTEMPT_ERRED = "attempt_erred"
    TURN_COMMITTED = "turn_committed"
    TURN_FAILED = "turn_failed"
    ATTEMPT_ENDED = "attempt_ended"
    TITLE_SET = "title_set"
    RESYNC = "resync"


#: Exactly one of these ends every attempt.
TERMINAL = frozenset({EventKind.TURN_COMMITTED, EventKind.TURN_FAILED})


# -- what each kind holds ----------------------------------------------------------------
# `agent` is set if a sub-agent caused the event: its output is not part of the answer.


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    kind: ClassVar = EventKind.ATTEMPT_STARTED
    turn: TurnId
    attempt: AttemptId
    agent: str  # "" if the turn runs no model
    edit: Edit | None = None
    continues: AttemptId | None = None
    decision: str | None = None


@dataclass(frozen=True, slots=True)
class UserSaid:
    """A message of the turn's input, or a steer that the turn received."""

    kind: ClassVar = EventKind.USER_SAID
    message: Message
    steer: bool = False


@dataclass(frozen=True, slots=True)
class ResumeChosen:
    """Which native session a runtime resumes, and why."""

    kind: ClassVar = EventKind.RESUME_DECIDED
    task: TaskId
    runtime_id: str
    record: Mapping[str, Any]  # the decision as it is stored with the attempt


@dataclass(frozen=True, slots=True)
class AgentChanged:
    """The definition of the agent is not the one that answered the previous turn."""

    kind: ClassVar = EventKind.AGENT_CHANGED
    key: str
    from_: str
    to: str


@dataclass(frozen=True, slots=True)
class AgentSwitched:
    """Another agent of the team answers from here on."""

    kind: ClassVar = EventKind.AGENT_SWITCHED
    agent: str


@dataclass(frozen=True, slots=True)
class TextStreamed:
    kind: ClassVar = EventKind.TEXT_STREAMED
    content: str
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class ReasoningStreamed:
    kind: ClassVar = EventKind.REASONING_STREAMED
    content: str
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class ModelAnswered:
    """One complete model response, and its usage."""

    kind: ClassVar = EventKind.MODEL_ANSWERED
    model: str
    input_tokens: int
    output_tokens: int
    cost: float = 0.0
    cut_short: bool = False
    agent: str | None = None
    answerer: str | None = None  # the agent that the model answered as, a sub-agent or not
    context_size: int | None = None  # of the model's context window, in tokens, if it is known


@dataclass(frozen=True, slots=True)
class ModelRetried:
    kind: ClassVar = EventKind.MODEL_RETRIED
    model: str
    after_seconds: float
    reason: str
    attempt: int | None = None  # the number of the request that follows


@dataclass(frozen=True, slots=True)
class ModelFellBack:
    kind: ClassVar = EventKind.MODEL_FELL_BACK
    failed_model: str
    fallback_model: str
    reason: str
    attempt: int  # the number of the fallback model among `max_attempts` models
    max_attempts: int


@dataclass(frozen=True, slots=True)
class HistoryShortened:
    """The prompt exceeded the context window; the oldest `left_out` messages were left out."""

    kind: ClassVar = EventKind.HISTORY_SHORTENED
    left_out: int
    of: int


@dataclass(frozen=True, slots=True)
class ToolCalled:
    kind: ClassVar = EventKind.TOOL_CALLED
    id: str
    name: str
    arguments: str
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class ToolStreamed:
    kind: ClassVar = EventKind.TOOL_STREAMED
    id: str
    content: str
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class ToolAnswered:
    kind: ClassVar = EventKind.TOOL_ANSWERED
    id: str
    name: str
    result: str
    agent: str | None = None
    failed: bool = False  # or denied, or of an unknown outcome


@dataclass(frozen=True, slots=True)
class HookDenied:
    """A hook denied a tool call. The call's result says so to the model."""

    kind: ClassVar = EventKind.HOOK_BLOCKED
    id: str
    name: str
    arguments: str
    message: str
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class HookWarned:
    """A hook failed, or has something to say to the user."""

    kind: ClassVar = EventKind.HOOK_WARNED
    event: str
    message: str
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class RunWarned:
    """Something went wrong in a run on a runtime, which continues."""

    kind: ClassVar = EventKind.RUN_WARNED
    message: str


@dataclass(frozen=True, slots=True)
class AttemptWaits:
    """A person has to answer: the attempt waits, or the task whose run asks the question."""

    kind: ClassVar = EventKind.ATTEMPT_WAITS
    attempt: AttemptId
    question: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AttemptErred:
    """An error; `AttemptFailed` follows."""

    kind: ClassVar = EventKind.ATTEMPT_ERRED
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class AttemptCommitted:
    kind: ClassVar = EventKind.TURN_COMMITTED
    turn: TurnId
    seq: int
    attempt: AttemptId
    model: str
    input_tokens: int
    output_tokens: int
    edit: Edit | None = None


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    kind: ClassVar = EventKind.TURN_FAILED
    turn: TurnId
    status: str
    code: str
    message: str
    attempt: AttemptId | None = None  # None if the task of the turn ended in the queue
    has_effects: bool = False  # a tool that must not run twice has run


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """The last event of an attempt, after its terminal event. Its session is free now."""

    kind: ClassVar = EventKind.ATTEMPT_ENDED
    reason: str  # its status


@dataclass(frozen=True, slots=True)
class TitleSet:
    kind: ClassVar = EventKind.TITLE_SET
    title: str


@dataclass(frozen=True, slots=True)
class EventsDropped:
    """Made for one client and never stored: the events it missed are gone; it must read the session again."""

    kind: ClassVar = EventKind.RESYNC
    after: int


#: Consecutive ones are joined into one event.
StreamedData = TextStreamed | ReasoningStreamed | ToolStreamed

EventData = (
    AttemptStarted
    | UserSaid
    | ResumeChosen
    | AgentChanged
    | AgentSwitched
    | StreamedData
    | ModelAnswered
    | ModelRetried
    | ModelFellBack
    | HistoryShortened
    | ToolCalled
    | ToolAnswered
    | HookDenied
    | HookWarned
    | RunWarned
    | AttemptWaits
    | AttemptErred
    | AttemptCommitted
    | AttemptFailed
    | AttemptEnded
    | TitleSet
    | EventsDropped
)


@dataclass(frozen=True, slots=True)
class Event:
    attempt: AttemptId | None
    data: EventData

    @property
    def kind(self) -> EventKind:
        return self.data.kind


@dataclass(frozen=True, slots=True)
class StoredEvent:
    seq: int
    attempt: AttemptId | None
    data: EventData
    created_at: float = field(compare=False)  # for people; the number says which event it is

    @property
    def kind(self) -> EventKind:
        return self.data.kind


def agent_of(data: EventData) -> str | None:
    """Returns the agent that the event names, or None."""
    agent: str | None = getattr(data, "agent", None)
    return agent


# -- the stored form ---------------------------------------------------------------------

_CLASSES: Mapping[EventKind, type[EventData]] = {each.kind: each for each in EventData.__args__}
#: Field → key. A trailing underscore keeps a field apart from a keyword of Python.
_KEYS: Mapping[type, Mapping[str, str]] = {
    each: {one.name: one.name.removesuffix("_") for one in fields(each)} for each in _CLASSES.values()
}


def as_json(data: EventData) -> dict[str, Any]:
    """Leaves out fields that are None or False."""
    plain: dict[str, Any] = {}
    for name, key in _KEYS[type(data)].items():
        match getattr(data, name):
            case None | False:
                pass
            case Edit(after, replaces):
                plain |= {"after": after, "replaces": replaces}
            case Message() as message:
                plain[key] = message_as_json(message)
            case value:
                plain[key] = value
    return plain


def data_of(kind: EventKind, plain: Mapping[str, Any]) -> EventData:
    """Ignores keys that this release does not know: a newer one may have stored the event."""
    found = _CLASSES[kind]
    values = {name: plain[key] for name, key in _KEYS[found].items() if key in plain}
    if found is UserSaid:
        values["message"] = message_from_json(plain["message"])
    elif "replaces" in plain and found in (AttemptStarted, AttemptCommitted):
        values["edit"] = Edit(plain["after"], plain["replaces"])
    return found(**values)
