"""What watchers of a session see. Numbered by the store, stored before they are sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from lastgood.model.ids import AttemptId


class EventKind(StrEnum):
    ATTEMPT_STARTED = "attempt_started"
    TEXT_STREAMED = "text_streamed"
    TOOL_CALLED = "tool_called"
    TOOL_ANSWERED = "tool_answered"
    ATTEMPT_WAITS = "attempt_waits"
    TURN_COMMITTED = "turn_committed"
    TURN_FAILED = "turn_failed"
    TITLE_SET = "title_set"
    RESYNC = "resync"  # made for one watcher, never stored: what it missed is gone; read the session again


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
    created_at: float
