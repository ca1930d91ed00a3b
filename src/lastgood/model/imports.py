"""What an import from another system writes."""

from __future__ import annotations

from dataclasses import dataclass

from lastgood.model.ids import AttemptId, TaskId, TurnId
from lastgood.model.runtimes import RuntimeIdentity
from lastgood.model.sessions import Session
from lastgood.model.tasks import PointerOutcome


@dataclass(frozen=True, slots=True)
class NewPointer:
    """`attempt` is derived from the row that it was made of: imported again, it is the same one."""

    attempt: AttemptId
    task: TaskId
    native_session: str | None
    runtime: RuntimeIdentity | None  # None: not certain
    worker: str  # whose machine `work_dir` is on
    work_dir: str | None
    through: TurnId | None
    outcome: PointerOutcome
    is_dirty: bool
    retired: str | None


@dataclass(frozen=True, slots=True)
class ImportedScope:
    session: Session
    pointers: int  # how many were added
