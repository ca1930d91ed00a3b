"""What watchers of a session see. Numbered by the store, stored before they are sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lastgood.model.ids import AttemptId


class EventKind(StrEnum):
    ATTEMPT_STARTED = "attempt_started"
    USER_SAID = "user_said"  # a message of the turn's input, or a steer that was heard
    RESUME_DECIDED = "resume_decided"  # which native session a runtime resumes, and why
    AGENT_CHANGED = "agent_changed"  # its definition is not the one that answered the turn before
    AGENT_SWITCHED = "agent_switched"  # another agent of the team speaks from here on
    TEXT_STREAMED = "text_streamed"
    REASONING_STREAMED = "reasoning_streamed"
    MODEL_ANSWERED = "model_answered"  # one whole response, and what it cost
    MODEL_RETRIED = "model_retried"
    MODEL_FELL_BACK = "model_fell_back"
    HISTORY_SHORTENED = "history_shortened"  # the model found it too long, and was shown less of it
    TOOL_CALLED = "tool_called"
    TOOL_STREAMED = "tool_streamed"
    TOOL_ANSWERED = "tool_answered"
    RUN_WARNED = "run_warned"  # something went wrong in a run on a runtime, which goes on
    ATTEMPT_WAITS = "attempt_waits"
    ATTEMPT_ERRED = "attempt_erred"  # what went wrong; a terminal event follows
    TURN_COMMITTED = "turn_committed"
    TURN_FAILED = "turn_failed"
    ATTEMPT_ENDED = "attempt_ended"  # after its terminal event: nothing more of it will come
    TITLE_SET = "title_set"
    RESYNC = "resync"  # made for one watcher, never stored: what it missed is gone; read the session again


#: Those whose `content` may be joined with the next one's.
STREAMED = frozenset({EventKind.TEXT_STREAMED, EventKind.REASONING_STREAMED, EventKind.TOOL_STREAMED})
#: Exactly one of these ends every attempt.
TERMINAL = frozenset({EventKind.TURN_COMMITTED, EventKind.TURN_FAILED})


@dataclass(frozen=True, slots=True)
class Event:
    kind: EventKind
    attempt: AttemptId | None
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StoredEvent:
    seq: int
    kind: EventKind
    attempt: AttemptId | None
    data: Mapping[str, Any]
    created_at: float = field(compare=False)  # for people; the number says which event it is
