"""How an attempt ends: the reason of a stop, the stored error, and the last events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lastgood.core.history import valid_text
from lastgood.core.lifecycle import Move
from lastgood.errors import (
    LastgoodError,
)
from lastgood.model.attempts import (
    AttemptStatus,
    Commit,
    Edit,
)
from lastgood.model.events import (
    AttemptCommitted,
    AttemptEnded,
    AttemptErred,
    AttemptFailed,
    Event,
)
from lastgood.model.ids import AttemptId, TurnId


@dataclass(frozen=True, slots=True)
class AttemptStop:
    """Why an attempt is stopped. No move: the hold is lost, and nothing is written."""

    move: Move | None
    error: LastgoodError
    by_person: bool = False  # a person cancelled it


@dataclass(frozen=True, slots=True)
class Ending:
    """What is written at an end without a commit."""

    status: AttemptStatus
    words: tuple[str, str]
    events: Sequence[Event]
    by_person: bool = False


def committed_events(attempt: AttemptId, plan: Commit) -> tuple[Event, ...]:
    turn, usage = plan.turn, plan.turn.usage
    edit = None if plan.replaces is None else Edit(turn.parent, plan.replaces)
    data = AttemptCommitted(
        turn.id, turn.seq, attempt, turn.model, usage.input_tokens, usage.output_tokens, edit
    )
    return Event(attempt, data), Event(attempt, AttemptEnded(AttemptStatus.COMMITTED.value))


def words_of(error: LastgoodError) -> tuple[str, str]:
    """The error as it is stored. No text may keep an attempt from ending."""
    return error.code, valid_text(error.message)


def failed_events(
    turn: TurnId, attempt: AttemptId, status: AttemptStatus, error: LastgoodError, *, has_effects: bool
) -> tuple[Event, ...]:
    code, message = words_of(error)
    return (
        Event(attempt, AttemptErred(code, message)),
        Event(attempt, AttemptFailed(turn, status.value, code, message, attempt, has_effects)),
        Event(attempt, AttemptEnded(status.value)),
    )


def unclaimed_events(turn: TurnId, status: AttemptStatus, error: LastgoodError) -> tuple[Event, ...]:
    """The events of a turn whose task ended in the queue, without an attempt."""
    code, message = words_of(error)
    return (Event(None, AttemptFailed(turn, status.value, code, message)),)
