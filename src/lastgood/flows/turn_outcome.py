"""How an attempt ended, for the client that waits for it."""

from __future__ import annotations

from dataclasses import dataclass

from lastgood.errors import LastgoodError
from lastgood.model.attempts import AttemptStatus
from lastgood.model.ids import AttemptId, TaskId
from lastgood.model.sessions import Turn


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended, or that it waits for a person."""

    attempt: AttemptId | None  # None: a task that ended before a worker claimed it
    status: AttemptStatus
    turn: Turn | None = None
    error: LastgoodError | None = None
    has_effects: bool = False  # it committed nothing, but a tool that is not repeatable has run or may have
    task: TaskId | None = None  # of a turn on a runtime
