"""Decides what the prompt of a run says about the files of earlier turns.

A transcript names files, and those are on the machines that the turns ran on. A run must never rely on a file
that it does not have: its directory has the files, or they are restored, or their absence is disclosed.
"""

from __future__ import annotations

from collections.abc import Sequence

from lastgood.core.resume import FreshStart, NativeResume, ResumeDecision, TranscriptReplay
from lastgood.model.ids import TurnId
from lastgood.model.sessions import Turn, TurnKind

FILES_ELSEWHERE = (
    "The files of this session are on another machine and could not be transferred; what the conversation "
    "says about them may not exist in this folder"
)
FILES_RESTORED = "The files of this session were restored from a snapshot of its last turn"
FILES_OUTDATED = (
    "The files of this session were restored from a snapshot of an earlier turn; what later turns did to "
    "them is missing"
)


def lacks_files(decision: ResumeDecision) -> bool:
    """Whether the run's directory is without what turns did that it continues. A fork, and a session that had
    no runtime before, know no directory."""
    if decision.work_dir is not None:
        return decision.work_dir.lacks_files
    return isinstance(decision, TranscriptReplay)


def unseen(decision: ResumeDecision, turns: Sequence[Turn]) -> Sequence[Turn]:
    """The turns whose files may be missing in the directory: it has held those of the others before."""
    if not isinstance(decision, NativeResume):
        return turns
    if not decision.is_behind:
        return ()
    places = [place for place, turn in enumerate(turns) if turn.id == decision.catch_up_after]
    return turns[places[0] + 1 :] if places else turns


def about_files(decision: ResumeDecision, turns: Sequence[Turn], restored: TurnId | None) -> str | None:
    """`turns`: those that the run continues. `restored`: the turn of the snapshot that is sent along."""
    if isinstance(decision, FreshStart) and decision.work_dir is None:
        return None
    if restored is not None:
        last = next((turn.id for turn in reversed(turns) if turn.kind is TurnKind.RUN), None)
        return FILES_RESTORED if restored == last else FILES_OUTDATED
    ran_on_server = any(map(_ran_on_server, unseen(decision, turns)))
    return FILES_ELSEWHERE if lacks_files(decision) or ran_on_server else None


def _ran_on_server(turn: Turn) -> bool:
    """In a folder of the server's machine. Imported turns ran elsewhere, and bring their own directory."""
    return turn.kind is TurnKind.RUN and not turn.decision.keys() & {"runtime", "imported_from"}
